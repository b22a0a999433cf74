//! Slabs of the client's own arena: blocks of the daemon's.
use super::returns::Returned;
use super::session::Session;
use crate::wire::{Answer, Request, Reservation};
use std::sync::Arc;
use tensorlease_memory::{MapError, Region, SlabMemory, SlabSource};

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
        let request = Request::Extent { len: len as u64 };
        let lent = self.session.ask(&request, |answer, session| match answer {
            Answer::Extent {
                reservation: Reservation::Block { ticket, position },
            } => {
                let (shown, start) = session.memory(position)?;
                Ok(Some((ticket, Arc::clone(shown.mapping()), start)))
            }
            Answer::Extent {
                reservation: Reservation::Full { .. },
            } => Ok(None),
            other => Err(super::unexpected(&other)),
        });
        let lent = lent.map_err(|fault| MapError::Map {
            len,
            source: std::io::Error::other(fault.message.into_owned()),
        })?;
        let Some((ticket, mapping, start)) = lent else {
            return Ok(None);
        };
        let addr = mapping.region().addr + start;
        self.session.lent().add(Region { addr, len }, ticket);
        let extent = Arc::new(Extent {
            session: Arc::clone(&self.session),
            addr,
            ticket,
        });
        let memory = SlabMemory::part(mapping, start..start + len, extent);
        memory.populate()?;
        Ok(Some(memory))
    }
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
