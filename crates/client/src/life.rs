//! Whether a store may still be used, and by whom: open or closed, this process or a forked child.

use crate::CallError;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tensorlease_memory::fork;

/// `closed` and `running` are SeqCst throughout: a call counts itself and then looks whether the store is closed, `close` does it the other way
/// round, and one of the two must see the other.
#[derive(Debug)]
pub(crate) struct Life {
    closed: AtomicBool,
    /// Calls inside the store now.
    running: AtomicUsize,
    fork_generation: u64,
}

impl Life {
    pub(crate) fn begin() -> Self {
        Self {
            closed: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            fork_generation: fork::generation(),
        }
    }

    /// Is this process a child of the one that opened the store?
    pub(crate) fn is_forked(&self) -> bool {
        fork::generation() != self.fork_generation
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Marks the store closed; `true` the first time.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    /// Every call starts here; the guard ends it.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Entered, CallError> {
        if self.is_forked() {
            return Err(CallError::Forked);
        }
        self.running.fetch_add(1, Ordering::SeqCst);
        let entered = Entered { life: Arc::clone(self) };
        if self.is_closed() {
            return Err(CallError::Closed);
        }
        Ok(entered)
    }

    pub(crate) fn calls_running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }
}

/// One call inside the store; `close` waits for them.
pub(crate) struct Entered {
    life: Arc<Life>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.life.running.fetch_sub(1, Ordering::SeqCst);
    }
}
