//! One client's connection: its process, its socket, what it holds.
use super::holdings::Holdings;
use crate::socket;
use crate::wire::ClientRow;
use rustix::process::Pid;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;
use tensorlease_memory::lock;

/// One thread serves its requests. The reaper ends it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) pid: Pid,
    /// Readable when the process is dead.
    pub(super) pidfd: OwnedFd,
    pub(super) socket: OwnedFd,
    came: Instant,
    holdings: Mutex<Holdings>,
    /// Further connections of the same process, which carry what the engine behind the daemon does for it.
    lanes: Mutex<Vec<Weak<Self>>>,
}

/// Most lanes of one client. Each has a thread here.
const LANES_MAX: usize = 64;

/// Bytes that the engine moves for a client just now.
pub(super) struct Transferring<'s> {
    session: &'s Session,
    bytes: u64,
}

impl Drop for Transferring<'_> {
    fn drop(&mut self) {
        self.session.holdings().counted.transfer_bytes -= self.bytes;
    }
}

impl Session {
    pub(super) fn new(number: u64, pid: Pid, pidfd: OwnedFd, socket: OwnedFd) -> Self {
        Self {
            number,
            pid,
            pidfd,
            socket,
            came: Instant::now(),
            holdings: Mutex::default(),
            lanes: Mutex::default(),
        }
    }

    /// `lane` becomes one of this session's. False: it has too many, or asks for nothing more.
    pub(super) fn add_lane(&self, lane: &Arc<Self>) -> bool {
        let mut lanes = lock(&self.lanes);
        lanes.retain(|lane| 0 < lane.strong_count());
        // The lock is held, so that a lane is either ended with its session or not begun.
        if self.holdings().has_left() || LANES_MAX <= lanes.len() {
            return false;
        }
        lanes.push(Arc::downgrade(lane));
        true
    }

    /// Ends all of its connections. A transfer that runs goes on.
    pub(super) fn hang_up(&self) {
        socket::shut_down(&self.socket);
        for lane in lock(&self.lanes).iter().filter_map(Weak::upgrade) {
            socket::shut_down(&lane.socket);
        }
    }

    /// Adds nothing to what it holds any more, and no lane. True: it holds nothing.
    pub(super) fn close(&self) -> bool {
        // No answer leaves any more. The client never hears of what is added until the next line.
        socket::shut_down(&self.socket);
        let empty = self.holdings().close();
        self.hang_up();
        empty
    }

    pub(super) fn transferring(&self, bytes: u64) -> Transferring<'_> {
        self.holdings().counted.transfer_bytes += bytes;
        Transferring { session: self, bytes }
    }

    pub(super) fn count_read(&self, bytes: u64) {
        let counted = &mut self.holdings().counted;
        counted.read_objects += 1;
        counted.read_bytes += bytes;
    }

    pub(super) fn count_written(&self, bytes: u64) {
        let counted = &mut self.holdings().counted;
        counted.written_objects += 1;
        counted.written_bytes += bytes;
    }

    /// Counts bytes that a failed transfer may still write.
    pub(super) fn count_late(&self, bytes: u64) {
        self.holdings().counted.late_bytes += bytes;
    }

    pub(super) fn holdings(&self) -> MutexGuard<'_, Holdings> {
        lock(&self.holdings)
    }

    pub(super) fn row(&self) -> ClientRow {
        ClientRow {
            session: self.number,
            pid: self.pid.as_raw_nonzero().get().unsigned_abs(),
            age_ms: u64::try_from(self.came.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..self.holdings().row()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Daemon, DaemonOptions};
    use crate::place::SocketPath;
    use std::os::unix::net::UnixStream;

    #[test]
    fn nothing_is_added_to_what_a_client_holds_that_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let options = DaemonOptions {
            socket: SocketPath::new(folder.path().join("host.sock")).unwrap(),
            max_bytes: 1 << 20,
            idle_end: None,
        };
        let daemon = Daemon::start(options).unwrap();
        let (client, served) = UnixStream::pair().unwrap();
        let (_alive, death) = UnixStream::pair().unwrap();
        daemon.attach(served.into(), death.into());
        let session = daemon.shared.all_sessions().remove(0);
        // A lie on one of its lanes, while a request for memory is being served on its own connection.
        daemon.shared.cut_off(&session);
        assert_eq!(daemon.sessions(), 0, "it held nothing");
        let block = daemon.shared.memory.blocks(&[100]).remove(0).unwrap();
        session.holdings().reserve(block);
        assert!(session.holdings().is_empty());
        assert_eq!(daemon.held_bytes(), 0, "nobody would ever give it back");
        assert!(!session.add_lane(&session), "it gets no lane either");
        drop(client);
    }
}
