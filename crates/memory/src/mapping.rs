//! One mmap.

use crate::descriptor::above_standard;
use crate::{Region, Source, Target, fork, limits, poison};
use rustix::fs::{
    MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_setfl, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// What backs a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingKind {
    /// Private memory of this process; a forked child gets a copy.
    Anonymous,
    /// A sealed memory file, which can be passed to another process; shared, also with a forked child. No process that gets it can
    /// make it shorter, so that no touch of a mapping of it can fail. None can write to its descriptor: the bytes are
    /// reached through mappings alone.
    Sealed,
}

/// What a memory file of another process must be sealed against before it is mapped.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

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
    /// A memory file of another process that could become shorter than its mapping, or is shorter already.
    #[error("a memory file passed as {len} bytes is not sealed, or shorter; it was not mapped")]
    NotSealed {
        /// Bytes it was said to have.
        len: usize,
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
    /// The fork generation of the process that keeps it from its children; empty while they get it.
    excluded: OnceLock<u64>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and this type only gives out addresses (crate
// documentation, rule 1); references to the bytes are made by exclusive owners alone (rule 2).
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

/// Pages are made in pieces of this length, bytes.
const PREFAULT_BYTES: usize = 32 << 20;

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
            MappingKind::Sealed => {
                let memfd = memory_file(rounded).map_err(failed)?;
                fcntl_add_seals(&memfd, SEALS | SealFlags::SEAL).map_err(failed)?;
                (map_file(&memfd, rounded).map_err(failed)?, Some(memfd))
            }
        };
        let base = NonNull::new(address).ok_or_else(|| failed(Errno::NOMEM))?;
        Ok(Self {
            base,
            len: rounded,
            memfd,
            excluded: OnceLock::new(),
        })
    }

    /// Maps all `len` bytes (whole pages) of a sealed memory file that another process made. Nothing is touched yet.
    ///
    /// # Errors
    /// `NotSealed` where the file could be, or is, shorter: a touch past its end would end the process. `Map` when the kernel refuses.
    pub fn of_sealed(memfd: OwnedFd, len: usize) -> Result<Self, MapError> {
        let failed = |errno: Errno| MapError::Map {
            len,
            source: errno.into(),
        };
        let not_sealed = || MapError::NotSealed { len };
        // Files that can't be sealed refuse the question.
        let seals = fcntl_get_seals(&memfd).map_err(|_| not_sealed())?;
        let size = fstat(&memfd).map_err(failed)?.st_size;
        let long_enough = usize::try_from(size).is_ok_and(|size| len <= size);
        if !seals.contains(SEALS) || !long_enough {
            return Err(not_sealed());
        }
        if len == 0 || !len.is_multiple_of(limits::page_bytes()) {
            return Err(failed(Errno::INVAL));
        }
        let address = map_file(&memfd, len).map_err(failed)?;
        let base = NonNull::new(address).ok_or_else(|| failed(Errno::NOMEM))?;
        Ok(Self {
            base,
            len,
            memfd: Some(memfd),
            excluded: OnceLock::new(),
        })
    }

    /// Makes all pages present and writable (MADV_POPULATE_WRITE, touching where the kernel has none). Takes 0.3 to 0.7
    /// seconds per GiB; the bytes keep their values.
    ///
    /// # Errors
    /// `Populate` when the kernel has no pages left.
    pub fn populate(&self) -> Result<(), MapError> {
        self.populate_range(0..self.len)
    }

    /// As `populate`, for part of it that begins at a page. Panics when the range is out of bounds.
    pub(crate) fn populate_range(&self, range: Range<usize>) -> Result<(), MapError> {
        loop {
            match self.advise(range.clone(), Advice::LinuxPopulateWrite) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::INVAL) => {
                    self.touch(range);
                    return Ok(());
                }
                Err(errno) => {
                    return Err(MapError::Populate {
                        len: range.len(),
                        source: errno.into(),
                    });
                }
            }
        }
    }

    /// Makes the pages that `range` touches present, in one call instead of a fault each. Only a hint: where the kernel refuses, the first
    /// touch faults as ever. The bytes keep their values. Panics when the range is out of bounds.
    pub fn prefault(&self, range: Range<usize>) {
        let start = range.start - range.start % limits::page_bytes();
        // In pieces: while the kernel makes pages, other threads of this process can't map or unmap anything.
        for start in (start..range.end).step_by(PREFAULT_BYTES) {
            let end = range.end.min(start + PREFAULT_BYTES);
            let _refused = self.advise(start..end, Advice::LinuxPopulateWrite);
        }
    }

    /// A forked child does not get this memory (MADV_DONTFORK): fork is cheap, and a touch in the child is a fault.
    ///
    /// # Errors
    /// `Exclude` when the kernel refuses.
    pub fn exclude_from_fork(&self) -> Result<(), MapError> {
        // First: a fork between the two would leave a child that takes what is not mapped there for its own.
        self.excluded.get_or_init(fork::generation);
        self.advise(0..self.len, Advice::LinuxDontFork)
            .map_err(|errno| MapError::Exclude {
                len: self.len,
                source: errno.into(),
            })
    }

    /// Length in bytes, whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address range.
    pub fn region(&self) -> Region {
        Region::of(self.base.as_ptr(), self.len)
    }

    /// The bytes `range`, to be written by a transfer. Panics when the range is out of bounds.
    pub fn target(&self, range: Range<usize>) -> Target<'_> {
        // SAFETY: `base..base+len` is mapped readable and writable until drop (`new`, `of_sealed`), and the result borrows self.
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

    /// Cuts off what lies from `at` on, as a mapping of its own. Panics where no page begins at `at` inside of it, and with a memory file, which is
    /// one.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        assert!(
            0 < at && at < self.len && at.is_multiple_of(limits::page_bytes()) && self.memfd.is_none(),
            "a mapping of {} bytes is not cut at {at}",
            self.len
        );
        let rest = Self {
            base: NonNull::new(self.base.as_ptr().wrapping_add(at)).expect("memory does not lie at address 0"),
            len: self.len - at,
            memfd: None,
            excluded: self.excluded.clone(),
        };
        self.len = at;
        rest
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} bytes",
            self.len
        );
        let at = self.base.as_ptr().wrapping_add(range.start);
        // SAFETY: the range, checked above, lies in this mapping, which self owns; the advices used here keep every byte's value.
        unsafe { madvise(at.cast(), range.len(), advice) }
    }

    /// Writes to each page of a range without changing a byte, so that it may run beside transfers.
    fn touch(&self, range: Range<usize>) {
        for offset in range.step_by(limits::page_bytes()) {
            let at = self.base.as_ptr().wrapping_add(offset);
            // SAFETY: `at` lies in the mapping (its callers checked the range with `advise`), and no Rust reference to raw memory exists (rule 1).
            let byte = unsafe { AtomicU8::from_ptr(at) };
            byte.fetch_or(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a child that did not get it nothing of it is mapped, and others may have got these addresses.
        if self
            .excluded
            .get()
            .is_some_and(|generation| *generation != fork::seen())
        {
            return;
        }
        // Whoever gets these addresses next must find them usable.
        poison::allow(self.region());
        // SAFETY: the range was mapped in `new` or `of_sealed` and is unmapped nowhere else, for `split_off` leaves each byte to one mapping: by this
        // process, or by an ancestor that passes it on to its children. All spans borrowed self, and leases keep the mapping alive through their slab
        // (rule 3).
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        if unmapped.is_err() {
            // A part between two others can't be unmapped where the process has as many mappings as it may: its pages go all the same.
            // SAFETY: nothing uses the bytes any more, as above.
            let _kept = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontNeed) };
        }
    }
}

