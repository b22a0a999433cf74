//! Slabs of the client's own arena: blocks of the daemon's.
//!
//! A slab is made in the thread of whoever needs it, who may want to give up long before a daemon that is stopped answers. So a thread asks, and a
//! slab that comes too late goes back.
use super::returns::Returned;
use super::session::Session;
use crate::wire::{Answer, Request, Reservation};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tensorlease_engine::Fault;
use tensorlease_memory::{MapError, Region, SlabMemory, SlabSource};

/// A daemon answers within microseconds. Without a slab by then a call goes on as if there were no memory for one.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// The thread that asks needs next to nothing.
const STACK_BYTES: usize = 64 << 10;

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
    fn make(&self, len: usize) -> Result<Option<SlabMemory>, MapError> {
        let failed = |source: std::io::Error| MapError::Map { len, source };
        let (sender, answered) = mpsc::channel();
        let session = Arc::clone(&self.session);
        std::thread::Builder::new()
            .name("tensorlease-extent".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // Nobody takes it where the wait has ended: it is dropped here, and so goes back.
                let _late = sender.send(lent(&session, len));
            })
            .map_err(failed)?;
        match answered.recv_timeout(ANSWER_MAX) {
            Ok(Ok(Some(slab))) => {
                slab.populate()?;
                Ok(Some(slab))
            }
            Ok(Ok(None)) => Ok(None),
            Ok(Err(fault)) => Err(failed(std::io::Error::other(fault.message.into_owned()))),
            Err(_) => {
                log::debug!("the host's daemon has not answered within {ANSWER_MAX:?}: no slab of {len} bytes now");
                Ok(None)
            }
        }
    }
}

fn lent(session: &Arc<Session>, len: usize) -> Result<Option<SlabMemory>, Fault> {
    let request = Request::Extent { len: len as u64 };
    let answer = session.ask(&request, |answer, session| match answer {
        Answer::Extent {
            reservation: Reservation::Block { ticket, position },
        } => {
            let mut slabs = session.slabs();
            let (shown, start) = slabs.find(position)?;
            Ok(Some((ticket, Arc::clone(shown.mapping()), start)))
        }
        Answer::Extent {
            reservation: Reservation::Full { .. },
        } => Ok(None),
        other => Err(super::unexpected(&other)),
    });
    let Some((ticket, mapping, start)) = answer? else {
        return Ok(None);
    };
    let addr = mapping.region().addr + start;
    session.lent().add(Region { addr, len }, ticket);
    let extent = Arc::new(Extent {
        session: Arc::clone(session),
        addr,
        ticket,
    });
    Ok(Some(SlabMemory::part(mapping, start..start + len, extent)))
}

/// Goes back to the daemon when the slab's last block has gone. With it, the last of them lets go of the connection.
struct Extent {
    session: Arc<Session>,
    /// Where it lies here.
    addr: usize,
    ticket: u64,
}

impl Drop for Extent {
    /// Where the store is closed already, this runs in the thread that drops the slab's last tensor.
    fn drop(&mut self) {
        if self.session.is_own() {
            self.session.lent().remove(self.addr);
        }
        self.session.give_back(Returned::Extent { ticket: self.ticket });
    }
}
