//! The end of a store: waits for what runs, gives the memory back, closes the engine.

use crate::{Patience, parts::Parts, patience::Wait};
use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};
use tensorlease_engine::{CloseError, chained};

/// Bound of a close that names none, and of the close of a store that is dropped.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// An engine gets at least this long to close, whatever its calls have used up.
const CLOSE_ENGINE_MIN: Duration = Duration::from_millis(500);
/// A close looks for an interrupt this often.
const CLOSE_ENGINE_SLICE: Duration = Duration::from_millis(20);

/// Closes the store when the last of its users lets go of it.
pub(crate) struct Handle {
    pub(crate) parts: Arc<Parts>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.parts.life.is_forked() {
            // The parent's store is not ours to close: its threads and its kernel objects are not here, or are shared.
            mem::forget(Arc::clone(&self.parts));
            return;
        }
        close(&self.parts, Patience::default().bounded(CLOSE_TIMEOUT));
    }
}

/// The memory first, then the engine. Only the first close does anything.
pub(crate) fn close(parts: &Parts, wait: Wait<'_>) {
    let Parts {
        memory, calls, life, ..
    } = parts;
    if !life.close() {
        return;
    }
    // A deadline or an interrupt ends the waiting, never the closing.
    while 0 < life.calls_running() && wait.sleep(Duration::from_millis(1)).is_ok() {}
    memory.close();
    let mut ended = calls.workers().close(Instant::now());
    while !ended && wait.sleep(Duration::from_millis(1)).is_ok() {
        ended = calls.workers().close(Instant::now());
    }
    while memory.is_growing() && wait.sleep(Duration::from_millis(1)).is_ok() {}
    let name = calls.claims().name;
    // A call may also run on its caller's own thread, which closing doesn't end.
    if ended && life.calls_running() == 0 && !memory.is_arena_growing() {
        memory.registrations().unregister_slabs();
    } else {
        // Memory of a running transfer stays registered: closing the engine ends that too.
        log::warn!("closing while calls on the {name} engine still run; their memory is kept until they return");
    }
    match close_engine(parts, &wait) {
        Some(Ok(())) => memory.engine_closed(),
        // Whether transfers still write is unknown: what is quarantined stays so.
        Some(Err(error)) => log::warn!("{}", chained(&error)),
        None => log::warn!("the {name} engine has not closed in time; what is quarantined stays mapped"),
    }
}

/// An engine may wait for calls that hang: its close gets a thread of its own, and this call its bound.
fn close_engine(parts: &Parts, wait: &Wait<'_>) -> Option<Result<(), CloseError>> {
    let (sender, receiver) = mpsc::channel();
    let engine = Arc::clone(parts.calls.engine());
    let close = move || {
        let result = catch_unwind(AssertUnwindSafe(|| engine.close()));
        let panicked = || {
            Err(CloseError::Failed {
                source: "the engine panicked".into(),
            })
        };
        // The receiver is gone when the bound has passed.
        let _ = sender.send(result.unwrap_or_else(|_| panicked()));
    };
    let thread = thread::Builder::new().name("tensorlease-close".to_owned());
    thread.spawn(close).ok()?;
    let at_least = Instant::now() + CLOSE_ENGINE_MIN;
    loop {
        match receiver.recv_timeout(CLOSE_ENGINE_SLICE) {
            Ok(result) => return Some(result),
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) if at_least < Instant::now() && wait.slice().is_err() => {
                return None;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
}
