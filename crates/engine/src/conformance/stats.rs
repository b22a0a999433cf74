//! Clause 14: the engine's own counters.
use super::rig::only;
use super::{Factory, RigMemory, pattern};
use crate::{ReadOp, Registration};

/// Clause 14: every call counts once, successful or not; objects and registrations are what they are now.
pub fn calls_and_objects_are_counted(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let engine = rig.engine();
    let before = engine.stats();
    let memory = RigMemory::unregistered(1000);
    engine.register(memory.region()).expect("a few pages can be registered");
    let registered = engine.stats();
    assert_eq!(registered.register_calls, before.register_calls + 1, "one registration");
    let bytes = before.registered_bytes + memory.region().len as u64;
    assert_eq!(registered.registered_bytes, bytes, "bytes registered now");
    if engine.capabilities().registration == Registration::Required {
        engine.register(memory.region()).expect_err("an overlap");
        assert_eq!(
            engine.stats().register_calls,
            before.register_calls + 2,
            "a refused registration counts too"
        );
    }
    for key in ["counted", "missing"].map(|name| rig.key(name)) {
        let read = ReadOp::whole(&key, memory.target(0..100));
        only(engine.read_batch(&[read])).expect_err("the store is empty");
    }
    assert_eq!(
        engine.stats().read_calls,
        before.read_calls + 2,
        "failed reads count too"
    );
    engine.unregister(memory.region()).expect("it was registered");
    let after = engine.stats();
    assert_eq!(
        after.unregister_calls,
        before.unregister_calls + 1,
        "one end of a registration"
    );
    assert_eq!(
        after.registered_bytes, before.registered_bytes,
        "nothing more is registered"
    );

    let (one, two) = (rig.key("one"), rig.key("two"));
    // An engine that does not describe does not know what others put into the store: it counts no objects.
    let counts = u64::from(engine.capabilities().describes);
    let held = || {
        let stats = engine.stats();
        (stats.objects - before.objects, stats.object_bytes - before.object_bytes)
    };
    rig.put(&one, &pattern(1, 1000));
    rig.put(&two, &pattern(2, 77));
    assert_eq!(held(), (2 * counts, 1077 * counts), "two objects");
    rig.put(&one, &pattern(3, 10));
    assert_eq!(held(), (2 * counts, 87 * counts), "a replaced object counts once");
    assert_eq!(engine.stats().write_calls, before.write_calls + 3, "three writes");
    engine.remove_batch(&[&one]);
    assert_eq!(held(), (counts, 77 * counts), "a removed object counts no more");
    assert_eq!(engine.remove_prefix(&two), Ok(1), "the last object");
    assert_eq!(held(), (0, 0), "the store is empty again");
}
