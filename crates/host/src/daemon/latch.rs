//! A value that is set once and that other threads wait for.
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tensorlease_memory::lock;

#[derive(Debug, Default)]
pub(super) struct Latch<T> {
    value: Mutex<Option<T>>,
    came: Condvar,
}

impl<T: Copy> Latch<T> {
    pub(super) fn set(&self, value: T) {
        *lock(&self.value) = Some(value);
        self.came.notify_all();
    }

    /// None: it does not come within `timeout`.
    pub(super) fn wait(&self, timeout: Duration) -> Option<T> {
        let value = lock(&self.value);
        let waited = self.came.wait_timeout_while(value, timeout, |value| value.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
