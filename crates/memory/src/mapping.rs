//! One mmap.

use crate::{Region, Source, Target, limits, poison};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering};

/// What backs a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingKind {
    /// Private memory of this process; a forked child gets a copy.
    Anonymous,
    /// A memory file, which can be passed to another process; shared, also with a forked child.
    Memfd,
}

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The kernel gave no address range (or no memory file) of this length.
    #[error("cannot map {len} bytes; check `ulimit -v` and vm.overcommit_memory")]
    Map {
        /// Bytes asked for.
        len: usize,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The kernel gave no pages.
    #[error("cannot populate {len} bytes; the machine or its cgroup is out of memory, lower max_bytes")]
    Populate {
        /// Bytes of the mapping.
        len: usize,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The kernel did not take an advice about the mapping.
    #[error("cannot exclude {len} bytes from forks")]
    Exclude {
        /// Bytes of the mapping.
        len: usize,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

/// An owned mapping, unmapped on drop. Page aligned; its length is rounded up to pages. New bytes are zero.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    memfd: Option<OwnedFd>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and this type only gives out addresses (crate
// documentation, rule 1); references to the bytes are made by exclusive owners alone (rule 2).
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `len` bytes, readable and writable, not yet populated.
    ///
    /// # Errors
    /// `Map` for length 0 and when the kernel refuses.
    pub fn new(kind: MappingKind, len: usize) -> Result<Self, MapError> {
        let failed = |errno: Errno| MapError::Map {
            len,
            source: errno.into(),
        };
        let rounded = len
            .checked_next_multiple_of(limits::page_bytes())
            .filter(|&rounded| rounded > 0 && rounded <= isize::MAX.unsigned_abs())
            .ok_or_else(|| failed(Errno::INVAL))?;
        let (address, memfd) = match kind {
            MappingKind::Anonymous => (map_anonymous(rounded).map_err(failed)?, None),
            MappingKind::Memfd => {
                let memfd = memfd_create("tensorlease", MemfdFlags::CLOEXEC).map_err(failed)?;
                ftruncate(&memfd, rounded as u64).map_err(failed)?;
                (map_file(&memfd, rounded).map_err(failed)?, Some(memfd))
            }
        };
        let base = NonNull::new(address).ok_or_else(|| failed(Errno::NOMEM))?;
        Ok(Self {
            base,
            len: rounded,
            memfd,
        })
    }

    /// Makes all pages present and writable (MADV_POPULATE_WRITE, touching where the kernel has none). Takes 0.3 to 0.7
    /// seconds per GiB; the bytes keep their values.
    ///
    /// # Errors
    /// `Populate` when the kernel has no pages left.
    pub fn populate(&self) -> Result<(), MapError> {
        loop {
            match self.advise(Advice::LinuxPopulateWrite) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::INVAL) => {
                    self.touch();
                    return Ok(());
                }
                Err(errno) => {
                    return Err(MapError::Populate {
                        len: self.len,
                        source: errno.into(),
                    });
                }
            }
        }
    }

    /// Makes the pages that `range` touches present, in one call instead of a fault each. Only a hint: where the kernel refuses, the first
    /// touch faults as ever. The bytes keep their values. Panics when the range is out of bounds.
    pub fn prefault(&self, range: Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} bytes",
            self.len
        );
        let start = range.start - range.start % limits::page_bytes();
        let at = self.base.as_ptr().wrapping_add(start);
        // SAFETY: the range, checked above and begun at a page, lies in this mapping, which self owns; the advice keeps every byte's value.
        let _refused = unsafe { madvise(at.cast(), range.end - start, Advice::LinuxPopulateWrite) };
    }

    /// A forked child does not get this memory (MADV_DONTFORK): fork is cheap, and a touch in the child is a fault.
    ///
    /// # Errors
    /// `Exclude` when the kernel refuses.
    pub fn exclude_from_fork(&self) -> Result<(), MapError> {
        self.advise(Advice::LinuxDontFork).map_err(|errno| MapError::Exclude {
            len: self.len,
            source: errno.into(),
        })
    }

    /// Length in bytes, whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: an empty mapping is not possible.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The address range.
    pub fn region(&self) -> Region {
        Region {
            addr: self.base.as_ptr() as usize,
            len: self.len,
        }
    }

    /// The bytes `range`, to be written by a transfer. Panics when the range is out of bounds.
    pub fn target(&self, range: Range<usize>) -> Target<'_> {
        // SAFETY: `base..base+len` is mapped readable and writable until drop (`new`), and the result borrows self.
        unsafe { Target::within(self.base.as_ptr(), self.len, range) }
    }

    /// The bytes `range`, to be read by a transfer. Panics when the range is out of bounds.
    pub fn source(&self, range: Range<usize>) -> Source<'_> {
        // SAFETY: as in `target`.
        unsafe { Source::within(self.base.as_ptr(), self.len, range) }
    }

    /// The memory file, to pass to another process. None for anonymous memory.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is this mapping, owned by self (`new`); the advices used here keep every byte's value.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, advice) }
    }

    /// Writes to each page without changing a byte, so that it may run beside transfers.
    fn touch(&self) {
        for offset in (0..self.len).step_by(limits::page_bytes()) {
            let at = self.base.as_ptr().wrapping_add(offset);
            // SAFETY: `at` lies in the mapping (`offset < len`), and no Rust reference to raw memory exists (rule 1).
            let byte = unsafe { AtomicU8::from_ptr(at) };
            byte.fetch_or(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Whoever gets these addresses next must find them usable.
        poison::allow(self.region());
        // SAFETY: the range was mapped in `new` and is unmapped nowhere else; all spans borrowed self, and leases keep the
        // mapping alive through their slab (rule 3).
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can always be unmapped: {unmapped:?}");
    }
}

fn map_anonymous(len: usize) -> Result<*mut u8, Errno> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: no address is asked for, so no existing mapping is touched.
    unsafe { mmap_anonymous(null_mut(), len, access, flags) }.map(<*mut _>::cast)
}

