//! What an arena holds, kept up to date with every step.

use crate::BlockState;

/// What an arena holds now, bytes of whole blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Length of all slabs in use.
    pub arena_bytes: u64,
    /// Length of slabs that are being made: they take budget, and hold no block yet.
    pub reserved_bytes: u64,
    /// Slabs in use.
    pub slabs: u64,
    /// Blocks that are leased.
    pub leased_bytes: u64,
    /// Blocks that an engine call may write.
    pub in_flight_bytes: u64,
    /// Blocks that a given-up transfer may still write.
    pub quarantined_bytes: u64,
    /// The rest of the slabs.
    pub free_bytes: u64,
    /// Longest free range that one request can have.
    pub largest_free: u64,
    /// Blocks that are out.
    pub blocks: u64,
}

impl Usage {
    /// Sum of two kinds; the longest free range is the longer of both.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            arena_bytes: self.arena_bytes + other.arena_bytes,
            reserved_bytes: self.reserved_bytes + other.reserved_bytes,
            slabs: self.slabs + other.slabs,
            leased_bytes: self.leased_bytes + other.leased_bytes,
            in_flight_bytes: self.in_flight_bytes + other.in_flight_bytes,
            quarantined_bytes: self.quarantined_bytes + other.quarantined_bytes,
            free_bytes: self.free_bytes + other.free_bytes,
            largest_free: self.largest_free.max(other.largest_free),
            blocks: self.blocks + other.blocks,
        }
    }
}

/// Running sums of one kind of slabs: what is not a sum in `held` stays 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    held: Usage,
    reserved_slabs: u64,
}

impl Counters {
    pub(super) fn reserve(&mut self, len: u64) {
        self.held.reserved_bytes += len;
        self.reserved_slabs += 1;
    }

    pub(super) fn cancel(&mut self, len: u64) {
        assert!(self.held.reserved_bytes >= len && self.reserved_slabs > 0);
        self.held.reserved_bytes -= len;
        self.reserved_slabs -= 1;
    }

    pub(super) fn admit(&mut self, len: u64) {
        self.cancel(len);
        self.held.arena_bytes += len;
        self.held.slabs += 1;
    }

    pub(super) fn remove(&mut self, len: u64) {
        assert!(self.free_bytes() >= len && self.held.slabs > 0);
        self.held.arena_bytes -= len;
        self.held.slabs -= 1;
    }

    /// A free block -> in flight.
    pub(super) fn acquire(&mut self, len: u64) {
        debug_assert!(len <= self.free_bytes());
        self.held.in_flight_bytes += len;
        self.held.blocks += 1;
    }

    pub(super) fn change(&mut self, from: BlockState, to: BlockState, len: u64) {
        debug_assert!(*self.bytes_in(from) >= len);
        *self.bytes_in(from) -= len;
        *self.bytes_in(to) += len;
    }

    /// A block that is out -> free.
    pub(super) fn release(&mut self, from: BlockState, len: u64) {
        debug_assert!(*self.bytes_in(from) >= len && self.held.blocks > 0);
        *self.bytes_in(from) -= len;
        self.held.blocks -= 1;
    }

    /// Bytes of blocks that are out.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held.leased_bytes + self.held.in_flight_bytes + self.held.quarantined_bytes
    }

    pub(super) fn free_bytes(&self) -> u64 {
        debug_assert!(self.held_bytes() <= self.held.arena_bytes);
        self.held.arena_bytes - self.held_bytes()
    }

    pub(super) fn quarantined_bytes(&self) -> u64 {
        self.held.quarantined_bytes
    }

    /// Bytes of slabs, made or being made: what counts against the budget.
    pub(super) fn committed_bytes(&self) -> u64 {
        self.held.arena_bytes + self.held.reserved_bytes
    }

    /// Slabs, made or being made.
    pub(super) fn slab_count(&self) -> u64 {
        self.held.slabs + self.reserved_slabs
    }

    pub(super) fn usage(&self, largest_free: u64) -> Usage {
        Usage {
            free_bytes: self.free_bytes(),
            largest_free,
            ..self.held
        }
    }

    fn bytes_in(&mut self, state: BlockState) -> &mut u64 {
        match state {
            BlockState::InFlight => &mut self.held.in_flight_bytes,
            BlockState::Leased => &mut self.held.leased_bytes,
            BlockState::Quarantined => &mut self.held.quarantined_bytes,
            BlockState::Free => unreachable!("free bytes are the rest of the slabs"),
        }
    }
}
