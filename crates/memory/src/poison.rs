//! AddressSanitizer's view of memory that nobody holds: free and quarantined blocks are off limits.
//!
//! Only with the feature `poison`, and only useful when built with `-Zsanitizer=address`. Without it these are no-ops.

use crate::Region;

/// From now on a touch of the region by instrumented code is an error.
#[cfg(feature = "poison")]
pub(crate) fn forbid(region: Region) {
    // SAFETY: the runtime only marks its shadow of these addresses; every caller owns the region (a free block's bytes).
    unsafe { __asan_poison_memory_region(region.addr, region.len) }
}

/// The region may be touched again.
#[cfg(feature = "poison")]
pub(crate) fn allow(region: Region) {
    // SAFETY: as in `forbid`.
    unsafe { __asan_unpoison_memory_region(region.addr, region.len) }
}

#[cfg(feature = "poison")]
// SAFETY: the signatures are those of the sanitizer's public header (asan_interface.h).
unsafe extern "C" {
    fn __asan_poison_memory_region(addr: usize, len: usize);
    fn __asan_unpoison_memory_region(addr: usize, len: usize);
}

#[cfg(not(feature = "poison"))]
pub(crate) fn forbid(_region: Region) {}

#[cfg(not(feature = "poison"))]
pub(crate) fn allow(_region: Region) {}
