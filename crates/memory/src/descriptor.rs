//! Numbers of descriptors: 0 to 2 are the standard streams', also where a program has closed those.
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The first number that is no standard stream's.
pub const NUMBER_MIN: RawFd = 3;

/// The same descriptor under a number of [`NUMBER_MIN`] or more.
///
/// The kernel gives the lowest free number. In a program whose standard streams are closed that is 0, 1 or 2, and then
/// a library that prints writes to what was opened here, and a program that redirects its output closes it. Everything
/// that this project makes or receives passes through here before it is used.
///
/// # Errors
/// What the kernel says, where no number is left.
pub fn above_standard(made: OwnedFd) -> Result<OwnedFd, Errno> {
    if NUMBER_MIN <= made.as_raw_fd() {
        return Ok(made);
    }
    fcntl_dupfd_cloexec(&made, NUMBER_MIN)
}
