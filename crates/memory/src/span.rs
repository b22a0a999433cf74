//! Borrowed pieces of memory that a transfer reads or writes. Never a Rust reference to the bytes: raw memory, like a file.

use std::marker::PhantomData;
use std::ops::Range;

/// Address range of a piece of memory, for registration and look-ups. Plain numbers, no right to touch the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address of the first byte.
    pub addr: usize,
    /// Length, bytes.
    pub len: usize,
}

impl Region {
    pub(crate) fn of(base: *const u8, len: usize) -> Self {
        Self {
            addr: base as usize,
            len,
        }
    }

    /// Address after the last byte (saturating, so that nonsense numbers compare instead of wrapping).
    pub fn end(&self) -> usize {
        self.addr.saturating_add(self.len)
    }

    /// Does every byte of `inner` lie in this region?
    pub fn contains(&self, inner: Self) -> bool {
        self.addr <= inner.addr && inner.end() <= self.end()
    }

    /// Do the two share a byte?
    pub fn overlaps(&self, other: Self) -> bool {
        self.len > 0 && other.len > 0 && self.addr < other.end() && other.addr < self.end()
    }
}

/// Memory that a transfer may write while `'a` lasts.
///
/// Made by owners of memory ([`crate::Mapping`], [`crate::InFlight`], [`crate::HeapBytes`], [`crate::CallerMemory`],
/// [`crate::Landing`]) with checked bounds, or from a mutable slice.
#[derive(Debug)]
pub struct Target<'a> {
    addr: *mut u8,
    len: usize,
    life: PhantomData<&'a ()>,
}

/// Memory that a transfer may read while `'a` lasts.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    addr: *const u8,
    len: usize,
    life: PhantomData<&'a ()>,
}

// SAFETY: a target is an address into memory that its owner keeps for `'a`; owners are Send + Sync, and no Rust reference
// to the bytes exists in any thread meanwhile (crate documentation, rule 1).
unsafe impl Send for Target<'_> {}
// SAFETY: as for Send; a shared target gives out nothing but the address.
unsafe impl Sync for Target<'_> {}
// SAFETY: a source is an address into memory that its owner keeps for `'a`, as for `Target`.
unsafe impl Send for Source<'_> {}
// SAFETY: as for Send; a shared source gives out nothing but the address.
unsafe impl Sync for Source<'_> {}

impl<'a> Target<'a> {
    fn at(addr: *mut u8, len: usize) -> Self {
        let life = PhantomData;
        Self { addr, len, life }
    }

    /// The bytes `range` of the `len` bytes at `base`. Panics when the range is out of bounds.
    ///
    /// # Safety
    /// `base..base+len` is valid for reads and writes while `'a` lasts, and no Rust reference to those bytes is used
    /// meanwhile.
    pub(crate) unsafe fn within(base: *mut u8, len: usize, range: Range<usize>) -> Self {
        check(&range, len);
        Target::at(base.wrapping_add(range.start), range.len())
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.addr
    }

    /// Address of the first byte.
    pub fn addr(&self) -> usize {
        self.addr as usize
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address range.
    pub fn region(&self) -> Region {
        Region::of(self.addr, self.len)
    }

    /// The first `len` bytes only. Panics past the end.
    pub fn truncated(self, len: usize) -> Self {
        check(&(0..len), self.len);
        Target { len, ..self }
    }

    /// The first `at` bytes, and the rest. Panics past the end.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        check(&(0..at), self.len);
        let rest = Target::at(self.addr.wrapping_add(at), self.len - at);
        (Target { len: at, ..self }, rest)
    }

    /// The same memory read instead of written (checksums, copy-out).
    pub fn as_source(&self) -> Source<'_> {
        Source::at(self.addr, self.len)
    }

    /// For engines and decorators that write after the call returned (a late write).
    ///
    /// # Safety
    /// The caller keeps the memory mapped until the detached target's last use; the engine contract's quarantine clause
    /// promises that.
    pub unsafe fn detach(&self) -> Target<'static> {
        Target::at(self.addr, self.len)
    }
}

impl<'a> Source<'a> {
    fn at(addr: *const u8, len: usize) -> Self {
        let life = PhantomData;
        Self { addr, len, life }
    }

    /// The bytes `range` of the `len` bytes at `base`. Panics when the range is out of bounds.
    ///
    /// # Safety
    /// `base..base+len` is valid for reads while `'a` lasts, and no mutable Rust reference to those bytes is used
    /// meanwhile.
    pub(crate) unsafe fn within(base: *const u8, len: usize, range: Range<usize>) -> Self {
        check(&range, len);
        Source::at(base.wrapping_add(range.start), range.len())
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.addr
    }

    /// Address of the first byte.
    pub fn addr(&self) -> usize {
        self.addr as usize
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
        Region::of(self.addr, self.len)
    }

    /// The bytes `range` of these. Panics when the range is out of bounds.
    pub fn slice(self, range: Range<usize>) -> Self {
        check(&range, self.len);
        Source::at(self.addr.wrapping_add(range.start), range.len())
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        // SAFETY: the source is valid for `len` reads (established where it was made), the vector has room for `len` bytes
        // and is new, so the two don't overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.addr, bytes.as_mut_ptr(), self.len) };
        // SAFETY: the line above initialised exactly `len` bytes.
        unsafe { bytes.set_len(self.len) };
        bytes
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Source::at(bytes.as_ptr(), bytes.len())
    }
}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Target::at(bytes.as_mut_ptr(), bytes.len())
    }
}

/// Panics unless the range lies in `0..len`.
#[track_caller]
fn check(range: &Range<usize>, len: usize) {
    assert!(
        range.start <= range.end && range.end <= len,
        "range {range:?} is out of bounds of {len} bytes"
    );
}
