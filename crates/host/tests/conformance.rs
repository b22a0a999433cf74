//! The suite over the engine of a host's clients, whose daemon runs in threads of this process, and in another process.
mod support;

use std::sync::Arc;
use support::{CAPACITY_BYTES, Place, Process, ROLE, SOCKET, ready_until_killed};
use tensorlease_engine::conformance::Rig;
use tensorlease_engine::{Capabilities, CloseError, Engine, EngineStats, Fault, ObjectInfo, ReadOp, RegisterError};
use tensorlease_engine::{Tag, WriteOp, conformance_tests};
use tensorlease_host::{Daemon, DaemonOptions, HostEngine, SocketPath};
use tensorlease_memory::{Region, SlabSource};

/// A client with a daemon of its own, which ends with it: the engine first.
struct WithDaemon {
    engine: HostEngine,
    _thread: Option<Daemon>,
    _process: Option<Process>,
    _place: Place,
}

impl WithDaemon {
    fn in_a_thread() -> Self {
        let place = Place::new();
        let daemon = place.daemon();
        Self {
            engine: place.client(),
            _thread: Some(daemon),
            _process: None,
            _place: place,
        }
    }

    fn in_a_process() -> Self {
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

fn daemon_in_a_thread() -> Option<Rig> {
    Some(Rig::new(Arc::new(WithDaemon::in_a_thread())).with_capacity(CAPACITY_BYTES))
}

fn daemon_in_a_process() -> Option<Rig> {
    Some(Rig::new(Arc::new(WithDaemon::in_a_process())).with_capacity(CAPACITY_BYTES))
}

conformance_tests!(on_host_in_a_thread, daemon_in_a_thread);
conformance_tests!(on_host_in_a_process, daemon_in_a_process);

/// Not a test: what this program does when a test starts it again.
#[test]
fn plays_a_role() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let socket = std::env::var_os(SOCKET).expect("a role has a socket");
    let daemon = Daemon::start(DaemonOptions {
        socket: SocketPath::new(socket).expect("a short path"),
        max_bytes: CAPACITY_BYTES,
        idle_end: None,
    });
    let _daemon = daemon.expect("a daemon starts");
    ready_until_killed();
}

/// Memory that the daemon itself lent is memory like any other: reads land in it.
#[test]
fn slabs_of_the_daemon_take_objects() {
    let rig = WithDaemon::in_a_process();
    let slab = rig.slabs().expect("a host lends slabs").make(1 << 20);
    let slab = slab.expect("the daemon answers").expect("there is room");
    assert_eq!(slab.len(), 1 << 20);
    let tag = Tag::new(b"any");
    let bytes = [7_u8; 1000];
    let write = WriteOp {
        key: "stored",
        segments: &[bytes[..].into()],
        tag: &tag,
    };
    assert_eq!(rig.write_batch(&[write]), [Ok(())]);
    let start = slab.region().addr - slab.mapping().region().addr;
    let read = ReadOp {
        key: "stored",
        offset: 0,
        target: slab.mapping().target(start + 5..start + 1005),
        object_len: 1000,
        tag: Some(&tag),
        by_transport: false,
    };
    assert_eq!(rig.read_batch(&[read]), [Ok(1000)]);
    assert_eq!(slab.mapping().source(start + 5..start + 1005).to_vec(), bytes);
}
