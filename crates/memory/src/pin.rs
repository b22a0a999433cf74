//! Pages pinned in the kernel through io_uring registered buffers: one ring, one sparse table.

use crate::descriptor::{NUMBER_MIN, above_standard};
use crate::{Region, RegionMap, limits};
use io_uring::IoUring;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Why memory could not be pinned or unpinned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// This kernel, its settings or a sandbox don't let this process have a ring.
    #[error(
        "io_uring is not available here ({reason}); allow it (kernel.io_uring_disabled=0, seccomp) or use registration=none"
    )]
    Refused {
        /// Which step was refused, and what is known about why.
        reason: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The locked memory of this user would exceed its limit.
    #[error(
        "pinning {asked} bytes needs more locked memory than RLIMIT_MEMLOCK allows ({limit} bytes for all of this user's); raise `ulimit -l` or grant CAP_IPC_LOCK"
    )]
    MemlockTooLow {
        /// Bytes of the region.
        asked: u64,
        /// Bytes of the limit.
        limit: u64,
        /// What the kernel said; None where the limit alone says no.
        #[source]
        source: Option<io::Error>,
    },
    /// Every slot of the table has a region.
    #[error("all {slots} pin slots are in use; register fewer regions")]
    NoSlot {
        /// Slots of the table.
        slots: u32,
    },
    /// The region shares bytes with one that is pinned.
    #[error("region of {len} bytes at {addr:#x} overlaps one already pinned")]
    Overlap {
        /// Address of the refused region.
        addr: usize,
        /// Bytes of the refused region.
        len: usize,
    },
    /// More than the kernel takes in one slot.
    #[error("region of {len} bytes is above the limit of {limit} bytes for one pin; split it")]
    TooLarge {
        /// Bytes of the region.
        len: usize,
        /// Most bytes of a region.
        limit: usize,
    },
    /// The region has no bytes to pin.
    #[error("a region of no bytes at {addr:#x} cannot be pinned")]
    Empty {
        /// Address of the region.
        addr: usize,
    },
    /// Not a region that was pinned.
    #[error("no pinned region starts at {addr:#x} with {len} bytes")]
    Unknown {
        /// Address of the region.
        addr: usize,
        /// Bytes of the region.
        len: usize,
    },
    /// Any other refusal of the kernel, such as memory that is not mapped.
    #[error("the kernel refused to pin {len} bytes")]
    Kernel {
        /// Bytes of the region.
        len: usize,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Largest region of one pin: 1 GiB.
pub const PIN_BYTES_MAX: usize = 1 << 30;

/// Regions that can be pinned at once: the most that the kernel takes.
pub const PIN_SLOTS: u32 = 16_384;

/// Owns the ring; dropping it unpins everything. Thread-safe.
///
/// CAP_IPC_LOCK and RLIMIT_MEMLOCK are checked before the kernel is asked: it faults all pages first and counts then.
pub struct Pinner {
    /// One registration at a time. Never needed to ask `covers`.
    table: Mutex<Table>,
    /// What is pinned, and in which slot.
    pinned: RwLock<RegionMap<u32>>,
}

/// The kernel's sparse table of registered buffers, and which slots of it are free.
struct Table {
    ring: IoUring,
    /// Given back by an unpin.
    free: Vec<u32>,
    /// This slot and those above were never used.
    unused: u32,
}

impl std::fmt::Debug for Pinner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinner")
            .field("pinned_bytes", &self.pinned_bytes())
            .finish_non_exhaustive()
    }
}

impl Pinner {
    /// Makes the ring and its empty table.
    ///
    /// # Errors
    /// `Refused` where io_uring is not allowed; `MemlockTooLow` where not even the ring fits.
    pub fn new() -> Result<Self, PinError> {
        let ring = ring().map_err(|source| refused("io_uring_setup", source))?;
        ring.submitter()
            .register_buffers_sparse(PIN_SLOTS)
            .map_err(|source| refused("registering a sparse buffer table", source))?;
        let table = Table {
            ring,
            free: Vec::new(),
            unused: 0,
        };
        Ok(Self {
            table: Mutex::new(table),
            pinned: RwLock::default(),
        })
    }

    /// Pins the region's pages until `unpin`. Memory should be populated first (20 times faster).
    ///
    /// # Errors
    /// Everything but `Refused` and `Unknown`; nothing is pinned then.
    pub fn pin(&self, region: Region) -> Result<(), PinError> {
        let Region { addr, len } = region;
        if len == 0 {
            return Err(PinError::Empty { addr });
        }
        if len > PIN_BYTES_MAX {
            return Err(PinError::TooLarge {
                len,
                limit: PIN_BYTES_MAX,
            });
        }
        let mut table = self.lock_table();
        if self.pinned().overlaps(region) {
            return Err(PinError::Overlap { addr, len });
        }
        let slot = table.take_slot().ok_or(PinError::NoSlot { slots: PIN_SLOTS })?;
        let registered = self.check_memlock(len).and_then(|()| {
            let updated = table.update(slot, addr as *mut libc::c_void, len);
            updated.map_err(|source| pin_failed(len, source))
        });
        if let Err(error) = registered {
            table.free.push(slot);
            return Err(error);
        }
        // Under the table's lock, so that an overlap can't slip in between.
        self.write_pinned().insert(region, slot);
        Ok(())
    }

