//! Slabs, blocks and their states: the whole bookkeeping of one arena. No pointers, no clock, no threads.

mod acquire_error;
mod block_table;
mod slab_table;
mod usage;

pub use acquire_error::AcquireError;
pub use usage::Usage;

use crate::size_class::granules;
use crate::{Block, BlockId, BlockState, Budget, GRANULE_BYTES, OffsetAllocator, SlabId, SlabKind};
use block_table::BlockTable;
use slab_table::{Slab, SlabTable};
use usage::Counters;

/// A handle that names no block, or one in a state which the step does not allow.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("block handle {index}.{generation} can't take this step ({})", state_text(*found), index = id.index, generation = id.generation)]
pub struct StaleBlock {
    /// The refused handle.
    pub id: BlockId,
    /// State of the block; `None` when the handle is stale.
    pub found: Option<BlockState>,
}

fn state_text(found: Option<BlockState>) -> &'static str {
    match found {
        None | Some(BlockState::Free) => "it was released before; use each handle once",
        Some(BlockState::InFlight) => "its block is in flight; wait until the engine call has returned",
        Some(BlockState::Leased) => "its block is leased; release it instead",
        Some(BlockState::Quarantined) => "its block is quarantined; close the engine client first",
    }
}

/// A slab that can't be removed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("slab {number} still holds {held} bytes; release its blocks first", number = slab.0)]
pub struct SlabBusy {
    /// The slab.
    pub slab: SlabId,
    /// Bytes of its blocks that are out; its whole length while it is being made.
    pub held: u64,
}

/// All slabs and blocks of one arena. It holds no memory itself: whoever owns the mappings puts it behind a lock of its own.
#[derive(Debug)]
pub struct Arena {
    budget: Budget,
    slabs: SlabTable,
    blocks: BlockTable,
    lease: Counters,
    bounce: Counters,
}

impl Arena {
    /// An arena without slabs.
    ///
    /// # Panics
    /// When the fields of `budget` contradict each other; [`Budget::new`] and its siblings make none such.
    pub fn new(budget: Budget) -> Self {
        budget.check();
        Self {
            budget,
            slabs: SlabTable::default(),
            blocks: BlockTable::new(),
            lease: Counters::default(),
            bounce: Counters::default(),
        }
    }

    /// Its limits.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Length, bytes, of the next slab of `kind`, for a request whose missing blocks sum to `missing_bytes` and the largest of
    /// which takes `largest_block` bytes.
    ///
    /// Lease slabs double from `slab_bytes_first` to `slab_bytes_max`, and are longer where the missing bytes need it, up to
    /// `slab_bytes_max`; a block larger than that gets a slab of its own size. Whole pages, never beyond the budget, of which
    /// slabs that are only reserved count too. The bounce reserve is one slab.
    ///
    /// `None`: the rest of the budget holds no slab for `largest_block`; see [`Self::slabs_to_give_up`].
    pub fn next_slab_len(&self, kind: SlabKind, missing_bytes: u64, largest_block: u64) -> Option<u64> {
        let page = self.budget.page_bytes;
        let left = self.growable_bytes(kind);
        let least = largest_block.max(1).checked_next_multiple_of(page)?;
        if least > left {
            return None;
        }
        let len = match kind {
            SlabKind::Bounce => left,
            SlabKind::Lease => {
                let most = self.budget.slab_bytes_max;
                let doubled = self
                    .budget
                    .slab_bytes_first
                    .saturating_mul(1 << self.lease.slab_count().min(32));
                let wanted = doubled.max(missing_bytes).min(most).max(least).min(left);
                // Both `least` and `left` are whole pages, so rounding up stays between them.
                wanted
                    .checked_next_multiple_of(page)
                    .map_or(left, |rounded| rounded.min(left))
            }
        };
        assert!(len >= least && len <= left && len.is_multiple_of(page));
        Some(len)
    }

    /// The fewest bytes of empty slabs, shortest first, whose removal lets [`Self::next_slab_len`] answer for `largest_block`;
    /// no slab when it answers already. `None` when giving up all of them would not help.
    ///
    /// `lender_left`: bytes that the lender of the memory has left, which is where they go; `u64::MAX` where nobody lends it.
    pub fn slabs_to_give_up(&self, kind: SlabKind, largest_block: u64, lender_left: u64) -> Option<Vec<SlabId>> {
        let least = largest_block.max(1).checked_next_multiple_of(self.budget.page_bytes)?;
        let mut left = self.growable_bytes(kind).min(lender_left);
        let mut empty: Vec<_> = self
            .slabs
            .iter()
            .filter(|slab| slab.kind == kind && slab.is_empty())
            .collect();
        empty.sort_by_key(|slab| slab.len);
        let mut given_up = Vec::new();
        for slab in empty {
            if left >= least {
                break;
            }
            left += slab.len;
            given_up.push(slab.id);
        }
        debug_assert!(left <= self.kind_bytes(kind));
        (left >= least).then_some(given_up)
    }

