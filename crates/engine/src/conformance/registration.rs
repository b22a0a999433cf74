//! Clause 6: memory that the engine knows, and memory that it does not.
use super::rig::{any_tag, assert_same, expect_fault, only};
use super::{Factory, Rig, RigMemory, pattern};
use crate::{FaultKind, ReadOp, RegisterError, Registration};
use tensorlease_memory::{Region, limits::page_bytes};

fn requires(rig: &Rig) -> bool {
    rig.engine().capabilities().registration == Registration::Required
}

fn part(memory: &RigMemory, at: usize, len: usize) -> Region {
    Region {
        addr: memory.region().addr + at,
        len,
    }
}

/// The object `key` of 1000 bytes is refused at `at`, and the memory stays as it was.
fn assert_refused(rig: &Rig, key: &str, memory: &RigMemory, at: usize) {
    let len = memory.region().len;
    memory.fill(0, &vec![0x5a; len]);
    let read = ReadOp::whole(key, memory.target(at..at + 1000));
    expect_fault(
        only(rig.engine().read_batch(&[read])),
        FaultKind::Unregistered,
        "memory outside a registration",
    );
    assert_same(&memory.bytes(0..len), &vec![0x5a; len]);
}

/// Clause 6: where registration is required, nothing moves to or from other memory.
pub fn unregistered_memory_is_refused_and_untouched(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    if !requires(&rig) {
        return;
    }
    let engine = rig.engine();
    let page = page_bytes();
    let (key, never) = (rig.key("stored"), rig.key("never"));
    rig.put(&key, &pattern(1, 1000));
    let memory = RigMemory::unregistered(3 * page);
    assert_refused(&rig, &key, &memory, 0);
    // Two registrations side by side, and a page that is in none: a transfer may not cross either border.
    engine
        .register(part(&memory, 0, page))
        .expect("the first page can be registered");
    engine
        .register(part(&memory, page, page))
        .expect("the second page can be registered");
    assert_refused(&rig, &key, &memory, page - 500);
    assert_refused(&rig, &key, &memory, 2 * page - 500);
    assert_refused(&rig, &key, &memory, 2 * page);
    // The keys beside a refused one are served.
    let read = |at: usize| ReadOp::whole(&key, memory.target(at..at + 1000));
    let results = engine.read_batch(&[read(0), read(2 * page), read(page)]);
    assert_eq!(
        (&results[0], &results[2]),
        (&Ok(1000), &Ok(1000)),
        "keys beside a refused one"
    );
    assert!(results[1].is_err(), "memory outside a registration");
    // One segment of two outside: nothing is written.
    let segments = [memory.source(0..100), memory.source(2 * page..2 * page + 100)];
    let written = rig.write_segments(&never, &segments, &any_tag());
    expect_fault(written, FaultKind::Unregistered, "a segment outside a registration");
    assert_eq!(
        engine.contains_batch(&[&never]),
        [Ok(false)],
        "a refused write leaves no object"
    );
    engine
        .unregister(part(&memory, 0, page))
        .expect("the first page was registered");
    engine
        .unregister(part(&memory, page, page))
        .expect("the second page was registered");
    assert_refused(&rig, &key, &memory, 0);
}

/// Clause 6: registrations don't overlap, have a largest size, and end only as what they are.
pub fn registrations_are_checked(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    if !requires(&rig) {
        return;
    }
    let engine = rig.engine();
    let page = page_bytes();
    let memory = RigMemory::unregistered(4 * page);
    let whole = part(&memory, page, 2 * page);
    engine.register(whole).expect("two pages can be registered");
    for (at, len) in [
        (page, 2 * page),
        (0, 2 * page),
        (2 * page, page),
        (2 * page, 2 * page),
        (0, 4 * page),
    ] {
        let refused = engine.register(part(&memory, at, len)).expect_err("an overlap");
        assert!(
            matches!(refused, RegisterError::Overlap { .. }),
            "an overlap at {at}: {refused}"
        );
    }
    for (at, len) in [(0, page), (page, page), (2 * page, page), (page, 3 * page)] {
        let refused = engine
            .unregister(part(&memory, at, len))
            .expect_err("no such registration");
        assert!(
            matches!(refused, RegisterError::Unknown { .. }),
            "{len} bytes at {at} are no registration: {refused}"
        );
    }
    engine.unregister(whole).expect("two pages were registered");
    engine.register(whole).expect("they can be registered again");
    engine.unregister(whole).expect("and unregistered");
    let limit = engine.capabilities().registration_bytes_max;
    if let Some(len) = limit.checked_add(page as u64).and_then(|len| usize::try_from(len).ok()) {
        let refused = engine.register(part(&memory, 0, len)).expect_err("above the limit");
        assert!(
            matches!(refused, RegisterError::TooLarge { .. }),
            "above the limit: {refused}"
        );
    }
}

/// Clause 6: where registration is free, any memory does, and registering is allowed.
pub fn free_registration_takes_any_memory(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    if requires(&rig) {
        return;
    }
    let memory = RigMemory::unregistered(8000);
    rig.engine()
        .register(memory.region())
        .expect("registering costs nothing and succeeds");
    rig.engine().unregister(memory.region()).expect("so does unregistering");
    let key = rig.key("anywhere");
    memory.fill(0, &pattern(1, 1000));
    let written = rig.write_segments(&key, &[memory.source(0..1000)], &any_tag());
    assert_eq!(written, Ok(()), "a write from any memory");
    let read = ReadOp::whole(&key, memory.target(4000..5000));
    assert_eq!(
        only(rig.engine().read_batch(&[read])),
        Ok(1000),
        "a read into any memory"
    );
    assert_same(&memory.bytes(4000..5000), &pattern(1, 1000));
}