fn map_anonymous(len: usize) -> Result<*mut u8, Errno> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: no address is asked for, so no existing mapping is touched.
    unsafe { mmap_anonymous(null_mut(), len, access, flags) }.map(<*mut _>::cast)
}

/// How the kernel shows memory files, `/proc/PID/maps` for one.
pub const MEMORY_FILE: &str = "tensorlease";

#[expect(clippy::disallowed_methods, reason = "moved at once")]
fn memory_file(len: usize) -> Result<OwnedFd, Errno> {
    let memfd = above_standard(memfd_create(
        MEMORY_FILE,
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?)?;
    ftruncate(&memfd, len as u64)?;
    // Every write goes to the end of the file, past which a sealed one has no bytes: the kernel refuses it. The flag
    // stays with the file wherever it is passed. So a write is refused also while the file has the number of a closed
    // standard stream, as it may for a moment where it is received.
    fcntl_setfl(&memfd, OFlags::APPEND)?;
    Ok(memfd)
}

fn map_file(memfd: &OwnedFd, len: usize) -> Result<*mut u8, Errno> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: no address is asked for, so no existing mapping is touched; the file is at least `len` bytes long (`new`, `of_sealed`).
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
        for kind in [MappingKind::Anonymous, MappingKind::Sealed] {
            let page = limits::page_bytes();
            let mapping = Mapping::new(kind, page + 1).expect("two pages can be mapped");
            assert_eq!(mapping.len(), 2 * page);
            assert_eq!(mapping.region().addr % page, 0);
            assert!(mapping.source(0..mapping.len()).to_vec().iter().all(|&byte| byte == 0));
            assert_eq!(mapping.memfd().is_some(), kind != MappingKind::Anonymous);
        }
    }

    fn passed(mapping: &Mapping) -> OwnedFd {
        let memfd = mapping.memfd().expect("a memory file");
        memfd.try_clone_to_owned().expect("a file can be duplicated")
    }

    #[test]
    fn two_mappings_of_one_sealed_file_show_the_same_bytes() {
        let page = limits::page_bytes();
        let one = Mapping::new(MappingKind::Sealed, 2 * page).unwrap();
        let other = Mapping::of_sealed(passed(&one), 2 * page).unwrap();
        crate::copy(
            (&[9_u8; 5][..]).into(),
            &one.target(page..page + 5),
            crate::CopyMode::Cached,
        );
        assert_eq!(other.source(page..page + 5).to_vec(), [9; 5]);
        let shrunk = ftruncate(passed(&one), page as u64);
        assert_eq!(shrunk, Err(Errno::PERM), "a sealed file keeps its length");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test's own file")]
    fn a_file_that_could_become_shorter_is_not_mapped() {
        let page = limits::page_bytes();
        let open = memory_file(2 * page).unwrap();
        let short = Mapping::new(MappingKind::Sealed, page).unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        for memfd in [open, passed(&short), file.into()] {
            let refused = Mapping::of_sealed(memfd, 2 * page);
            assert!(matches!(refused, Err(MapError::NotSealed { .. })), "{refused:?}");
        }
        let odd = Mapping::of_sealed(passed(&short), 1);
        assert!(matches!(odd, Err(MapError::Map { .. })), "{odd:?}");
    }

    #[test]
    fn what_is_cut_off_is_a_mapping_of_its_own() {
        let page = limits::page_bytes();
        let mut first = Mapping::new(MappingKind::Anonymous, 3 * page).unwrap();
        crate::copy(
            (&[9_u8; 5][..]).into(),
            &first.target(page..page + 5),
            crate::CopyMode::Cached,
        );
        let rest = first.split_off(page);
        assert_eq!((first.len(), rest.len()), (page, 2 * page));
        assert_eq!(rest.region().addr, first.region().end());
        drop(first);
        assert_eq!(rest.source(0..5).to_vec(), [9; 5], "it stays when the other goes");
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
        mapping.touch(0..1 << 20);
        assert_eq!(mapping.source(5000..5100).to_vec(), written);
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn a_target_past_the_end_is_refused() {
        let mapping = Mapping::new(MappingKind::Anonymous, 1).expect("a page can be mapped");
        let _ = mapping.target(1..mapping.len() + 1);
    }
}
