//! A slab that the daemon has shown, and which parts of it this process has touched.
use super::messages::unavailable;
use crate::wire::Position;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tensorlease_engine::Fault;
use tensorlease_memory::Mapping;

/// One bit is kept for so many bytes.
const PART_BYTES: usize = 64 << 10;

/// The first write to each page of shared memory is a page fault. A part that is written for the first time is made
/// present in one call instead. Later writes cost nothing.
#[derive(Debug)]
pub(super) struct Shown {
    mapping: Arc<Mapping>,
    touched: Box<[AtomicU64]>,
}

impl Shown {
    pub(super) fn new(mapping: Mapping) -> Self {
        let words = mapping.len().div_ceil(PART_BYTES * 64);
        Self {
            mapping: Arc::new(mapping),
            touched: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Where in this slab these bytes begin. The daemon says that they lie in it.
    pub(super) fn start_of(&self, position: Position) -> Result<usize, Fault> {
        let end = position.offset.checked_add(position.len).ok_or_else(never_shown)?;
        if (self.mapping.len() as u64) < end {
            return Err(never_shown());
        }
        usize::try_from(position.offset).map_err(|_| never_shown())
    }

    /// Prepares for a write of `range`. A small range is left to its few faults.
    pub(super) fn prepare(&self, range: Range<usize>) {
        // Parts that lie in the range as a whole.
        let parts = range.start.div_ceil(PART_BYTES)..range.end / PART_BYTES;
        if parts.is_empty() || parts.clone().all(|part| self.is_touched(part)) {
            return;
        }
        self.mapping.prefault(range);
        for part in parts {
            self.touched[part / 64].fetch_or(1 << (part % 64), Relaxed);
        }
    }

    /// It is only a hint. Two threads that find a part untouched both make it present.
    fn is_touched(&self, part: usize) -> bool {
        self.touched[part / 64].load(Relaxed) & (1 << (part % 64)) != 0
    }
}

/// The daemon named memory that it never showed. It is not to be trusted.
pub(super) fn never_shown() -> Fault {
    unavailable("the daemon named memory that it never showed; restart it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlease_memory::MappingKind;

    #[test]
    fn whole_parts_of_a_range_are_touched_once() {
        let shown = Shown::new(Mapping::new(MappingKind::Anonymous, 200 * PART_BYTES).unwrap());
        shown.prepare(10..PART_BYTES);
        assert!(!shown.is_touched(0), "less than a part is left alone");
        shown.prepare(PART_BYTES / 2..100 * PART_BYTES + 1);
        assert!(!shown.is_touched(0) && !shown.is_touched(100));
        assert!((1..100).all(|part| shown.is_touched(part)));
        shown.prepare(0..200 * PART_BYTES);
        assert!((0..200).all(|part| shown.is_touched(part)));
    }
}
