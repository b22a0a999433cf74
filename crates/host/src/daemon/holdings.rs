//! What one client holds. Everything goes back when it is dropped.
use super::extent::Extent;
use super::object::Object;
use super::violation::ProtocolViolation;
use crate::wire::ClientRow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tensorlease_arena::SlabId;
use tensorlease_memory::InFlight;

/// Objects under one ticket.
#[derive(Debug)]
pub(super) enum Pins {
    One(Arc<Object>),
    Batch(Vec<Arc<Object>>),
}

impl Pins {
    fn objects(&self) -> &[Arc<Object>] {
        match self {
            Self::One(object) => std::slice::from_ref(object),
            Self::Batch(objects) => objects,
        }
    }
}

/// Tickets are numbered per session and never used twice, so an old ticket names nothing.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    tickets: u64,
    pins: HashMap<u64, Pins>,
    reserved: HashMap<u64, InFlight>,
    /// A transfer holds its extent too. One that outlives the client keeps the memory from others.
    extents: HashMap<u64, Arc<Extent>>,
    /// Slabs whose descriptors the client has got.
    shown: HashSet<SlabId>,
    /// The client asks for nothing more.
    left: bool,
    /// The client's connection or its process has ended. Nothing is added any more. What is held then is quarantined
    /// while the process lives, which may still touch it.
    closed: bool,
    /// What the client has read and written since it came, and what is moved for it.
    pub(super) counted: ClientRow,
}

impl Holdings {
    /// Takes the next `count` tickets. Returns the first of them.
    fn tickets(&mut self, count: usize) -> u64 {
        let first = self.tickets + 1;
        self.tickets += count as u64;
        first
    }

    /// Holds the objects of one request, `None` where there is none. They get one ticket, or one for each place in the
    /// list.
    pub(super) fn pin(&mut self, objects: Vec<Option<Arc<Object>>>, separate: bool) -> u64 {
        for object in objects.iter().flatten() {
            self.counted.read_objects += 1;
            self.counted.read_bytes += object.len;
        }
        let ticket = self.tickets(if separate { objects.len() } else { 1 });
        if self.closed {
            return ticket;
        }
        if separate {
            let places = (ticket..).zip(objects);
            let there = places.filter_map(|(ticket, object)| Some((ticket, Pins::One(object?))));
            self.pins.extend(there);
        } else {
            let there: Vec<Arc<Object>> = objects.into_iter().flatten().collect();
            if !there.is_empty() {
                self.pins.insert(ticket, Pins::Batch(there));
            }
        }
        ticket
    }

    /// The objects are returned so that their memory goes back outside the lock.
    pub(super) fn unpin(&mut self, ticket: u64) -> Result<Pins, ProtocolViolation> {
        self.pins.remove(&ticket).ok_or(ProtocolViolation::NOT_ITS_OWN)
    }

    pub(super) fn reserve(&mut self, block: InFlight) -> u64 {
        let ticket = self.tickets(1);
        if !self.closed {
            self.reserved.insert(ticket, block);
        }
        ticket
    }

    pub(super) fn take_reserved(&mut self, ticket: u64) -> Result<InFlight, ProtocolViolation> {
        self.reserved.remove(&ticket).ok_or(ProtocolViolation::NOT_ITS_OWN)
    }

    /// Puts back what was taken under the same lock.
    pub(super) fn put_back(&mut self, ticket: u64, block: InFlight) {
        self.reserved.insert(ticket, block);
    }

    pub(super) fn lend(&mut self, extent: Extent) -> u64 {
        let ticket = self.tickets(1);
        if !self.closed {
            self.extents.insert(ticket, Arc::new(extent));
        }
        ticket
    }

    pub(super) fn take_extent(&mut self, ticket: u64) -> Result<Arc<Extent>, ProtocolViolation> {
        self.extents.remove(&ticket).ok_or(ProtocolViolation::NOT_ITS_OWN)
    }

    /// An extent for as long as a transfer in it runs.
    pub(super) fn extent(&self, ticket: u64) -> Result<Arc<Extent>, ProtocolViolation> {
        self.extents.get(&ticket).cloned().ok_or(ProtocolViolation::NOT_ITS_OWN)
    }

    /// True the first time.
    pub(super) fn show(&mut self, slab: SlabId) -> bool {
        self.shown.insert(slab)
    }

    /// What a client that asks for nothing more gives back.
    pub(super) fn leave(&mut self) -> impl Sized + use<> {
        self.left = true;
        std::mem::take(&mut self.reserved)
    }

    /// Adds nothing any more. True: it holds nothing.
    pub(super) fn close(&mut self) -> bool {
        self.closed = true;
        self.is_empty()
    }

    /// Takes everything: the process is dead. The extents come apart from the rest, because transfers may still run in
    /// them.
    pub(super) fn end(&mut self) -> (impl Sized + use<>, Vec<Arc<Extent>>) {
        self.closed = true;
        let rest = (std::mem::take(&mut self.pins), std::mem::take(&mut self.reserved));
        (rest, std::mem::take(&mut self.extents).into_values().collect())
    }

    /// Does it hold memory that its process may touch?
    pub(super) fn is_empty(&self) -> bool {
        self.pins.is_empty() && self.reserved.is_empty() && self.extents.is_empty()
    }

    /// Does the client ask for nothing more?
    pub(super) fn has_left(&self) -> bool {
        self.left || self.closed
    }

    /// Has the client left and given back everything?
    pub(super) fn is_over(&self) -> bool {
        self.left && self.is_empty()
    }

    /// What it holds, in numbers.
    pub(super) fn row(&self) -> ClientRow {
        let pinned = || self.pins.values().flat_map(Pins::objects);
        ClientRow {
            quarantined: self.closed,
            extent_bytes: self.extents.values().map(|extent| extent.len()).sum(),
            pinned_bytes: pinned().map(|object| object.len).sum(),
            pinned_objects: pinned().count() as u64,
            reserved_bytes: self.reserved.values().map(|block| block.block().len).sum(),
            ..self.counted
        }
    }
}
