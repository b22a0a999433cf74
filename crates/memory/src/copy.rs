//! Copies: libc memcpy, or AVX2 non-temporal stores where a group moves many bytes.

use crate::{Source, Target};

/// Groups of at least this many bytes are copied with non-temporal stores (measured crossover: libc wins to 4 MiB,
/// non-temporal stores from 8 MiB).
pub const NON_TEMPORAL_BYTES_MIN: usize = 8 << 20;

/// Shorter copies of a non-temporal group are cached ones: what one gains is less than its fence.
const STREAM_BYTES_MIN: usize = 4096;

/// How bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// Through the cache: right for what is read again at once.
    Cached,
    /// Past the cache: about 0.6 of the time for much memory, and nothing else is pushed out of the cache.
    NonTemporal,
}

impl CopyMode {
    /// For a group that moves `bytes` in all; `NonTemporal` only where the processor has AVX2.
    pub fn for_group(bytes: usize) -> Self {
        if bytes >= NON_TEMPORAL_BYTES_MIN && can_stream() {
            Self::NonTemporal
        } else {
            Self::Cached
        }
    }
}

/// Copies all bytes. Panics when the lengths differ. Source and target may overlap. Once it returns, the bytes are visible
/// to every thread that is told so.
pub fn copy(source: Source<'_>, target: &Target<'_>, mode: CopyMode) {
    assert_eq!(
        source.len(),
        target.len(),
        "source and target of a copy have one length"
    );
    if source.region().overlaps(target.region()) {
        // SAFETY: both are valid for their length (established where they were made); overlap is allowed here.
        unsafe { std::ptr::copy(source.as_ptr(), target.as_ptr(), source.len()) };
        return;
    }
    match mode {
        CopyMode::NonTemporal if source.len() >= STREAM_BYTES_MIN && can_stream() => stream(source, target),
        CopyMode::NonTemporal | CopyMode::Cached => cached(source.as_ptr(), target.as_ptr(), source.len()),
    }
}

/// Copies every pair; the mode is picked once, from the sum of the lengths.
pub fn copy_all(pairs: &[(Source<'_>, Target<'_>)]) {
    let mode = CopyMode::for_group(pairs.iter().map(|(source, _)| source.len()).sum());
    for (source, target) in pairs {
        copy(*source, target, mode);
    }
}

/// `len` bytes by memcpy. Private: callers here pass pieces of a source and a target that don't overlap.
fn cached(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: `from` and `to` are pieces of a source and a target, valid for `len` bytes, that don't overlap (`copy`).
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

#[cfg(all(target_arch = "x86_64", not(feature = "poison")))]
fn can_stream() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

/// Non-temporal stores are inline assembly, which AddressSanitizer does not see: with it every copy is a checked one.
#[cfg(not(all(target_arch = "x86_64", not(feature = "poison"))))]
fn can_stream() -> bool {
    false
}

#[cfg(not(all(target_arch = "x86_64", not(feature = "poison"))))]
fn stream(source: Source<'_>, target: &Target<'_>) {
    cached(source.as_ptr(), target.as_ptr(), source.len());
}

#[cfg(all(target_arch = "x86_64", not(feature = "poison")))]
use avx2::stream;

#[cfg(all(target_arch = "x86_64", not(feature = "poison")))]
mod avx2 {
    use super::cached;
    use crate::{Source, Target};
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    /// Bytes of one register, and the alignment that its store needs.
    const VECTOR_BYTES: usize = size_of::<__m256i>();
    /// Bytes moved at a time: two cache lines.
    const TURN_BYTES: usize = 4 * VECTOR_BYTES;
    /// Bytes between the streams of a group, the reach of the hardware's prefetchers.
    const PAGE_BYTES: usize = 4096;
    /// Four pages are copied side by side: measured a sixth faster than one after the other.
    const GROUP_BYTES: usize = 4 * PAGE_BYTES;

    /// Copies with non-temporal stores; the ends that are not aligned go through the cache. Called where AVX2 was detected.
    pub(super) fn stream(source: Source<'_>, target: &Target<'_>) {
        let (from, to, len) = (source.as_ptr(), target.as_ptr(), source.len());
        let head = (to as usize).wrapping_neg() % VECTOR_BYTES;
        let head = head.min(len);
        let body = (len - head) / TURN_BYTES * TURN_BYTES;
        cached(from, to, head);
        // SAFETY: AVX2 is there (`copy` asked `can_stream`); `head + body <= len`, so both pieces are valid, and `to + head`
        // is aligned to a vector by the choice of `head`, or `body` is 0.
        unsafe { stream_body(from.wrapping_add(head), to.wrapping_add(head), body) };
        let done = head + body;
        cached(from.wrapping_add(done), to.wrapping_add(done), len - done);
    }

    /// # Safety
    /// The processor has AVX2; `len` is a multiple of `TURN_BYTES`; `from` is valid for `len` bytes read, `to` for `len`
    /// bytes written and aligned to `VECTOR_BYTES`; they don't overlap.
    #[target_feature(enable = "avx2")]
    unsafe fn stream_body(from: *const u8, to: *mut u8, len: usize) {
        let groups = len / GROUP_BYTES * GROUP_BYTES;
        for group in (0..groups).step_by(GROUP_BYTES) {
            for turn in (group..group + PAGE_BYTES).step_by(TURN_BYTES) {
                for at in (turn..turn + GROUP_BYTES).step_by(PAGE_BYTES) {
                    // SAFETY: `at + TURN_BYTES <= groups <= len`, and turns keep the alignment.
                    unsafe { stream_turn(from.wrapping_add(at), to.wrapping_add(at)) };
                }
            }
        }
        for at in (groups..len).step_by(TURN_BYTES) {
            // SAFETY: `at + TURN_BYTES <= len`, both being multiples of it, and turns keep the alignment.
            unsafe { stream_turn(from.wrapping_add(at), to.wrapping_add(at)) };
        }
        // Non-temporal stores are not ordered by a later release; this makes them visible before it.
        _mm_sfence();
    }

    /// # Safety
    /// As for `stream_body`, for one turn.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn stream_turn(from: *const u8, to: *mut u8) {
        for at in (0..TURN_BYTES).step_by(VECTOR_BYTES) {
            // SAFETY: within the turn that the caller vouched for; the load needs no alignment.
            let bytes = unsafe { _mm256_loadu_si256(from.wrapping_add(at).cast()) };
            // SAFETY: within the turn that the caller vouched for, at an address aligned to a vector.
            unsafe { _mm256_stream_si256(to.wrapping_add(at).cast(), bytes) };
        }
    }
}
