//! A client and its daemon as one engine.
#![allow(dead_code, reason = "each test program uses some of it")]
use crate::support::{Place, Process};
use std::sync::Arc;
use tensorlease_engine::{
    Capabilities, CloseError, Engine, EngineStats, Fault, ObjectInfo, ReadOp, RegisterError, WriteOp,
};
use tensorlease_host::{Behind, Daemon, HostEngine};
use tensorlease_memory::{Region, SlabSource};

/// A client with a daemon of its own, which ends with it: the engine first.
pub(crate) struct WithDaemon {
    engine: HostEngine,
    _thread: Option<Daemon>,
    _process: Option<Process>,
    _place: Place,
}

impl WithDaemon {
    pub(crate) fn in_a_thread() -> Self {
        let place = Place::new();
        let daemon = place.daemon();
        Self::of(place, daemon)
    }

    /// A daemon in front of an engine.
    pub(crate) fn before(behind: Behind) -> Self {
        let place = Place::new();
        let daemon = Daemon::start_before(place.options(), behind).expect("a daemon starts");
        Self::of(place, daemon)
    }

    fn of(place: Place, daemon: Daemon) -> Self {
        Self {
            engine: place.client(),
            _thread: Some(daemon),
            _process: None,
            _place: place,
        }
    }

    pub(crate) fn in_a_process() -> Self {
        let place = Place::new();
        let process = place.process("daemon");
        Self {
            engine: place.client(),
            _thread: None,
            _process: Some(process),
            _place: place,
        }
    }
}

impl Engine for WithDaemon {
    fn capabilities(&self) -> &Capabilities {
        self.engine.capabilities()
    }
    fn register(&self, region: Region) -> Result<(), RegisterError> {
        self.engine.register(region)
    }
    fn unregister(&self, region: Region) -> Result<(), RegisterError> {
        self.engine.unregister(region)
    }
    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        self.engine.read_batch(reads)
    }
    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        self.engine.write_batch(writes)
    }
    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.engine.remove_batch(keys)
    }
    fn remove_prefix(&self, prefix: &str) -> Result<u64, Fault> {
        self.engine.remove_prefix(prefix)
    }
    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.engine.contains_batch(keys)
    }
    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        self.engine.describe_batch(keys)
    }
    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
    fn slabs(&self) -> Option<Arc<dyn SlabSource>> {
        self.engine.slabs()
    }
    fn close(&self) -> Result<(), CloseError> {
        self.engine.close()
    }
}
