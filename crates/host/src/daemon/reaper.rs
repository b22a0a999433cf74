//! Notices dead clients: a process descriptor is readable when its process is dead, whoever has inherited its socket.
use super::{Shared, lock_of, wake};
use crate::watch;
use rustix::event::{PollFd, PollFlags};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Wakes the thread that polls.
#[derive(Debug)]
pub(super) struct Reaper {
    event: OwnedFd,
}

impl Reaper {
    pub(super) fn new(event: OwnedFd) -> Self {
        Self { event }
    }

    /// The sessions have changed, or the daemon stops.
    pub(super) fn wake(&self) {
        wake(&self.event);
    }
}

/// Until the daemon stops.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut refused = false;
    while !shared.is_stopping() {
        let sessions: Vec<_> = lock_of(&shared.sessions).values().cloned().collect();
        let mut watched = vec![PollFd::new(&shared.reaper.event, PollFlags::IN)];
        watched.extend(
            sessions
                .iter()
                .map(|session| PollFd::new(&session.pidfd, PollFlags::IN)),
        );
        let waited = watch::wait(&mut watched, None);
        match waited {
            Err(errno) if !refused => log::error!("dead clients can't be noticed just now: {errno}"),
            Ok(()) if refused => log::info!("dead clients are noticed again"),
            _ => {}
        }
        refused = waited.is_err();
        if !watched[0].revents().is_empty() {
            // The count itself says nothing: the sessions are looked at anew in any case.
            let _count = rustix::io::read(&shared.reaper.event, &mut [0_u8; 8]);
        }
        let dead = sessions.iter().zip(&watched[1..]);
        for (session, _) in dead.filter(|(_, watched)| !watched.revents().is_empty()) {
            log::debug!("client {} (process {}) is dead", session.number, session.row().pid);
            shared.bury(session);
        }
    }
}
