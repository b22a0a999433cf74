//! An engine into which a test reaches.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tensorlease::engine::{
    Capabilities, CloseError, Engine, Fault, ObjectInfo, ReadOp, RegisterError, Viewed, Views, WriteOp,
};
use tensorlease_memory::{Region, SlabSource};

/// Answers a read in place of the engine, or lets it through. Gets the number of the call, from 1.
type OnRead = dyn Fn(u64, &[ReadOp<'_>]) -> Option<Vec<Result<u64, Fault>>> + Send + Sync;
/// Answers a registration in place of the engine, or lets it through.
type OnRegister = dyn Fn(Region) -> Option<RegisterError> + Send + Sync;
/// Runs after a description, or a view, on the inner engine. Gets the number of the call, from 1.
type AfterDescribe = dyn Fn(u64, &dyn Engine) + Send + Sync;
/// Answers a write in place of the engine, or lets it through. Gets the number of the call, from 1.
type OnWrite = dyn Fn(u64, &[WriteOp<'_>]) -> Option<Vec<Result<(), Fault>>> + Send + Sync;

/// Passes every call on, after a test's hook had its say.
pub(crate) struct Hooked {
    inner: Arc<dyn Engine>,
    capabilities: Capabilities,
    reads: AtomicU64,
    writes: AtomicU64,
    descriptions: AtomicU64,
    closes: bool,
    slabs: Option<Arc<dyn SlabSource>>,
    late_bytes: u64,
    on_read: Option<Box<OnRead>>,
    on_write: Option<Box<OnWrite>>,
    on_register: Option<Box<OnRegister>>,
    after_describe: Option<Box<AfterDescribe>>,
}

impl Hooked {
    pub(crate) fn new(inner: Arc<dyn Engine>) -> Self {
        Self {
            capabilities: inner.capabilities().clone(),
            inner,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            descriptions: AtomicU64::new(0),
            closes: true,
            slabs: None,
            late_bytes: 0,
            on_read: None,
            on_write: None,
            on_register: None,
            after_describe: None,
        }
    }

    /// Claims that transfers may end late.
    pub(crate) fn claiming_late_writes(mut self) -> Self {
        self.capabilities.late_writes = true;
        self
    }

    /// Claims that it makes room when it is full.
    pub(crate) fn claiming_eviction(mut self) -> Self {
        self.capabilities.evicts = true;
        self
    }

    /// Memory of the client's arena comes from there.
    pub(crate) fn with_slabs(mut self, slabs: Arc<dyn SlabSource>) -> Self {
        self.slabs = Some(slabs);
        self
    }

    /// Keeps so many bytes of its own for transfers that were given up.
    pub(crate) fn keeping(mut self, late_bytes: u64) -> Self {
        self.late_bytes = late_bytes;
        self
    }

    /// Never closes.
    pub(crate) fn failing_to_close(mut self) -> Self {
        self.closes = false;
        self
    }

    pub(crate) fn on_read(
        mut self,
        hook: impl Fn(u64, &[ReadOp<'_>]) -> Option<Vec<Result<u64, Fault>>> + Send + Sync + 'static,
    ) -> Self {
        self.on_read = Some(Box::new(hook));
        self
    }

    pub(crate) fn on_write(
        mut self,
        hook: impl Fn(u64, &[WriteOp<'_>]) -> Option<Vec<Result<(), Fault>>> + Send + Sync + 'static,
    ) -> Self {
        self.on_write = Some(Box::new(hook));
        self
    }

    pub(crate) fn on_register(
        mut self,
        hook: impl Fn(Region) -> Option<RegisterError> + Send + Sync + 'static,
    ) -> Self {
        self.on_register = Some(Box::new(hook));
        self
    }

    pub(crate) fn after_describe(mut self, hook: impl Fn(u64, &dyn Engine) + Send + Sync + 'static) -> Self {
        self.after_describe = Some(Box::new(hook));
        self
    }
}

impl Hooked {
    fn described(&self) {
        let call = self.descriptions.fetch_add(1, Relaxed) + 1;
        if let Some(hook) = &self.after_describe {
            hook(call, &*self.inner);
        }
    }
}

impl Views for Hooked {
    fn view_batch(&self, keys: &[&str]) -> Vec<Result<Viewed, Fault>> {
        let viewed = self.inner.views().map(|views| views.view_batch(keys));
        self.described();
        viewed.unwrap_or_default()
    }
}

impl Engine for Hooked {
    tensorlease_engine::forward!(
        unregister,
        remove_batch,
        remove_prefix,
        contains_batch,
        stats,
        remark,
        staging
    );

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&self, region: Region) -> Result<(), RegisterError> {
        match self.on_register.as_ref().and_then(|hook| hook(region)) {
            Some(error) => Err(error),
            None => self.inner.register(region),
        }
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        let call = self.reads.fetch_add(1, Relaxed) + 1;
        let answer = self.on_read.as_ref().and_then(|hook| hook(call, reads));
        answer.unwrap_or_else(|| self.inner.read_batch(reads))
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        let call = self.writes.fetch_add(1, Relaxed) + 1;
        let answer = self.on_write.as_ref().and_then(|hook| hook(call, writes));
        answer.unwrap_or_else(|| self.inner.write_batch(writes))
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        let described = self.inner.describe_batch(keys);
        self.described();
        described
    }

    fn late_bytes(&self) -> u64 {
        self.late_bytes
    }

    fn views(&self) -> Option<&dyn Views> {
        self.inner.views().is_some().then_some(self)
    }

    fn slabs(&self) -> Option<Arc<dyn SlabSource>> {
        self.slabs.clone()
    }

    fn close(&self) -> Result<(), CloseError> {
        if !self.closes {
            let source = "a transfer still runs".into();
            return Err(CloseError::Failed { source });
        }
        self.inner.close()
    }
}
