//! One client's connection: its process, its socket, what it holds.
use super::holdings::Holdings;
use super::{Shared, lock_of};
use crate::socket;
use crate::wire::ClientRow;
use rustix::process::Pid;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Its requests are served by one thread; the reaper ends it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) pid: Pid,
    /// Readable when the process is dead.
    pub(super) pidfd: OwnedFd,
    pub(super) socket: OwnedFd,
    came: Instant,
    holdings: Mutex<Holdings>,
    /// The socket has ended. What is held then is quarantined: the process lives and may still touch it.
    cut_off: AtomicBool,
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
            cut_off: AtomicBool::new(false),
        }
    }

    pub(super) fn holdings(&self) -> MutexGuard<'_, Holdings> {
        lock_of(&self.holdings)
    }

    pub(super) fn row(&self) -> ClientRow {
        ClientRow {
            session: self.number,
            pid: self.pid.as_raw_nonzero().get().unsigned_abs(),
            age_ms: u64::try_from(self.came.elapsed().as_millis()).unwrap_or(u64::MAX),
            quarantined: self.cut_off.load(Ordering::Relaxed),
            ..self.holdings().row()
        }
    }
}

impl Shared {
    pub(super) fn add_session(&self, session: &Arc<Session>) {
        lock_of(&self.sessions).insert(session.number, Arc::clone(session));
        self.reaper.wake();
    }

    /// The socket has ended. A client that holds nothing is gone; what another one holds waits for the end of its process, which may still read and
    /// write that memory.
    pub(super) fn cut_off(&self, session: &Session) {
        session.cut_off.store(true, Ordering::Relaxed);
        socket::shut_down(&session.socket);
        if session.holdings().is_empty() {
            self.forget(session);
        }
    }

    /// The process is dead: whatever it held goes back.
    pub(super) fn bury(&self, session: &Session) {
        socket::shut_down(&session.socket);
        let held = session.holdings().end();
        // Outside the lock: giving back takes others.
        drop(held);
        self.forget(session);
    }

    fn forget(&self, session: &Session) {
        lock_of(&self.sessions).remove(&session.number);
        self.reaper.wake();
    }
}
