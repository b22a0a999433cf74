//! An engine that records its calls.
use crate::forward;
use crate::{CloseError, Engine, Fault, ObjectInfo, ReadOp, RegisterError, WriteOp};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensorlease_memory::{Region, Source};

/// One key of a recorded read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedRead {
    /// Name of the object.
    pub key: String,
    /// First byte asked for.
    pub offset: u64,
    /// Size of the whole object as the caller expects it, bytes.
    pub object_len: u64,
    /// Where the bytes were to go.
    pub target: Region,
    /// They were to come by the transport.
    pub by_transport: bool,
}

/// One recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// `register`.
    Register(Region),
    /// `unregister`.
    Unregister(Region),
    /// `read_batch`.
    Read(Vec<ObservedRead>),
    /// `write_batch`: the keys, and for each the memory of its segments.
    Write(Vec<(String, Vec<Region>)>),
    /// `remove_batch`.
    Remove(Vec<String>),
    /// `remove_prefix`.
    RemovePrefix(String),
    /// `contains_batch`.
    Contains(Vec<String>),
    /// `describe_batch`.
    Describe(Vec<String>),
    /// `close`.
    Close,
}

/// Records every call but `capabilities` and `stats`, in the order in which they began, and spoils nothing.
pub struct Observing {
    inner: Arc<dyn Engine>,
    calls: Mutex<Vec<Call>>,
}

impl Observing {
    /// Records the calls to `inner`.
    pub fn new(inner: Arc<dyn Engine>) -> Self {
        Self {
            inner,
            calls: Mutex::new(Vec::new()),
        }
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.recorded().clone()
    }

    /// All calls since the last `take`, which are forgotten.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.recorded())
    }

    /// How many recorded calls match.
    pub fn count(&self, matches: impl Fn(&Call) -> bool) -> usize {
        self.recorded().iter().filter(|call| matches(call)).count()
    }

    /// The reads among the recorded calls, one entry per call.
    pub fn reads(&self) -> Vec<Vec<ObservedRead>> {
        let reads = |call: &Call| {
            if let Call::Read(reads) = call {
                Some(reads.clone())
            } else {
                None
            }
        };
        self.recorded().iter().filter_map(reads).collect()
    }

    fn record(&self, call: Call) {
        self.recorded().push(call);
    }

    fn recorded(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn owned(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|&key| key.to_owned()).collect()
}

fn observed_read(read: &ReadOp<'_>) -> ObservedRead {
    ObservedRead {
        key: read.key.to_owned(),
        offset: read.offset,
        object_len: read.object_len,
        target: read.target.region(),
        by_transport: read.by_transport,
    }
}

fn observed_write(write: &WriteOp<'_>) -> (String, Vec<Region>) {
    (
        write.key.to_owned(),
        write.segments.iter().map(Source::region).collect(),
    )
}

impl Engine for Observing {
    forward!(capabilities, asides);

    fn register(&self, region: Region) -> Result<(), RegisterError> {
        self.record(Call::Register(region));
        self.inner.register(region)
    }

    fn unregister(&self, region: Region) -> Result<(), RegisterError> {
        self.record(Call::Unregister(region));
        self.inner.unregister(region)
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        self.record(Call::Read(reads.iter().map(observed_read).collect()));
        self.inner.read_batch(reads)
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        self.record(Call::Write(writes.iter().map(observed_write).collect()));
        self.inner.write_batch(writes)
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.record(Call::Remove(owned(keys)));
        self.inner.remove_batch(keys)
    }

    fn remove_prefix(&self, prefix: &str) -> Result<u64, Fault> {
        self.record(Call::RemovePrefix(prefix.to_owned()));
        self.inner.remove_prefix(prefix)
    }

    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.record(Call::Contains(owned(keys)));
        self.inner.contains_batch(keys)
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        self.record(Call::Describe(owned(keys)));
        self.inner.describe_batch(keys)
    }

    fn close(&self) -> Result<(), CloseError> {
        self.record(Call::Close);
        self.inner.close()
    }
}
