//! A way that only tests take.
use std::sync::atomic::{AtomicBool, Ordering};

/// Turns the way on and off. Without the feature `test-hooks` it is off, and the compiler knows that.
pub(crate) struct Switch(AtomicBool);

impl Switch {
    pub(crate) const fn off() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn is_on(&self) -> bool {
        cfg!(feature = "test-hooks") && self.0.load(Ordering::Relaxed)
    }

    #[cfg(feature = "test-hooks")]
    pub(crate) fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }
}
