//! How long a call may wait, and what may end it early.

use crate::CallError;
use std::{
    fmt,
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tensorlease_memory::lock;

/// A waiting call comes back at least this often to ask `interrupted`.
const SLICE: Duration = Duration::from_millis(20);
/// A wait that nothing can interrupt still wakes this often.
const SLICE_WITHOUT_INTERRUPT: Duration = Duration::from_secs(1);

/// Deadline and interrupt of one call.
#[derive(Clone, Copy, Default)]
pub struct Patience<'a> {
    /// Past it the call ends with [`CallError::Timeout`]. `None`: the store's `call_timeout`.
    pub deadline: Option<Instant>,
    /// When the caller began to wait, which a [`CallError::Timeout`] counts from. `None`: when the call does.
    pub since: Option<Instant>,
    /// Asked at least every 20 ms while the call waits; `true` ends it with [`CallError::Interrupted`].
    pub interrupted: Option<&'a (dyn Fn() -> bool + Sync)>,
}

impl fmt::Debug for Patience<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Patience")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl<'a> Patience<'a> {
    /// Waits at most this long from now.
    #[must_use]
    pub fn within(timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            deadline: now.checked_add(timeout),
            since: Some(now),
            interrupted: None,
        }
    }

    /// As a call uses it: from now on, and with a bound in any case.
    pub(crate) fn bounded(self, call_timeout: Duration) -> Wait<'a> {
        let now = Instant::now();
        Wait {
            since: self.since.unwrap_or(now),
            deadline: self.deadline.or_else(|| now.checked_add(call_timeout)),
            interrupted: self.interrupted,
        }
    }
}

/// The patience of one running call: all its waits share a start, a bound and an interrupt.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    since: Instant,
    /// `None` only where the bound is further away than the clock can tell.
    deadline: Option<Instant>,
    interrupted: Option<&'a (dyn Fn() -> bool + Sync)>,
}

impl Wait<'_> {
    /// How long the next wait may last, or why there is none.
    pub(crate) fn slice(&self) -> Result<Duration, CallError> {
        if self.interrupted.is_some_and(|interrupted| interrupted()) {
            return Err(CallError::Interrupted);
        }
        let slice = if self.interrupted.is_some() {
            SLICE
        } else {
            SLICE_WITHOUT_INTERRUPT
        };
        let Some(deadline) = self.deadline else {
            return Ok(slice);
        };
        let now = Instant::now();
        if deadline <= now {
            let waited = now.duration_since(self.since).as_millis();
            return Err(CallError::Timeout {
                waited_ms: u64::try_from(waited).unwrap_or(u64::MAX),
            });
        }
        Ok(slice.min(deadline - now))
    }

    /// A wait of at least `least` from now on: for what must be tried once, however little time there is.
    pub(crate) fn at_least(&self, least: Duration) -> Self {
        Self {
            deadline: self.deadline.map(|deadline| deadline.max(Instant::now() + least)),
            ..*self
        }
    }

    /// Sleeps `pause`, in slices.
    pub(crate) fn sleep(&self, pause: Duration) -> Result<(), CallError> {
        let start = Instant::now();
        loop {
            let slice = self.slice()?;
            let left = pause.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(slice.min(left));
        }
    }

    /// Waits on `condition` until `ready` says so. No lock is held while `interrupted` runs: it may take the interpreter's.
    pub(crate) fn wait<T>(
        &self,
        mutex: &Mutex<T>,
        condition: &Condvar,
        ready: impl Fn(&T) -> bool,
    ) -> Result<(), CallError> {
        loop {
            let slice = if ready(&lock(mutex)) {
                return Ok(());
            } else {
                self.slice()?
            };
            let guard = lock(mutex);
            if ready(&guard) {
                return Ok(());
            }
            drop(
                condition
                    .wait_timeout(guard, slice)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let wait = Patience::within(Duration::from_millis(30)).bounded(Duration::from_secs(60));
        let waited = wait.wait(&Mutex::new(false), &Condvar::new(), |ready| *ready);
        assert!(
            matches!(waited, Err(CallError::Timeout { waited_ms }) if waited_ms >= 30),
            "{waited:?}"
        );
    }

    #[test]
    fn a_timeout_counts_from_the_start_of_the_call() {
        let wait = Patience::within(Duration::from_millis(40)).bounded(Duration::from_secs(60));
        let pause = Duration::from_millis(15);
        let ended = (0..100).find_map(|_| wait.sleep(pause).err());
        assert!(
            matches!(ended, Some(CallError::Timeout { waited_ms }) if waited_ms >= 40),
            "{ended:?}"
        );
    }

    #[test]
    fn a_call_without_a_deadline_has_the_stores() {
        let wait = Patience::default().bounded(Duration::from_millis(10));
        assert!(matches!(
            wait.sleep(Duration::from_secs(60)),
            Err(CallError::Timeout { .. })
        ));
    }

    #[test]
    fn an_interrupt_ends_a_wait() {
        let patience = Patience {
            interrupted: Some(&|| true),
            ..Patience::default()
        };
        let wait = patience.bounded(Duration::from_secs(60));
        assert!(matches!(
            wait.sleep(Duration::from_secs(60)),
            Err(CallError::Interrupted)
        ));
    }
}
