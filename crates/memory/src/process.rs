//! What the kernel says of the process at the other end of a socket, and the end of this one.

use rustix::process::{Pid, Uid};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end of a Unix socket, as it was when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// None: it runs in another PID namespace, where it has no number that this process could use.
    pub pid: Option<Pid>,
    /// Its user.
    pub user: Uid,
}

impl Peer {
    /// Asks the kernel. Not `rustix::net::sockopt::socket_peercred`, whose number of a process can't be the 0 that the kernel says of another
    /// namespace.
    ///
    /// # Errors
    /// The descriptor is no Unix socket that is connected.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut found = libc::ucred {
            pid: 0,
            uid: libc::uid_t::MAX,
            gid: libc::gid_t::MAX,
        };
        let mut len: libc::socklen_t = size_of::<libc::ucred>().try_into().expect("a few bytes");
        // SAFETY: the kernel writes at most `len` bytes to `found`, any of which make a `ucred`, and to `len`; both outlive the call.
        let status = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            pid: Pid::from_raw(found.pid),
            user: Uid::from_raw(found.uid),
        })
    }
}

/// Ends this process at once: nothing is flushed, and no code of its libraries runs, which may wait for what never comes.
pub fn end_at_once(status: i32) -> ! {
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(status) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, other) = UnixStream::pair().unwrap();
        let own = Peer {
            pid: Some(rustix::process::getpid()),
            user: rustix::process::getuid(),
        };
        assert_eq!(Peer::of(&one).unwrap(), own);
        assert_eq!(Peer::of(&other).unwrap(), own);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test's own file")]
    fn what_is_no_socket_has_no_other_end() {
        assert!(Peer::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
