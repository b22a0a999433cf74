//! Slabs of the client's own arena: blocks of the daemon's.
//!
//! The pool makes a slab on a thread of its own, which waits as long as the daemon takes. A daemon with an engine
//! behind it may have to register memory first. A stopped daemon does not answer.
use super::messages::unexpected;
use super::returns::Returned;
use super::session::Session;
use crate::wire::{Answer, Request, Reservation};
use std::sync::Arc;
use tensorlease_engine::Fault;
use tensorlease_memory::{NoSlab, Region, SlabMemory, SlabSource, lock};

/// Makes a client's slabs.
pub(super) struct Extents {
    session: Arc<Session>,
}

impl Extents {
    pub(super) fn of(session: &Arc<Session>) -> Self {
        Self {
            session: Arc::clone(session),
        }
    }
}

impl SlabSource for Extents {
    fn make(&self, len: usize) -> Result<SlabMemory, NoSlab> {
        let session = &self.session;
        let request = Request::Extent { len: len as u64 };
        let answer = session.ask(&request, |answer, session| match answer {
            Answer::Extent {
                reservation: Reservation::Block { ticket, position },
            } => {
                let mut slabs = session.slabs();
                let (shown, start) = slabs.find(position)?;
                Ok(Ok((ticket, Arc::clone(shown.mapping()), start)))
            }
            Answer::Extent {
                reservation: Reservation::Full { free },
            } => Ok(Err(NoSlab::Full { free })),
            Answer::NoExtent { why, registration } => Ok(Err(NoSlab::Refused {
                why: format!("the host's daemon can't have more: {why}"),
                registration,
            })),
            other => Err(unexpected(&other)),
        });
        let gone = |fault: Fault| NoSlab::Gone {
            why: fault.message.into_owned(),
        };
        let (ticket, mapping, start) = answer.map_err(gone)??;
        let addr = mapping.region().addr + start;
        let region = Region { addr, len };
        lock(&session.lent).insert(region, ticket);
        let extent = Arc::new(Extent {
            session: Arc::clone(session),
            region,
            ticket,
        });
        let slab = SlabMemory::part(mapping, start..start + len, extent);
        slab.populate()?;
        Ok(slab)
    }
}

/// Goes back to the daemon when the slab's last block has gone. The last extent lets go of the connection.
struct Extent {
    session: Arc<Session>,
    /// Where it lies here.
    region: Region,
    ticket: u64,
}

impl Drop for Extent {
    /// If the store is closed already, this runs in the thread that drops the slab's last tensor.
    fn drop(&mut self) {
        if self.session.is_own() {
            lock(&self.session.lent).remove(self.region);
        }
        self.session.give_back(Returned::Extent { ticket: self.ticket });
    }
}
