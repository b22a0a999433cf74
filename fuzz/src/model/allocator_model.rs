//! The allocator beside an ordered map of extents.

use arbitrary::Arbitrary;
use std::collections::{BTreeMap, VecDeque};
use tensorlease_arena::{Allocation, FreeError, OffsetAllocator, block_len};

/// Freed allocations kept to be freed again.
const STALE_MAX: usize = 64;

/// Steps between two comparisons of all gaps, which take time in proportion to what is held.
const STEPS_PER_CHECK: u64 = 32;

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum AllocatorOperation {
    /// `len >> len_shift` bytes, so that short requests are as likely as long ones.
    Allocate {
        len: u32,
        len_shift: u8,
        align_shift: u8,
    },
    /// As many bytes as the allocator says it can serve.
    AllocateLargest,
    Free {
        which: u16,
    },
    /// Frees something that was freed before.
    FreeStale {
        which: u16,
    },
    FreeAll,
}

pub struct AllocatorModel {
    allocator: OffsetAllocator,
    held: Vec<Allocation>,
    /// Length of each extent by its offset.
    extents: BTreeMap<u64, u64>,
    held_bytes: u64,
    stale: VecDeque<Allocation>,
    steps: u64,
}

impl AllocatorModel {
    pub fn new(capacity: u64) -> Self {
        let allocator = OffsetAllocator::new(capacity);
        assert_eq!(allocator.capacity(), capacity / 64 * 64);
        let extents = BTreeMap::new();
        Self {
            allocator,
            held: Vec::new(),
            extents,
            held_bytes: 0,
            stale: VecDeque::new(),
            steps: 0,
        }
    }

    pub fn step(&mut self, operation: &AllocatorOperation) {
        match *operation {
            AllocatorOperation::Allocate {
                len,
                len_shift,
                align_shift,
            } => {
                self.allocate(u64::from(len >> (len_shift % 32)), 1 << (align_shift % 20));
            }
            AllocatorOperation::AllocateLargest => self.allocate_largest(),
            AllocatorOperation::Free { which } => self.free(which.into()),
            AllocatorOperation::FreeStale { which } => self.free_stale(which.into()),
            AllocatorOperation::FreeAll => self.free_all(),
        }
        assert_eq!(self.allocator.free_bytes(), self.allocator.capacity() - self.held_bytes);
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_CHECK) {
            self.compare_gaps();
        }
    }

    /// Frees everything: the slab must be one range again.
    pub fn finish(&mut self) {
        self.compare_gaps();
        self.free_all();
    }

    pub fn held_count(&self) -> usize {
        self.held.len()
    }

    fn allocate(&mut self, len: u64, align: u64) {
        match self.allocator.allocate(len, align) {
            Some(allocation) => {
                assert!(
                    allocation.len >= len && Some(allocation.len) <= block_len(len),
                    "{allocation:?} for {len}"
                );
                assert!(allocation.offset.is_multiple_of(align) && allocation.offset.is_multiple_of(64));
                self.take(allocation);
            }
            None => self.assert_no_room(len, align),
        }
    }

    fn allocate_largest(&mut self) {
        let len = self.allocator.largest_free();
        match self.allocator.allocate(len, 64) {
            Some(allocation) => {
                assert_eq!(allocation.len, len, "the largest range is served whole");
                self.take(allocation);
            }
            None => assert_eq!(len, 0, "the largest range is served"),
        }
    }

    fn take(&mut self, allocation: Allocation) {
        let end = allocation.offset + allocation.len;
        assert!(end <= self.allocator.capacity());
        let before = self.extents.range(..=allocation.offset).next_back();
        assert!(
            before.is_none_or(|(&offset, &len)| offset + len <= allocation.offset),
            "overlaps what lies before"
        );
        let after = self.extents.range(allocation.offset..).next();
        assert!(
            after.is_none_or(|(&offset, _)| end <= offset),
            "overlaps what lies after"
        );
        self.extents.insert(allocation.offset, allocation.len);
        self.held_bytes += allocation.len;
        self.held.push(allocation);
    }

    fn free(&mut self, which: usize) {
        if self.held.is_empty() {
            return;
        }
        let allocation = self.held.swap_remove(which % self.held.len());
        self.allocator.free(allocation).expect("a held allocation can be freed");
        assert_eq!(self.extents.remove(&allocation.offset), Some(allocation.len));
        self.held_bytes -= allocation.len;
        if self.stale.len() == STALE_MAX {
            self.stale.pop_front();
        }
        self.stale.push_back(allocation);
    }

    fn free_stale(&mut self, which: usize) {
        if !self.stale.is_empty() {
            let allocation = self.stale[which % self.stale.len()];
            assert_eq!(self.allocator.free(allocation), Err(FreeError::Stale));
        }
    }

    fn free_all(&mut self) {
        while !self.held.is_empty() {
            self.free(self.held.len() - 1);
        }
        assert!(self.allocator.is_empty() && self.extents.is_empty());
        assert_eq!(
            self.allocator.largest_free(),
            self.allocator.capacity(),
            "all ranges are merged"
        );
    }

    /// Lengths of the maximal free ranges, and the start of each.
    fn gaps(&self) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut end = 0;
        for (&offset, &len) in self.extents.iter().chain([(&self.allocator.capacity(), &0)]) {
            if offset > end {
                gaps.push((end, offset - end));
            }
            end = offset + len;
        }
        gaps
    }

    fn compare_gaps(&self) {
        let gaps = self.gaps();
        let longest = gaps.iter().map(|&(_, len)| len).max().unwrap_or(0);
        let largest_free = self.allocator.largest_free();
        assert!(
            gaps.iter().any(|&(_, len)| len == largest_free) || largest_free == 0,
            "it is a maximal range"
        );
        assert!(
            largest_free >= longest - longest / 8,
            "{largest_free} is of the highest class, {longest} is longest"
        );
        if gaps.len() <= 16 {
            assert_eq!(largest_free, longest, "few ranges are all looked at");
        }
    }

    fn assert_no_room(&self, len: u64, align: u64) {
        let least = len.next_multiple_of(64);
        let gaps = self.gaps();
        let fits = |&&(start, gap): &&(u64, u64)| start.next_multiple_of(align.max(64)) + least <= start + gap;
        if len > 0 && gaps.len() <= 16 {
            assert_eq!(
                gaps.iter().find(fits),
                None,
                "few ranges are all looked at, for {len} bytes at {align}"
            );
        }
        let ample = block_len(len).and_then(|block| block_len(block + align));
        if let Some(ample) = ample {
            assert!(
                gaps.iter().all(|&(_, gap)| gap < ample),
                "a range past the next class is always found"
            );
        }
    }
}