    /// Takes budget for a slab that is about to be made (outside any lock), so that two readers don't both take the last of it.
    /// `None`: the budget does not allow it. Follow up with [`Self::admit_slab`] or [`Self::cancel_slab`].
    ///
    /// # Panics
    /// When `len` is not a whole number of pages, or 0.
    pub fn reserve_slab(&mut self, kind: SlabKind, len: u64) -> Option<SlabId> {
        assert!(
            len > 0 && len.is_multiple_of(self.budget.page_bytes),
            "a slab of {len} bytes is not whole pages"
        );
        if len > self.growable_bytes(kind) {
            return None;
        }
        self.counters_mut(kind).reserve(len);
        Some(self.slabs.insert(kind, len))
    }

    /// Gives the budget of a reserved slab back: it could not be made.
    ///
    /// # Panics
    /// When `slab` is not reserved.
    pub fn cancel_slab(&mut self, slab: SlabId) {
        let reserved = self.slabs.find(slab).is_some_and(|slab| slab.allocator.is_none());
        assert!(reserved, "{slab:?} is not reserved");
        let Slab { kind, len, .. } = self.slabs.remove(slab).expect("found just now");
        self.counters_mut(kind).cancel(len);
    }

    /// Lets blocks be handed out of a reserved slab: it is mapped, populated and registered.
    ///
    /// # Panics
    /// When `slab` is not reserved.
    pub fn admit_slab(&mut self, slab: SlabId) {
        let found = self.slabs.find_mut(slab).filter(|slab| slab.allocator.is_none());
        let slab = found.unwrap_or_else(|| panic!("{slab:?} is not reserved"));
        slab.allocator = Some(OffsetAllocator::new(slab.len));
        let (kind, len) = (slab.kind, slab.len);
        self.counters_mut(kind).admit(len);
    }

    /// Slabs with no block out, which may be removed: number, kind and length in bytes.
    pub fn empty_slabs(&self) -> Vec<(SlabId, SlabKind, u64)> {
        self.slabs
            .iter()
            .filter(|slab| slab.is_empty())
            .map(|slab| (slab.id, slab.kind, slab.len))
            .collect()
    }

    /// Removes an empty slab and returns its length in bytes: 0 when it has been removed before, so that two trims may run into
    /// each other.
    ///
    /// # Errors
    /// [`SlabBusy`] while blocks of it are out, or while it is being made.
    pub fn remove_slab(&mut self, slab: SlabId) -> Result<u64, SlabBusy> {
        let Some(found) = self.slabs.find(slab) else {
            return Ok(0);
        };
        let held = found
            .allocator
            .as_ref()
            .map_or(found.len, |allocator| found.len - allocator.free_bytes());
        if held > 0 {
            return Err(SlabBusy { slab, held });
        }
        let Slab { kind, len, .. } = self.slabs.remove(slab).expect("found just now");
        self.counters_mut(kind).remove(len);
        Ok(len)
    }

    /// Takes a free block of at least `len` bytes, at a multiple of `align` bytes from the start of its slab (and so of memory,
    /// up to the page size). It is in flight then. Slabs are tried in order, and never wait for one that is being made.
    ///
    /// # Errors
    /// See [`AcquireError`]; nothing has changed then.
    ///
    /// # Panics
    /// When `align` is not a power of two.
    pub fn acquire(&mut self, kind: SlabKind, len: u64, align: u64) -> Result<Block, AcquireError> {
        assert!(align.is_power_of_two(), "alignment {align} is not a power of two");
        let most = self.kind_bytes(kind);
        if len == 0 {
            return Err(AcquireError::ZeroBytes);
        }
        if granules(len) > most / GRANULE_BYTES {
            return Err(AcquireError::TooLarge { asked: len, most });
        }
        let room = self.counters(kind).free_bytes() >= len;
        let Some((slot, slab, allocation)) = room.then(|| self.slabs.allocate(kind, len, align)).flatten() else {
            return Err(self.no_block(kind, len));
        };
        let id = self.blocks.insert(slot, allocation);
        self.counters_mut(kind).acquire(allocation.len);
        Ok(Block {
            id,
            slab,
            offset: allocation.offset,
            len: allocation.len,
        })
    }

    /// In flight -> leased: the engine call has returned and its bytes are right.
    ///
    /// # Errors
    /// [`StaleBlock`] for a stale handle and for every other state.
    pub fn lease(&mut self, id: BlockId) -> Result<(), StaleBlock> {
        self.leave_flight(id, BlockState::Leased)
    }

