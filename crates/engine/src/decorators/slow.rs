//! An engine that takes its time.
use crate::forward;
use crate::{Capabilities, Engine, Fault, ObjectInfo, ReadOp, WriteOp};
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
}

impl Engine for Slow {
    forward!(register, unregister, asides, close);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        sleep(self.pause);
        self.inner.read_batch(reads)
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        sleep(self.pause);
        self.inner.write_batch(writes)
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        sleep(self.pause);
        self.inner.remove_batch(keys)
    }

    fn remove_prefix(&self, prefix: &str) -> Result<u64, Fault> {
        sleep(self.pause);
        self.inner.remove_prefix(prefix)
    }

    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        sleep(self.pause);
        self.inner.contains_batch(keys)
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        sleep(self.pause);
        self.inner.describe_batch(keys)
    }
}
