//! The slabs of one arena in a table of recycled slots: a block finds its slab by slot, people by [`SlabId`].

use crate::{Allocation, OffsetAllocator, SlabId, SlabKind};

/// One slab, made or being made.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) id: SlabId,
    pub(super) kind: SlabKind,
    pub(super) len: u64,
    /// `None` while it is only reserved: nothing can be handed out of it.
    pub(super) allocator: Option<OffsetAllocator>,
}

impl Slab {
    /// Admitted and with no block out.
    pub(super) fn is_empty(&self) -> bool {
        self.allocator.as_ref().is_some_and(OffsetAllocator::is_empty)
    }
}

#[derive(Debug, Default)]
pub(super) struct SlabTable {
    slots: Vec<Option<Slab>>,
    made: u32,
}

impl SlabTable {
    /// Adds a reserved slab under a number that was never used before.
    pub(super) fn insert(&mut self, kind: SlabKind, len: u64) -> SlabId {
        let id = SlabId(self.made);
        self.made = self
            .made
            .checked_add(1)
            .expect("fewer than 2^32 slabs in the life of an arena");
        let slab = Some(Slab {
            id,
            kind,
            len,
            allocator: None,
        });
        match self.slots.iter().position(Option::is_none) {
            Some(slot) => self.slots[slot] = slab,
            None => self.slots.push(slab),
        }
        debug_assert!(self.find(id).is_some());
        id
    }

    pub(super) fn find(&self, id: SlabId) -> Option<&Slab> {
        self.iter().find(|slab| slab.id == id)
    }

    pub(super) fn find_mut(&mut self, id: SlabId) -> Option<&mut Slab> {
        self.slots.iter_mut().flatten().find(|slab| slab.id == id)
    }

    pub(super) fn remove(&mut self, id: SlabId) -> Option<Slab> {
        let removed = self
            .slots
            .iter_mut()
            .find_map(|slot| slot.take_if(|slab| slab.id == id));
        debug_assert!(self.find(id).is_none());
        removed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slab> {
        self.slots.iter().flatten()
    }

    /// Takes a range from the first slab of a kind that has it, with the slot and number of that slab.
    pub(super) fn allocate(&mut self, kind: SlabKind, len: u64, align: u64) -> Option<(u32, SlabId, Allocation)> {
        (0_u32..).zip(&mut self.slots).find_map(|(slot, slab)| {
            let slab = slab.as_mut().filter(|slab| slab.kind == kind)?;
            let allocation = slab.allocator.as_mut()?.allocate(len, align)?;
            debug_assert!(
                allocation.offset + allocation.len <= slab.len,
                "no block crosses two slabs"
            );
            Some((slot, slab.id, allocation))
        })
    }

    /// The slab in a slot that holds a block.
    pub(super) fn holder_mut(&mut self, slot: u32) -> (SlabKind, &mut OffsetAllocator) {
        let slab = self.slots[slot as usize]
            .as_mut()
            .expect("a slab with a block out is not removed");
        let allocator = slab.allocator.as_mut().expect("blocks come from admitted slabs");
        (slab.kind, allocator)
    }

    /// Kind of the slab in a slot that holds a block.
    pub(super) fn holder_kind(&self, slot: u32) -> SlabKind {
        self.slots[slot as usize]
            .as_ref()
            .expect("a slab with a block out is not removed")
            .kind
    }

    /// Longest range that a slab of this kind serves.
    pub(super) fn largest_free(&self, kind: SlabKind) -> u64 {
        let slabs = self.iter().filter(|slab| slab.kind == kind);
        slabs
            .filter_map(|slab| slab.allocator.as_ref())
            .map(OffsetAllocator::largest_free)
            .max()
            .unwrap_or(0)
    }
}
