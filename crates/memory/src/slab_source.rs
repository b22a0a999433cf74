//! Where the memory of slabs comes from, and a range of a mapping that serves as one.

use crate::{MapError, Mapping, MappingKind, Region, Source, Target, limits};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Makes the memory of slabs, instead of a mapping that the pool makes for each.
pub trait SlabSource: Send + Sync {
    /// Memory of exactly `len` bytes (whole pages), readable and writable, nobody else's while it lives. May take long.
    ///
    /// # Errors
    /// [`NoSlab`]
    fn make(&self, len: usize) -> Result<SlabMemory, NoSlab>;
}

/// Why a source has no such slab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoSlab {
    /// There is no room just now; a shorter slab may find some.
    #[error("there is no room for it")]
    Full {
        /// Bytes that are free, perhaps in pieces.
        free: u64,
    },
    /// What the source has is used up, and it is refused more; a shorter slab may find room in what it has.
    #[error("{why}")]
    Refused {
        /// In words.
        why: String,
        /// It was a registration that was refused, and not the memory.
        registration: bool,
    },
    /// The source is gone for good.
    #[error("{why}")]
    Gone {
        /// In words.
        why: String,
    },
    /// The memory can't be mapped here.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Whole pages of a mapping, which they keep alive, and what gives them back to their owner.
#[derive(Clone)]
pub struct SlabMemory {
    mapping: Arc<Mapping>,
    start: usize,
    len: usize,
    /// Dropped with the last clone, and after nobody can touch the memory any more.
    keeper: Option<Arc<dyn Any + Send + Sync>>,
}

impl SlabMemory {
    /// All of a mapping.
    pub fn whole(mapping: Arc<Mapping>) -> Self {
        let len = mapping.len();
        Self {
            mapping,
            start: 0,
            len,
            keeper: None,
        }
    }

    /// The bytes `range` of a mapping, which are nobody else's until `keeper` is dropped. Panics when the range is empty, out of bounds or not
    /// whole pages.
    pub fn part(mapping: Arc<Mapping>, range: Range<usize>, keeper: Arc<dyn Any + Send + Sync>) -> Self {
        let page = limits::page_bytes();
        assert!(
            range.start < range.end && range.end <= mapping.len(),
            "{range:?} of {} bytes",
            mapping.len()
        );
        assert!(
            range.start.is_multiple_of(page) && range.end.is_multiple_of(page),
            "{range:?} is not whole pages"
        );
        Self {
            mapping,
            start: range.start,
            len: range.len(),
            keeper: Some(keeper),
        }
    }

    /// The address range.
    pub fn region(&self) -> Region {
        Region::of(self.base(), self.len)
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// What it lies in.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The bytes `range` of this memory, to be written by a transfer. Panics when the range is out of bounds.
    pub fn target(&self, range: Range<usize>) -> Target<'_> {
        self.mapping.target(self.in_mapping(range))
    }

    /// The bytes `range` of this memory, to be read by a transfer. Panics when the range is out of bounds.
    pub fn source(&self, range: Range<usize>) -> Source<'_> {
        self.mapping.source(self.in_mapping(range))
    }

    fn in_mapping(&self, range: Range<usize>) -> Range<usize> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} bytes is out of bounds",
            self.len
        );
        self.start + range.start..self.start + range.end
    }

    /// Makes its pages present, as [`Mapping::populate`] does for a whole mapping.
    ///
    /// # Errors
    /// [`MapError::Populate`] when the kernel has no pages left.
    pub fn populate(&self) -> Result<(), MapError> {
        self.mapping.populate_range(self.start..self.start + self.len)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.mapping.base().wrapping_add(self.start)
    }
}

impl std::fmt::Debug for SlabMemory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SlabMemory")
            .field("region", &self.region())
            .field("kept", &self.keeper.is_some())
            .finish_non_exhaustive()
    }
}

/// Sealed memory files, one a slab, to be passed to other processes. Their pages come with the first touch, whoever touches them.
#[derive(Clone, Copy, Debug, Default)]
pub struct SealedSlabs;

impl SlabSource for SealedSlabs {
    fn make(&self, len: usize) -> Result<SlabMemory, NoSlab> {
        let mapping = Mapping::new(MappingKind::Sealed, len)?;
        Ok(SlabMemory::whole(Arc::new(mapping)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Weak;

    #[test]
    fn a_part_keeps_its_keeper_until_the_last_clone_is_gone() {
        let page = limits::page_bytes();
        let mapping = Arc::new(Mapping::new(MappingKind::Anonymous, 4 * page).unwrap());
        let keeper: Arc<dyn Any + Send + Sync> = Arc::new(7);
        let watched: Weak<dyn Any + Send + Sync> = Arc::downgrade(&keeper);
        let part = SlabMemory::part(Arc::clone(&mapping), page..3 * page, keeper);
        assert_eq!(part.region().addr, mapping.region().addr + page);
        assert_eq!(part.len(), 2 * page);
        let again = part.clone();
        drop(part);
        assert!(watched.upgrade().is_some());
        drop(again);
        assert!(watched.upgrade().is_none());
    }

    #[test]
    fn a_part_names_bytes_from_its_own_beginning() {
        let page = limits::page_bytes();
        let mapping = Arc::new(Mapping::new(MappingKind::Anonymous, 4 * page).unwrap());
        let part = SlabMemory::part(Arc::clone(&mapping), page..3 * page, Arc::new(()));
        crate::copy((&[9_u8; 5][..]).into(), &part.target(3..8), crate::CopyMode::Cached);
        assert_eq!(mapping.source(page + 3..page + 8).to_vec(), [9; 5]);
        assert_eq!(part.source(2 * page - 1..2 * page).to_vec(), [0]);
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn bytes_past_the_end_of_a_part_are_refused() {
        let page = limits::page_bytes();
        let mapping = Arc::new(Mapping::new(MappingKind::Anonymous, 4 * page).unwrap());
        let part = SlabMemory::part(mapping, page..2 * page, Arc::new(()));
        let _neighbour = part.source(page..page + 1);
    }

    #[test]
    #[should_panic(expected = "whole pages")]
    fn a_part_that_begins_inside_a_page_is_refused() {
        let page = limits::page_bytes();
        let mapping = Arc::new(Mapping::new(MappingKind::Anonymous, 4 * page).unwrap());
        let _part = SlabMemory::part(mapping, 1..page, Arc::new(()));
    }
}
