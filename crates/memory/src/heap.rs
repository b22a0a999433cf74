//! Heap memory for small tensors, 64-byte aligned, zero length allowed.

use crate::{Region, Source, Target};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of heap bytes: one cache line, enough for every dtype.
const HEAP_ALIGN_BYTES: usize = align_of::<CacheLine>();

#[repr(align(64))]
struct CacheLine;

/// Could so many bytes be allocated just now? For calls whose own books grow with what they are asked: the allocations of those abort the process
/// where they fail.
pub fn has_room(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

/// Heap memory of a fixed length, zero at first.
#[derive(Debug)]
pub struct HeapBytes {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the allocation belongs to this value alone, and the type only gives out addresses (crate documentation, rule 1).
unsafe impl Send for HeapBytes {}
// SAFETY: as for Send.
unsafe impl Sync for HeapBytes {}

impl HeapBytes {
    /// Allocates `len` zero bytes. Aborts like `Vec` when there is no memory; panics above `isize::MAX`.
    pub fn new(len: usize) -> Self {
        Self::try_new(len).unwrap_or_else(|| handle_alloc_error(layout(len)))
    }

    /// The same; `None`: there is no memory.
    pub fn try_new(len: usize) -> Option<Self> {
        let layout = layout(len);
        if len == 0 {
            let base = NonNull::<CacheLine>::dangling().cast();
            return Some(Self { base, len });
        }
        // SAFETY: the layout's size is not zero (checked above).
        let address = unsafe { alloc_zeroed(layout) };
        Some(Self {
            base: NonNull::new(address)?,
            len,
        })
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
        Region::of(self.base.as_ptr(), self.len)
    }

    /// All bytes, to be written by a transfer.
    pub fn target(&self) -> Target<'_> {
        // SAFETY: `len` bytes at `base` are allocated until drop (`new`), and the result borrows self.
        unsafe { Target::within(self.base.as_ptr(), self.len, 0..self.len) }
    }

    /// All bytes, to be read by a transfer.
    pub fn source(&self) -> Source<'_> {
        // SAFETY: as in `target`.
        unsafe { Source::within(self.base.as_ptr(), self.len, 0..self.len) }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for HeapBytes {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `new` with this very layout, and freed nowhere else.
            unsafe { dealloc(self.base.as_ptr(), layout(self.len)) }
        }
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, HEAP_ALIGN_BYTES).expect("a tensor's length is at most isize::MAX bytes")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_a_little_and_none_for_all_addresses() {
        assert!(has_room(1 << 20));
        assert!(!has_room(isize::MAX.unsigned_abs()));
        assert!(HeapBytes::try_new(isize::MAX.unsigned_abs() - 63).is_none());
    }

    #[test]
    fn heap_bytes_are_zero_and_aligned_at_every_length() {
        for len in [0, 1, 63, 64, 65, 4096, 100_000] {
            let heap = HeapBytes::new(len);
            assert_eq!(heap.len(), len);
            assert_eq!(heap.is_empty(), len == 0);
            assert_eq!(heap.region().addr % HEAP_ALIGN_BYTES, 0);
            assert_eq!(heap.source().to_vec(), vec![0; len]);
        }
    }
}
