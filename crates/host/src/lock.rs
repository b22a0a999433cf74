//! Locks that a panic does not poison.
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Each change under a lock of this crate is one call of a map or a list. No panic leaves it half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
