//! Collects what goes back to the daemon, and sends it when it is worth a message.
use crate::wire::{LIST_MAX, Request};
use std::sync::Mutex;
use tensorlease_memory::lock;

/// Dropped views of this many bytes go back at once.
const DUE_BYTES: usize = 1 << 20;

/// One thing that the daemon lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    /// A read has ended.
    Read { ticket: u64 },
    /// A view was dropped.
    View { ticket: u64, bytes: usize },
    /// A slab of the client's arena.
    Extent { ticket: u64 },
    /// Every reservation: the client asks for nothing more.
    Rest,
}

/// Collects what is given back. Its lock is held for a few instructions only.
#[derive(Debug, Default)]
pub(super) struct Returns {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    pins: Vec<u64>,
    extents: Vec<u64>,
    rest: bool,
    /// Of dropped views in `pins`.
    bytes: usize,
    /// Views that live.
    views: usize,
    /// Something must be sent at once.
    urgent: bool,
}

/// What one flush sends.
#[derive(Debug)]
pub(super) struct Batch {
    pins: Vec<u64>,
    extents: Vec<u64>,
    rest: bool,
}

impl Returns {
    /// Makes room for the tickets of so many more views, so that giving them back allocates nothing.
    pub(super) fn lend(&self, views: usize) {
        let mut waiting = lock(&self.waiting);
        waiting.views += views;
        let room = waiting.views;
        waiting.pins.reserve(room);
    }

    /// True: it is due.
    pub(super) fn add(&self, returned: Returned) -> bool {
        let mut waiting = lock(&self.waiting);
        match returned {
            Returned::Read { ticket } => {
                waiting.pins.push(ticket);
                waiting.urgent = true;
            }
            Returned::View { ticket, bytes } => {
                waiting.pins.push(ticket);
                waiting.bytes += bytes;
                waiting.views = waiting.views.saturating_sub(1);
            }
            Returned::Extent { ticket } => {
                waiting.extents.push(ticket);
                waiting.urgent = true;
            }
            Returned::Rest => {
                waiting.rest = true;
                waiting.urgent = true;
            }
        }
        waiting.is_due()
    }

    pub(super) fn is_due(&self) -> bool {
        lock(&self.waiting).is_due()
    }

    /// Takes as much as a socket takes at once or not at all. If there is more, it is due.
    pub(super) fn take(&self) -> Batch {
        let mut waiting = lock(&self.waiting);
        let (pins, extents) = (waiting.pins.len(), waiting.extents.len());
        // `pins` keeps its capacity, so that the drop of a view allocates nothing.
        let mut batch = Batch {
            pins: waiting.pins.drain(..pins.min(LIST_MAX)).collect(),
            extents: waiting.extents.drain(..extents.min(LIST_MAX)).collect(),
            rest: false,
        };
        waiting.urgent = LIST_MAX < pins.max(extents);
        if !waiting.urgent {
            batch.rest = std::mem::take(&mut waiting.rest);
        }
        waiting.bytes = 0;
        batch
    }

    /// Puts back what could not be sent. It stays until something else is due, or [`Returns::try_again`].
    pub(super) fn put_back(&self, batch: Batch) {
        let mut waiting = lock(&self.waiting);
        waiting.pins.extend(batch.pins);
        waiting.extents.extend(batch.extents);
        waiting.rest |= batch.rest;
    }

    /// Makes what was put back due again. False: there is nothing.
    pub(super) fn try_again(&self) -> bool {
        let mut waiting = lock(&self.waiting);
        waiting.urgent = !waiting.pins.is_empty() || !waiting.extents.is_empty() || waiting.rest;
        waiting.urgent
    }
}

impl Waiting {
    fn is_due(&self) -> bool {
        let many = LIST_MAX <= self.pins.len() || DUE_BYTES <= self.bytes;
        self.urgent || many || (self.views == 0 && self.bytes != 0)
    }
}

impl Batch {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for tickets in self.pins.chunks(LIST_MAX) {
            let tickets = tickets.to_vec();
            Request::Unpin { tickets }.encode(out);
        }
        for ticket in &self.extents {
            Request::ReleaseExtent { ticket: *ticket }.encode(out);
        }
        if self.rest {
            Request::Leave.encode(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(ticket: u64, bytes: usize) -> Returned {
        Returned::View { ticket, bytes }
    }

    #[test]
    fn small_views_wait_for_company_and_the_last_one_does_not() {
        let returns = Returns::default();
        returns.lend(3);
        assert!(!returns.add(view(1, 100)));
        assert!(!returns.add(view(2, 100)));
        assert!(returns.add(view(3, 100)), "no view lives any more");
        assert_eq!(returns.take().pins, [1, 2, 3]);
        assert!(!returns.is_due(), "everything was taken");
    }

    #[test]
    fn much_memory_goes_back_while_other_views_live() {
        let returns = Returns::default();
        returns.lend(10);
        assert!(!returns.add(view(1, DUE_BYTES - 1)));
        assert!(returns.add(view(2, 1)));
    }

    #[test]
    fn much_goes_in_several_batches_and_the_leave_last() {
        let returns = Returns::default();
        returns.add(Returned::Rest);
        (0..LIST_MAX as u64 + 5).for_each(|ticket| {
            returns.add(Returned::Extent { ticket });
        });
        let first = returns.take();
        assert_eq!((first.extents.len(), first.rest), (LIST_MAX, false));
        assert!(returns.is_due());
        let last = returns.take();
        assert_eq!((last.extents.len(), last.rest), (5, true));
        assert!(!returns.is_due());
    }

    #[test]
    fn a_client_that_leaves_says_so_once_and_is_heard_later_where_nothing_can_be_sent() {
        let returns = Returns::default();
        assert!(returns.add(Returned::Rest));
        let batch = returns.take();
        assert!(batch.rest && !returns.is_due());
        returns.put_back(batch);
        assert!(returns.add(Returned::Extent { ticket: 1 }));
        let mut out = Vec::new();
        returns.take().encode(&mut out);
        let mut both = Vec::new();
        Request::ReleaseExtent { ticket: 1 }.encode(&mut both);
        Request::Leave.encode(&mut both);
        assert_eq!(out, both);
        assert!(!returns.take().rest);
    }

    #[test]
    fn reads_and_extents_go_back_at_once_and_what_was_not_sent_stays() {
        let returns = Returns::default();
        assert!(returns.add(Returned::Read { ticket: 5 }));
        assert!(returns.add(Returned::Extent { ticket: 6 }));
        let batch = returns.take();
        returns.put_back(batch);
        assert!(!returns.is_due(), "it waits for the next");
        assert!(returns.try_again() && returns.is_due());
        let batch = returns.take();
        assert!(!returns.try_again(), "nothing was put back");
        returns.put_back(batch);
        assert!(returns.add(Returned::Read { ticket: 7 }));
        let batch = returns.take();
        assert_eq!((batch.pins, batch.extents), (vec![5, 7], vec![6]));
    }
}
