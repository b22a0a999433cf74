//! Blocks that are out, in a table of recycled entries whose generations unmask stale handles.

use crate::{Allocation, BlockId, BlockState};

/// No entry: the end of the list of vacant ones.
const NONE: u32 = u32::MAX;

/// One block, or a vacant entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) allocation: Allocation,
    /// Slot of the slab that holds it.
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// `Free`: the entry is vacant.
    pub(super) state: BlockState,
    next_vacant: u32,
}

#[derive(Debug)]
pub(super) struct BlockTable {
    entries: Vec<Entry>,
    vacant: u32,
}

impl BlockTable {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            vacant: NONE,
        }
    }

    /// Adds a block in flight.
    pub(super) fn insert(&mut self, slot: u32, allocation: Allocation) -> BlockId {
        let entry = |generation| Entry {
            allocation,
            slot,
            generation,
            state: BlockState::InFlight,
            next_vacant: NONE,
        };
        if self.vacant == NONE {
            let index = u32::try_from(self.entries.len()).expect("a block takes a node, and nodes are fewer than 2^32");
            self.entries.push(entry(0));
            return BlockId { index, generation: 0 };
        }
        let index = self.vacant;
        let recycled = &mut self.entries[index as usize];
        debug_assert_eq!(recycled.state, BlockState::Free);
        let generation = recycled.generation;
        self.vacant = recycled.next_vacant;
        *recycled = entry(generation);
        BlockId { index, generation }
    }

    /// The block of a handle that is not stale.
    pub(super) fn get(&self, id: BlockId) -> Option<&Entry> {
        let entry = self.entries.get(id.index as usize)?;
        (entry.generation == id.generation && entry.state != BlockState::Free).then_some(entry)
    }

    /// Moves a live block to another state in which it is out.
    pub(super) fn set_state(&mut self, id: BlockId, state: BlockState) {
        let entry = &mut self.entries[id.index as usize];
        debug_assert_eq!(entry.generation, id.generation);
        debug_assert!(entry.state != BlockState::Free && state != BlockState::Free);
        entry.state = state;
    }

    /// Vacates the entry of a live block and makes every handle of it stale.
    pub(super) fn remove(&mut self, id: BlockId) {
        let entry = &mut self.entries[id.index as usize];
        debug_assert_eq!(entry.generation, id.generation);
        debug_assert_ne!(entry.state, BlockState::Free);
        entry.state = BlockState::Free;
        // An entry that has used up its generations is retired: a handle of the first one would look fresh again.
        if let Some(generation) = entry.generation.checked_add(1) {
            entry.generation = generation;
            entry.next_vacant = self.vacant;
            self.vacant = id.index;
        }
    }

    /// Handles of all blocks in a state in which they are out.
    pub(super) fn in_state(&self, state: BlockState) -> impl Iterator<Item = BlockId> {
        debug_assert_ne!(state, BlockState::Free);
        let entries = (0_u32..)
            .zip(&self.entries)
            .filter(move |(_, entry)| entry.state == state);
        entries.map(|(index, entry)| BlockId {
            index,
            generation: entry.generation,
        })
    }

    /// Entries, vacant ones too.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).expect("indices are 32 bits wide")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOCATION: Allocation = Allocation {
        offset: 0,
        len: 64,
        node: 0,
        generation: 0,
    };

    #[test]
    fn an_entry_is_recycled_under_another_generation() {
        let mut table = BlockTable::new();
        let first = table.insert(0, ALLOCATION);
        table.remove(first);
        let second = table.insert(0, ALLOCATION);
        assert_eq!((second.index, second.generation), (first.index, first.generation + 1));
        assert!(table.get(first).is_none());
        assert!(table.get(second).is_some());
    }

    #[test]
    fn an_entry_without_a_fresh_generation_is_retired() {
        let mut table = BlockTable::new();
        let first = table.insert(0, ALLOCATION);
        table.entries[0].generation = u32::MAX;
        let last = BlockId {
            generation: u32::MAX,
            ..first
        };
        table.remove(last);
        assert!(table.get(last).is_none());
        assert_eq!(
            table.insert(0, ALLOCATION),
            BlockId {
                index: 1,
                generation: 0
            }
        );
    }
}
