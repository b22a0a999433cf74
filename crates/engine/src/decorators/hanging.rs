//! An engine that takes its time to register memory.
use crate::forward;
use crate::{Capabilities, Engine, RegisterError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;
use tensorlease_memory::Region;

/// Registrations hang for a while, as those of much memory do, or of memory that a network card does not take; then they go on as ever.
pub struct Hanging {
    inner: Arc<dyn Engine>,
    capabilities: Capabilities,
    hang: Duration,
    /// Counted from 1; 0: each one.
    call: u64,
    calls: AtomicU64,
}

impl Hanging {
    /// Every registration hangs for `hang`, or the one with this number alone, counted from 1. Unless `hang` is zero, the engine no longer claims to
    /// be `prompt`.
    pub fn new(inner: Arc<dyn Engine>, hang: Duration, call: Option<u64>) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.prompt &= hang.is_zero();
        Self {
            inner,
            capabilities,
            hang,
            call: call.unwrap_or(0),
            calls: AtomicU64::new(0),
        }
    }
}

impl Engine for Hanging {
    forward!(
        unregister,
        read_batch,
        write_batch,
        remove_batch,
        remove_prefix,
        contains_batch,
        describe_batch,
        asides,
        close
    );

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&self, region: Region) -> Result<(), RegisterError> {
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        if self.call == 0 || self.call == call {
            sleep(self.hang);
        }
        self.inner.register(region)
    }
}
