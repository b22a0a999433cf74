//! An engine that takes its time.
use crate::forward;
use crate::{Capabilities, Engine};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

/// Every call on objects begins with a pause. Registrations, `stats` and `close` do not.
pub struct Slow {
    inner: Arc<dyn Engine>,
    capabilities: Capabilities,
    pause: Duration,
}

impl Slow {
    /// Pauses for `pause` per call, whatever the number of its keys. Unless that is zero, the engine no longer claims to be
    /// `prompt`.
    pub fn new(inner: Arc<dyn Engine>, pause: Duration) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.prompt &= pause.is_zero();
        Self {
            inner,
            capabilities,
            pause,
        }
    }

    fn pause(&self) {
        sleep(self.pause);
    }
}

impl Engine for Slow {
    forward!(register, unregister, asides, close);
    forward!(@ objects_after pause);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
}
