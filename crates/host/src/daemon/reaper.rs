//! Notices dead clients. A process descriptor is readable when its process is dead, also where another process has
//! inherited its socket.
use super::shared::Shared;
use crate::watch;
use rustix::event::{PollFd, PollFlags};

/// Runs until the daemon stops.
pub(super) fn run(shared: &Shared) {
    let mut refused = false;
    while !shared.is_stopping() {
        let sessions = shared.all_sessions();
        let deaths = sessions
            .iter()
            .map(|session| PollFd::new(&session.pidfd, PollFlags::IN));
        let mut watched = vec![shared.sessions_changed.polled()];
        watched.extend(deaths);
        let waited = watch::wait(&mut watched, None);
        match waited {
            Err(errno) if !refused => log::error!("dead clients can't be noticed just now: {errno}"),
            Ok(()) if refused => log::info!("dead clients are noticed again"),
            _ => {}
        }
        refused = waited.is_err();
        if !watched[0].revents().is_empty() {
            shared.sessions_changed.clear();
        }
        let dead = sessions.iter().zip(&watched[1..]);
        for (session, _) in dead.filter(|(_, watched)| !watched.revents().is_empty()) {
            log::debug!(
                "client {} (process {}) is dead",
                session.number,
                session.pid.as_raw_nonzero()
            );
            shared.bury(session);
        }
    }
}
