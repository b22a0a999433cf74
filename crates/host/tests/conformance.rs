//! The suite over the engine of a host's clients, whose daemon runs in threads of this process, and in another process.
mod support;
#[path = "support/with_daemon.rs"]
mod with_daemon;

use std::sync::Arc;
use support::{CAPACITY_BYTES, ready_until_killed, role};
use tensorlease_engine::conformance::Rig;
use tensorlease_engine::{Engine, ReadOp, Tag, WriteOp, conformance_tests};
use tensorlease_host::{Daemon, DaemonOptions};
use with_daemon::WithDaemon;

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
    let Some((_, socket)) = role() else { return };
    let daemon = Daemon::start(DaemonOptions {
        socket,
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
    let slab = slab.expect("there is room");
    assert_eq!(slab.len(), 1 << 20);
    let tag = Tag::new(b"any");
    let bytes = [7_u8; 1000];
    let write = WriteOp {
        key: "stored",
        segments: &[bytes[..].into()],
        tag: &tag,
    };
    assert_eq!(rig.write_batch(&[write]), [Ok(())]);
    let read = ReadOp {
        key: "stored",
        offset: 0,
        target: slab.target(5..1005),
        object_len: 1000,
        tag: Some(&tag),
        by_transport: false,
    };
    assert_eq!(rig.read_batch(&[read]), [Ok(1000)]);
    assert_eq!(slab.source(5..1005).to_vec(), bytes);
}