    /// In flight -> quarantined: a transfer that was given up may still write it. Always allowed, because such memory can't
    /// be reused whatever the budget says.
    ///
    /// # Errors
    /// [`StaleBlock`] for a stale handle and for every other state.
    pub fn quarantine(&mut self, id: BlockId) -> Result<(), StaleBlock> {
        self.leave_flight(id, BlockState::Quarantined)
    }

    /// In flight or leased -> free.
    ///
    /// # Errors
    /// [`StaleBlock`] for a stale handle and for a quarantined block.
    pub fn release(&mut self, id: BlockId) -> Result<(), StaleBlock> {
        let found = self.blocks.get(id).map(|entry| entry.state);
        if !matches!(found, Some(BlockState::InFlight | BlockState::Leased)) {
            return Err(StaleBlock { id, found });
        }
        self.free(id);
        Ok(())
    }

    /// Quarantined -> free, all of them: the engine client that might still write is closed. Returns their bytes.
    pub fn end_quarantine(&mut self) -> u64 {
        let bytes = self.lease.quarantined_bytes() + self.bounce.quarantined_bytes();
        if bytes == 0 {
            return 0;
        }
        let quarantined: Vec<_> = self.blocks.in_state(BlockState::Quarantined).collect();
        for id in quarantined {
            self.free(id);
        }
        assert_eq!(self.lease.quarantined_bytes() + self.bounce.quarantined_bytes(), 0);
        bytes
    }

    /// State of a block; `Free` for a stale handle.
    pub fn state(&self, id: BlockId) -> BlockState {
        self.blocks.get(id).map_or(BlockState::Free, |entry| entry.state)
    }

    /// What the arena holds now, both kinds together.
    pub fn usage(&self) -> Usage {
        let largest = self
            .slabs
            .largest_free(SlabKind::Lease)
            .max(self.slabs.largest_free(SlabKind::Bounce));
        self.lease.usage(largest).plus(self.bounce.usage(largest))
    }

    /// What the slabs of one kind hold now.
    pub fn usage_of(&self, kind: SlabKind) -> Usage {
        self.counters(kind).usage(self.slabs.largest_free(kind))
    }

    /// Every block handle's index is below this: the size of a side table.
    pub fn block_index_limit(&self) -> u32 {
        self.blocks.len()
    }

    fn counters(&self, kind: SlabKind) -> &Counters {
        match kind {
            SlabKind::Lease => &self.lease,
            SlabKind::Bounce => &self.bounce,
        }
    }

    fn counters_mut(&mut self, kind: SlabKind) -> &mut Counters {
        match kind {
            SlabKind::Lease => &mut self.lease,
            SlabKind::Bounce => &mut self.bounce,
        }
    }

    /// Bytes that slabs of a kind may take together.
    fn kind_bytes(&self, kind: SlabKind) -> u64 {
        match kind {
            SlabKind::Lease => self.budget.lease_bytes(),
            SlabKind::Bounce => self.budget.bounce_bytes,
        }
    }

    /// Bytes that further slabs of a kind may take.
    fn growable_bytes(&self, kind: SlabKind) -> u64 {
        self.kind_bytes(kind) - self.counters(kind).committed_bytes()
    }

    /// Why there is no block.
    fn no_block(&self, kind: SlabKind, asked: u64) -> AcquireError {
        if self.next_slab_len(kind, asked, asked).is_some() {
            return AcquireError::NeedsSlab {
                asked,
                growable_bytes: self.growable_bytes(kind),
            };
        }
        let Usage {
            free_bytes: free,
            largest_free: largest,
            ..
        } = self.usage_of(kind);
        AcquireError::Exhausted {
            asked,
            free,
            largest,
            held: self.counters(kind).held_bytes(),
        }
    }

    fn leave_flight(&mut self, id: BlockId, state: BlockState) -> Result<(), StaleBlock> {
        let entry = match self.blocks.get(id) {
            Some(entry) if entry.state == BlockState::InFlight => *entry,
            other => {
                return Err(StaleBlock {
                    id,
                    found: other.map(|entry| entry.state),
                });
            }
        };
        self.blocks.set_state(id, state);
        let kind = self.slabs.holder_kind(entry.slot);
        self.counters_mut(kind)
            .change(BlockState::InFlight, state, entry.allocation.len);
        Ok(())
    }

    /// Frees a block that is out.
    fn free(&mut self, id: BlockId) {
        let entry = *self.blocks.get(id).expect("the caller has checked the handle");
        let (kind, allocator) = self.slabs.holder_mut(entry.slot);
        allocator
            .free(entry.allocation)
            .expect("a block that is out owns its allocation");
        self.blocks.remove(id);
        self.counters_mut(kind).release(entry.state, entry.allocation.len);
    }
}
