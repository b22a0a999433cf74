//! Makes and receives every descriptor of this crate. Each is moved above the standard streams before it is used.
#![expect(clippy::disallowed_methods, reason = "moved at once")]
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, accept_with, recvmsg,
    socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::IoSliceMut;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use tensorlease_memory::descriptor::above_standard;

/// Most descriptors that one frame carries.
pub(crate) const DESCRIPTORS_MAX: usize = 16;

/// An event that counts from 0.
pub(crate) fn event() -> Result<OwnedFd, Errno> {
    above_standard(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A Unix socket that is neither bound nor connected.
pub(crate) fn unix_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | flags;
    above_standard(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The next client of a socket that listens.
pub(crate) fn accepted(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    above_standard(accept_with(listener, SocketFlags::CLOEXEC)?)
}

/// Readable when the process is dead.
pub(crate) fn process(pid: Pid) -> Result<OwnedFd, Errno> {
    above_standard(pidfd_open(pid, PidfdFlags::empty())?)
}

/// A file, which is not passed on to other programs.
pub(crate) fn file(path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    above_standard(rustix::fs::open(path, OFlags::CLOEXEC | flags, mode)?)
}

/// Receives bytes of a frame, and the descriptors that come with them. For a moment these have the lowest free numbers.
/// What a program prints just then is refused, because a memory file takes no writes.
pub(crate) fn received(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<usize, Errno> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(room)];
    let message = retry_on_intr(|| recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(come) = ancillary {
            for descriptor in come {
                descriptors.push(above_standard(descriptor)?);
            }
        }
    }
    Ok(message.bytes)
}
