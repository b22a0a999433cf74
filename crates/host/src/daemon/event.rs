//! Wakes a thread that polls descriptors.
use crate::descriptors;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// An event of the kernel's.
#[derive(Debug)]
pub(super) struct Event(OwnedFd);

impl Event {
    pub(super) fn new() -> Result<Self, Errno> {
        descriptors::event().map(Self)
    }

    /// Wakes the thread that polls it.
    pub(super) fn wake(&self) {
        // It fails only after 2^64 wakes that were not seen. Then it wakes anyway.
        let _full = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Later polls sleep until the next wake.
    pub(super) fn clear(&self) {
        // The count says nothing.
        let _count = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }

    pub(super) fn polled(&self) -> PollFd<'_> {
        PollFd::new(&self.0, PollFlags::IN)
    }
}