    /// Unpins exactly a region that was pinned.
    ///
    /// # Errors
    /// `Unknown` for any other region; `Kernel` where the slot could not be emptied (it is not used again then).
    pub fn unpin(&self, region: Region) -> Result<(), PinError> {
        let Region { addr, len } = region;
        let mut table = self.lock_table();
        let pinned = self.write_pinned().remove(region);
        let slot = pinned.ok_or(PinError::Unknown { addr, len })?;
        if let Err(source) = table.update(slot, std::ptr::null_mut(), 0) {
            // It is pinned still.
            self.write_pinned().insert(region, slot);
            return Err(PinError::Kernel { len, source });
        }
        table.free.push(slot);
        Ok(())
    }

    /// Unpins all regions; the first failure is reported after all were tried.
    ///
    /// # Errors
    /// As [`Self::unpin`].
    pub fn unpin_all(&self) -> Result<(), PinError> {
        let regions: Vec<Region> = self.pinned().iter().map(|(region, _)| region).collect();
        let unpinned: Vec<Result<(), PinError>> = regions.into_iter().map(|region| self.unpin(region)).collect();
        unpinned.into_iter().collect()
    }

    /// Is every byte inside ONE pinned region? O(log n).
    pub fn covers(&self, region: Region) -> bool {
        region.len == 0 || self.pinned().contains(region)
    }

    /// Bytes of all pinned regions.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned().bytes()
    }

    /// What the limit says of `len` bytes more, whatever others of this user hold (the kernel knows; this is a lower bound).
    fn check_memlock(&self, len: usize) -> Result<(), PinError> {
        let asked = len as u64;
        match limits::memlock_bytes() {
            Some(limit) if self.pinned_bytes() + asked > limit => Err(PinError::MemlockTooLow {
                asked,
                limit,
                source: None,
            }),
            _ => Ok(()),
        }
    }

    fn lock_table(&self) -> MutexGuard<'_, Table> {
        // Nothing between two changes of the table panics, so it is whole also after a panic elsewhere.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pinned(&self) -> RwLockReadGuard<'_, RegionMap<u32>> {
        self.pinned.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_pinned(&self) -> RwLockWriteGuard<'_, RegionMap<u32>> {
        self.pinned.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn take_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = self.unused;
            (slot < PIN_SLOTS).then(|| {
                self.unused += 1;
                slot
            })
        })
    }

    fn update(&self, slot: u32, base: *mut libc::c_void, len: usize) -> io::Result<()> {
        let buffer = libc::iovec {
            iov_base: base,
            iov_len: len,
        };
        // SAFETY: the kernel holds the pages themselves, not their addresses, until the slot is emptied or the ring closed;
        // and no operation that would read or write a registered buffer is ever submitted to this ring.
        unsafe { self.ring.submitter().register_buffers_update(slot, &[buffer], None) }
    }
}

/// A ring that is never used to submit anything: one entry.
#[expect(clippy::disallowed_methods, reason = "moved at once")]
fn ring() -> io::Result<IoUring> {
    let made = IoUring::new(1)?;
    if NUMBER_MIN <= made.as_raw_fd() {
        return Ok(made);
    }
    // SAFETY: `made` owns its descriptor, and outlives the borrow.
    let descriptor = unsafe { BorrowedFd::borrow_raw(made.as_raw_fd()) };
    // A second descriptor of the same ring. The first one, and its mappings, end with `made`.
    let moved = above_standard(descriptor.try_clone_to_owned()?)?;
    // SAFETY: `moved` is owned here alone and refers to the ring that `made` refers to, whose parameters these are.
    unsafe { IoUring::from_fd(moved.into_raw_fd(), made.params().clone()) }
}

fn refused(step: &str, source: io::Error) -> PinError {
    if source.raw_os_error() == Some(libc::ENOMEM) {
        // Older kernels count the ring itself.
        return memlock_too_low(limits::page_bytes(), source);
    }
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let reason = match setting {
        Ok(setting) => format!("{step}, kernel.io_uring_disabled={}", setting.trim()),
        Err(_) => step.to_owned(),
    };
    PinError::Refused { reason, source }
}

fn pin_failed(len: usize, source: io::Error) -> PinError {
    match source.raw_os_error() {
        Some(libc::ENOMEM) => memlock_too_low(len, source),
        _ => PinError::Kernel { len, source },
    }
}

/// The kernel has not enough of something: of locked memory where that is limited. A capability of a user namespace does not
/// count for the kernel, so the limit itself is asked.
fn memlock_too_low(len: usize, source: io::Error) -> PinError {
    match limits::memlock_limit_bytes() {
        Some(limit) => PinError::MemlockTooLow {
            asked: len as u64,
            limit,
            source: Some(source),
        },
        None => PinError::Kernel { len, source },
    }
}
