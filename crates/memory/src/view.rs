//! Bytes that are read where they lie, and that nobody writes meanwhile.

use crate::{Mapping, Region, Source};
use std::ops::Range;
use std::sync::Arc;

/// Keeps the bytes of views from being reused.
pub trait ViewKeeper: Send + Sync {
    /// The view with this ticket, of `bytes` bytes, is gone. Runs in any thread at any time, as a deleter: it must not wait.
    fn release(&self, ticket: u64, bytes: usize);
}

/// A part of a mapping, read-only. Whoever lends it keeps the bytes as they are until the view is dropped; other processes may read them too.
pub struct View {
    mapping: Arc<Mapping>,
    start: usize,
    len: usize,
    keeper: Arc<dyn ViewKeeper>,
    ticket: u64,
}

impl View {
    /// The bytes `range` of a mapping. Panics when the range is out of bounds.
    pub fn new(mapping: Arc<Mapping>, range: Range<usize>, keeper: Arc<dyn ViewKeeper>, ticket: u64) -> Self {
        assert!(
            range.start <= range.end && range.end <= mapping.len(),
            "{range:?} of {} bytes",
            mapping.len()
        );
        Self {
            mapping,
            start: range.start,
            len: range.len(),
            keeper,
            ticket,
        }
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first byte, valid for reads as long as the view lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.mapping.base().wrapping_add(self.start)
    }

    /// The address range.
    pub fn region(&self) -> Region {
        Region::of(self.as_ptr(), self.len)
    }

    /// The bytes `range`, to be read by a transfer. Panics when the range is out of bounds.
    pub fn source(&self, range: Range<usize>) -> Source<'_> {
        self.mapping.source(self.start..self.start + self.len).slice(range)
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.source(0..self.len).to_vec()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.keeper.release(self.ticket, self.len);
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("View")
            .field("region", &self.region())
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}
