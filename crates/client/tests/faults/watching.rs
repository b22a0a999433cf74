//! The outermost engine: counts what really went wrong, and keeps the registrations in view up to the close.

use crate::{tally::Tally, unruly::Unruly};
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};
use tensorlease::engine::{
    Capabilities, CloseError, Engine, Fault, FaultKind, ObjectInfo, ReadOp, RegisterError, WriteOp,
    decorators::{Failing, LateWriting},
};
use tensorlease_memory::Region;

/// Passes every call on and looks at the results.
pub(crate) struct Watching {
    inner: Arc<dyn Engine>,
    tally: Arc<Tally>,
    running: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    registered: Vec<Region>,
    /// Memory of transfers that may still run.
    late: Vec<Region>,
    /// Keys of which a read brought a part.
    in_parts: HashSet<String>,
    /// Registered at the close, though no transfer used it.
    left_behind: Option<Vec<Region>>,
}

impl Watching {
    pub(crate) fn new(inner: Arc<dyn Engine>, tally: Arc<Tally>) -> Self {
        Self {
            inner,
            tally,
            running: AtomicUsize::new(0),
            seen: Mutex::default(),
        }
    }

    /// Calls inside the engine now.
    pub(crate) fn running(&self) -> usize {
        self.running.load(SeqCst)
    }

    /// Registrations that nobody had ended when the engine was closed. `None`: it is not closed, or calls ran, or some may
    /// still have run.
    pub(crate) fn left_behind(&self) -> Option<Vec<Region>> {
        self.seen().left_behind.clone()
    }

    /// Was this key (with its namespace) read in several calls? Then its parts may be of several values.
    pub(crate) fn read_in_parts(&self, key: &str) -> bool {
        self.seen().in_parts.contains(key)
    }

    /// Did a transfer end that may still write or read its memory?
    pub(crate) fn saw_late(&self) -> bool {
        !self.seen().late.is_empty()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        let _running = Running::new(&self.running);
        call()
    }

    fn count<T>(&self, results: &[Result<T, Fault>]) {
        for fault in results.iter().filter_map(|result| result.as_ref().err()) {
            let name = match fault.code {
                LateWriting::CODE => "late write".to_owned(),
                Failing::CODE => format!("fail {:?}", fault.kind),
                // Counted where it was made.
                Unruly::CODE => continue,
                _ if fault.message.contains("lost on purpose") => "lost key".to_owned(),
                _ => {
                    self.tally.add(format!("engine/{:?}", fault.kind), 1);
                    continue;
                }
            };
            self.tally.add(format!("struck/{name}"), 1);
        }
    }
}

/// Counts a running call, however it ends.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn new(running: &'a AtomicUsize) -> Self {
        running.fetch_add(1, SeqCst);
        Self(running)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn may_still_write<T>(result: &Result<T, Fault>) -> bool {
    matches!(result, Err(fault) if fault.kind == FaultKind::MayStillWrite)
}

fn sources(write: &WriteOp<'_>) -> Vec<Region> {
    let region = |source: &tensorlease_memory::Source<'_>| Region {
        addr: source.addr(),
        len: source.len(),
    };
    write.segments.iter().map(region).collect()
}

impl Engine for Watching {
    tensorlease_engine::forward!(stats, remark, staging, views, slabs);

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, region: Region) -> Result<(), RegisterError> {
        let registered = self.inner.register(region);
        match &registered {
            Ok(()) => self.seen().registered.push(region),
            Err(_) => self.tally.add("struck/registration refused", 1),
        }
        registered
    }

    fn unregister(&self, region: Region) -> Result<(), RegisterError> {
        self.seen().registered.retain(|known| *known != region);
        self.inner.unregister(region)
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        // A call that panics may still write, as the client is to assume of an engine that claims late writes.
        let in_part = |read: &&ReadOp<'_>| (read.target.len() as u64) < read.object_len;
        let in_parts = reads.iter().filter(in_part).map(|read| read.key.to_owned());
        self.seen().in_parts.extend(in_parts);
        let targets: Vec<Region> = reads.iter().map(|read| read.target.region()).collect();
        let unanswered = Unanswered {
            seen: &self.seen,
            regions: targets.clone(),
        };
        let results = self.call(|| self.inner.read_batch(reads));
        unanswered.answered();
        self.count(&results);
        for ((result, target), read) in results.iter().zip(targets).zip(reads) {
            if may_still_write(result) {
                self.seen().late.push(target);
            }
            if matches!(result, Ok(len) if *len < read.target.len() as u64) {
                self.tally.add("struck/short read", 1);
            }
        }
        results
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        let unanswered = Unanswered {
            seen: &self.seen,
            regions: writes.iter().flat_map(sources).collect(),
        };
        let results = self.call(|| self.inner.write_batch(writes));
        unanswered.answered();
        self.count(&results);
        for (result, write) in results.iter().zip(writes) {
            if may_still_write(result) {
                self.seen().late.extend(sources(write));
            }
        }
        results
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        let results = self.call(|| self.inner.remove_batch(keys));
        self.count(&results);
        results
    }

    fn remove_prefix(&self, prefix: &str) -> Result<u64, Fault> {
        self.call(|| self.inner.remove_prefix(prefix))
    }

    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.call(|| self.inner.contains_batch(keys))
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        self.call(|| self.inner.describe_batch(keys))
    }

    fn close(&self) -> Result<(), CloseError> {
        let quiet = self.running() == 0;
        let mut seen = self.seen();
        // What a late transfer uses stays registered, and with it what was registered for the same call.
        let settled = quiet && seen.late.is_empty();
        seen.left_behind = settled.then(|| seen.registered.clone());
        drop(seen);
        self.inner.close()
    }
}

/// Memory of a call that has not answered: dropped by a panic, it counts as late.
struct Unanswered<'a> {
    seen: &'a Mutex<Seen>,
    regions: Vec<Region>,
}

impl Unanswered<'_> {
    fn answered(mut self) {
        self.regions.clear();
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.late.append(&mut self.regions);
    }
}
