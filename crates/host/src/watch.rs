//! Waits for descriptors.
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use std::time::Duration;

/// Pause after a wait that the system refused.
const PAUSE: Duration = Duration::from_millis(100);

/// Until one of them is ready, or `most` is over, or a signal comes. The system may refuse to wait: it is short of memory for a moment, or more are
/// watched than the process may now have open. That is no reason to watch no more: a caller goes on, and after an error it does so after a pause.
pub(crate) fn wait(watched: &mut [PollFd<'_>], most: Option<&Timespec>) -> Result<(), Errno> {
    match poll(watched, most) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => {
            std::thread::sleep(PAUSE);
            Err(errno)
        }
    }
}
