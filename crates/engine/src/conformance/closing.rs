//! Clause 15: the end of an engine.
use super::rig::{any_tag, assert_same, expect_fault, only};
use super::{Factory, RigMemory, pattern};
use crate::{Fault, FaultKind, ReadOp, RegisterError};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

fn assert_unavailable<T: Debug>(call: &str, result: Result<T, Fault>) {
    expect_fault(result, FaultKind::Unavailable, &format!("{call} after close"));
}

/// Clause 15: closing again changes nothing.
pub fn close_is_idempotent(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    rig.put(&rig.key("any"), &pattern(1, 1000));
    for _ in 0..3 {
        rig.engine().close().expect("the engine closes cleanly, also again");
    }
    let fresh = factory().expect("an engine that was made once");
    fresh.engine().close().expect("an engine without objects closes");
}

/// Clause 15: after close there is nothing but refusals, counters and capabilities.
pub fn a_closed_engine_refuses_every_call(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let engine = rig.engine();
    let key = rig.key("stored");
    rig.put(&key, &pattern(1, 1000));
    // A registration that is still there at close ends with it.
    let memory = rig.memory(1000);
    memory.fill(0, &[0x5a; 1000]);
    let claimed = engine.capabilities().clone();
    let writes = engine.stats().write_calls;
    engine.close().expect("the engine closes");

    let read = ReadOp::whole(&key, memory.target(0..1000));
    assert_unavailable("read", only(engine.read_batch(&[read])));
    assert_same(&memory.bytes(0..1000), &[0x5a; 1000]);
    let written = rig.write_segments(&key, &[memory.source(0..1000)], &any_tag());
    assert_unavailable("write", written);
    assert_unavailable("removal", only(engine.remove_batch(&[&key])));
    assert_unavailable("removal by prefix", engine.remove_prefix(&key));
    assert_unavailable("question", only(engine.contains_batch(&[&key])));
    assert_unavailable("description", only(engine.describe_batch(&[&key])));
    let other = RigMemory::unregistered(1000);
    for refused in [engine.register(other.region()), engine.unregister(memory.region())] {
        let error = refused.expect_err("registrations after close");
        assert!(
            matches!(error, RegisterError::Closed),
            "registrations after close: {error}"
        );
    }
    let stats = engine.stats();
    assert_eq!(
        (stats.objects, stats.object_bytes, stats.registered_bytes),
        (0, 0, 0),
        "nothing is left"
    );
    assert!(stats.write_calls >= writes, "counters outlive close");
    assert_eq!(*engine.capabilities(), claimed, "capabilities outlive close");
}

/// Clause 15: a read that runs while the engine closes ends whole or refused.
pub fn closing_under_readers_is_safe(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let key = rig.key("read");
    let bytes = pattern(1, 200_000);
    rig.put(&key, &bytes);
    let memories = [rig.memory(200_000), rig.memory(200_000)];
    let (served, closed) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for memory in &memories {
            scope.spawn(|| {
                loop {
                    let began_closed = closed.load(SeqCst);
                    let read = ReadOp::whole(&key, memory.target(0..200_000));
                    match only(rig.engine().read_batch(&[read])) {
                        Ok(_) => {
                            assert!(!began_closed, "a read that began after close was served");
                            assert_same(&memory.bytes(0..200_000), &bytes);
                            served.fetch_add(1, SeqCst);
                        }
                        Err(fault) => {
                            assert_eq!(fault.kind, FaultKind::Unavailable, "a read at close: {fault}");
                            return;
                        }
                    }
                }
            });
        }
        while served.load(SeqCst) < 10 {
            std::thread::yield_now();
        }
        rig.engine().close().expect("the engine closes under its readers");
        closed.store(true, SeqCst);
    });
}