fn map_file(memfd: &OwnedFd, len: usize) -> Result<*mut u8, Errno> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: no address is asked for, so no existing mapping is touched; the file is `len` bytes long (`new`).
    unsafe { mmap(null_mut(), len, access, flags, memfd, 0) }.map(<*mut _>::cast)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn prefaulted_pages_keep_their_bytes_and_the_rest_of_the_mapping_stays_as_it_was() {
        let page = limits::page_bytes();
        let mapping = Mapping::new(MappingKind::Anonymous, 8 * page).unwrap();
        crate::copy(
            Source::from(&[7_u8; 3][..]),
            &mapping.target(page + 5..page + 8),
            crate::CopyMode::Cached,
        );
        mapping.prefault(page + 5..4 * page + 1);
        mapping.prefault(8 * page..8 * page);
        let bytes = mapping.source(0..8 * page).to_vec();
        assert_eq!(&bytes[page + 5..page + 8], &[7; 3]);
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 3);
    }

    #[test]
    fn a_mapping_is_zero_page_aligned_and_rounded_up() {
        for kind in [MappingKind::Anonymous, MappingKind::Memfd] {
            let page = limits::page_bytes();
            let mapping = Mapping::new(kind, page + 1).expect("two pages can be mapped");
            assert_eq!(mapping.len(), 2 * page);
            assert_eq!(mapping.region().addr % page, 0);
            assert!(mapping.source(0..mapping.len()).to_vec().iter().all(|&byte| byte == 0));
            assert_eq!(mapping.memfd().is_some(), kind == MappingKind::Memfd);
        }
    }

    #[test]
    fn an_empty_or_overlong_mapping_is_refused() {
        for len in [0, usize::MAX, isize::MAX.unsigned_abs()] {
            assert!(matches!(
                Mapping::new(MappingKind::Anonymous, len),
                Err(MapError::Map { len: refused, .. }) if refused == len
            ));
        }
    }

    #[test]
    fn populating_keeps_the_bytes() {
        let mapping = Mapping::new(MappingKind::Anonymous, 1 << 20).expect("a MiB can be mapped");
        let written = [7u8; 100];
        crate::copy(
            (&written[..]).into(),
            &mapping.target(5000..5100),
            crate::CopyMode::Cached,
        );
        mapping.populate().expect("a MiB can be populated");
        mapping.touch();
        assert_eq!(mapping.source(5000..5100).to_vec(), written);
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn a_target_past_the_end_is_refused() {
        let mapping = Mapping::new(MappingKind::Anonymous, 1).expect("a page can be mapped");
        let _ = mapping.target(1..mapping.len() + 1);
    }
}
