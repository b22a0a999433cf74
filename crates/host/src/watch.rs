//! Waits for descriptors.
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use std::time::Duration;

/// Pause after a wait that the system refused.
const PAUSE: Duration = Duration::from_millis(100);

/// Until one of them is ready, or `most` is over, or a signal comes. The system may refuse to wait: it is short of
/// memory for a moment, or more descriptors are watched than the process may now have open. The caller goes on all the
/// same. This function pauses before it returns such an error.
pub(crate) fn wait(watched: &mut [PollFd<'_>], most: Option<Duration>) -> Result<(), Errno> {
    let most = most.and_then(|most| Timespec::try_from(most).ok());
    match poll(watched, most.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => {
            std::thread::sleep(PAUSE);
            Err(errno)
        }
    }
}
