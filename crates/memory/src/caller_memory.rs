//! Memory of the caller (a torch tensor), kept alive by its owner.

use crate::{Mapping, Region, Source, Target};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

/// Caller memory of `len` bytes and whatever keeps it alive. Dropping it drops the owner.
pub struct CallerMemory {
    base: *mut u8,
    len: usize,
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: the owner is Send + Sync by its bound and keeps the memory valid in any thread (`new`'s contract); the type only
// gives out addresses (crate documentation, rule 1).
unsafe impl Send for CallerMemory {}
// SAFETY: as for Send.
unsafe impl Sync for CallerMemory {}

impl std::fmt::Debug for CallerMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallerMemory")
            .field("base", &self.base)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl CallerMemory {
    /// Wraps memory that somebody else made.
    ///
    /// # Safety
    /// `ptr..ptr+len` stays valid for reads (and for writes, where it is used as a target), from any thread, until `owner`
    /// is dropped, and no Rust reference to those bytes is used while a transfer touches them.
    pub unsafe fn new(ptr: *mut u8, len: usize, owner: Box<dyn Send + Sync>) -> Self {
        Self {
            base: ptr,
            len,
            _owner: owner,
        }
    }

    /// From owned bytes (Rust callers).
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let owner = RawVec {
            base: bytes.as_mut_ptr(),
            len: bytes.len(),
            capacity: bytes.capacity(),
        };
        Self {
            base: owner.base,
            len: owner.len,
            _owner: Box::new(owner),
        }
    }

    /// Consecutive pieces of a mapping, `lens` bytes each, which goes when the last piece does. Panics when it has not so many bytes.
    pub fn pieces(mapping: Mapping, lens: &[usize]) -> Vec<Self> {
        let total: usize = lens.iter().sum();
        assert!(
            total <= mapping.len(),
            "{total} bytes of a mapping of {}",
            mapping.len()
        );
        let base = mapping.region().addr;
        let mapping = Arc::new(mapping);
        let mut start = 0;
        let piece = |&len: &usize| {
            let at = std::ptr::with_exposed_provenance_mut(base + start);
            start += len;
            let owner: Box<dyn Send + Sync> = Box::new(Arc::clone(&mapping));
            // SAFETY: the piece lies in the mapping (asserted above), which the owner keeps, and no other piece has its bytes.
            unsafe { Self::new(at, len, owner) }
        };
        lens.iter().map(piece).collect()
    }

    /// Address of the first byte.
    pub fn addr(&self) -> usize {
        self.base as usize
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Has it no bytes?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address range.
    pub fn region(&self) -> Region {
        Region::of(self.base, self.len)
    }

    /// The bytes `range`, to be written by a transfer. Panics when the range is out of bounds.
    pub fn target(&self, range: Range<usize>) -> Target<'_> {
        // SAFETY: the memory is valid until the owner is dropped (`new`), and the result borrows self, which holds it.
        unsafe { Target::within(self.base, self.len, range) }
    }

    /// The bytes `range`, to be read by a transfer. Panics when the range is out of bounds.
    pub fn source(&self, range: Range<usize>) -> Source<'_> {
        // SAFETY: as in `target`.
        unsafe { Source::within(self.base, self.len, range) }
    }
}

/// A vector taken apart, so that no `Vec` claims to be the only way to its bytes while transfers write them.
struct RawVec {
    base: *mut u8,
    len: usize,
    capacity: usize,
}

// SAFETY: a vector of bytes may be dropped in any thread, and nothing else is done with this value.
unsafe impl Send for RawVec {}
// SAFETY: a shared RawVec gives out nothing.
unsafe impl Sync for RawVec {}

impl Drop for RawVec {
    fn drop(&mut self) {
        // SAFETY: the parts come from one `Vec<u8>` that was not dropped (`from_vec`), and are put together only here.
        drop(unsafe { Vec::from_raw_parts(self.base, self.len, self.capacity) });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{CopyMode, MappingKind, copy};
    use std::sync::Arc;

    #[test]
    fn bytes_of_a_vector_are_read_and_written_in_place() {
        let foreign = CallerMemory::from_vec(vec![1, 2, 3, 4]);
        copy((&[9u8, 8][..]).into(), &foreign.target(1..3), CopyMode::Cached);
        assert_eq!(foreign.source(0..4).to_vec(), [1, 9, 8, 4]);
    }

    #[test]
    fn pieces_of_a_mapping_lie_one_after_the_other_and_keep_it() {
        let mapping = Mapping::new(MappingKind::Anonymous, 100).unwrap();
        let base = mapping.region().addr;
        let mut pieces = CallerMemory::pieces(mapping, &[10, 0, 30]);
        let places: Vec<(usize, usize)> = pieces.iter().map(|piece| (piece.addr() - base, piece.len())).collect();
        assert_eq!(places, [(0, 10), (10, 0), (10, 30)]);
        let last = pieces.pop().unwrap();
        drop(pieces);
        copy((&[7u8; 30][..]).into(), &last.target(0..30), CopyMode::Cached);
        assert_eq!(last.source(0..30).to_vec(), [7; 30]);
    }

    #[test]
    fn the_owner_is_dropped_with_the_memory_and_not_before() {
        let owner = Arc::new(vec![5u8; 10]);
        let base = owner.as_ptr().cast_mut();
        // SAFETY: the vector lives until its last Arc goes, and is only read here.
        let foreign = unsafe { CallerMemory::new(base, owner.len(), Box::new(Arc::clone(&owner))) };
        assert_eq!(Arc::strong_count(&owner), 2);
        assert_eq!(foreign.source(0..10).to_vec(), *owner);
        drop(foreign);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
