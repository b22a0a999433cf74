//! Clauses 7 and 13: a store without room.
use super::rig::{any_tag, assert_same, expect_fault};
use super::{Factory, Rig, pattern};
use crate::{Fault, FaultKind, WriteOp};

const OBJECT: usize = 1 << 20;

/// Writes objects of 1 MiB until the store is full; returns their keys and the first refusal.
fn fill(rig: &Rig, capacity_bytes: u64) -> (Vec<String>, Fault) {
    let bytes = pattern(1, OBJECT);
    let mut keys = Vec::new();
    for index in 0..=capacity_bytes / OBJECT as u64 {
        let key = rig.key(&format!("fill/{index}"));
        match rig.write(&key, &bytes, &any_tag()) {
            Ok(()) => keys.push(key),
            Err(fault) => return (keys, fault),
        }
    }
    panic!("a store of {capacity_bytes} bytes took {} MiB", keys.len());
}

/// Clause 13: a full store says so, keeps serving, and takes objects again when some are gone.
pub fn a_full_store_keeps_working(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let Some(capacity_bytes) = rig.capacity_bytes() else {
        return;
    };
    let (keys, fault) = fill(&rig, capacity_bytes);
    assert_eq!(fault.kind, FaultKind::Full, "no room: {fault}");
    assert!(
        fault.message.contains(&OBJECT.to_string()),
        "the fault says what was asked: {fault}"
    );
    assert!(
        keys.len() as u64 >= capacity_bytes / OBJECT as u64 / 2,
        "at least half of the capacity could be used"
    );
    let bytes = pattern(1, OBJECT);
    keys.iter().for_each(|key| rig.expect(key, &bytes));
    // Room for one: of three new objects in one call, the small ones and nothing else get in the large one's way.
    rig.remove(&keys[0]);
    let (small, large) = (rig.memory(200), rig.memory(4 * OBJECT));
    small.fill(0, &pattern(7, 200));
    let new = ["small/a", "large", "small/b"].map(|name| rig.key(name));
    let segments = [
        [small.source(0..100)],
        [large.source(0..4 * OBJECT)],
        [small.source(100..200)],
    ];
    let tag = any_tag();
    let write = |index: usize| WriteOp {
        key: &new[index],
        segments: &segments[index],
        tag: &tag,
    };
    let results = rig.engine().write_batch(&[write(0), write(1), write(2)]);
    assert_eq!(
        (&results[0], &results[2]),
        (&Ok(()), &Ok(())),
        "keys beside one that finds no room"
    );
    assert_eq!(
        results[1].as_ref().map_err(|fault| fault.kind),
        Err(FaultKind::Full),
        "four times the room"
    );
    rig.expect(&new[0], &pattern(7, 200)[..100]);
    rig.expect(&new[2], &pattern(7, 200)[100..]);
    for key in &keys[1..] {
        rig.remove(key);
    }
    rig.put(&new[1], &pattern(8, 4 * OBJECT));
    rig.expect(&new[1], &pattern(8, 4 * OBJECT));
}

/// Clause 7: a replace that finds no room keeps the old object, or loses it whole where the engine does not describe.
pub fn a_replace_that_does_not_fit_keeps_the_old_object(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let Some(capacity_bytes) = rig.capacity_bytes() else {
        return;
    };
    let (keys, _full) = fill(&rig, capacity_bytes);
    let larger = pattern(2, 2 * OBJECT);
    expect_fault(
        rig.write(&keys[0], &larger, &any_tag()),
        FaultKind::Full,
        "twice the size in a full store",
    );
    match rig.read(&keys[0], OBJECT) {
        Ok(kept) => assert_same(&kept, &pattern(1, OBJECT)),
        Err(fault) if !rig.engine().capabilities().describes => {
            assert_eq!(
                fault.kind,
                FaultKind::NotFound,
                "an object whose replace failed: {fault}"
            );
        }
        Err(fault) => panic!("the old object is gone: {fault}"),
    }
}

/// Clause 7: the memory of an object goes with it when one of another size takes its place.
pub fn replaces_by_another_size_give_the_memory_back(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let Some(capacity_bytes) = rig.capacity_bytes() else {
        return;
    };
    let key = rig.key("replaced again and again");
    let longest = usize::try_from(capacity_bytes / 8).expect("a store that fits into memory");
    // Three times what the store holds, so that memory which was lost would be missed.
    for round in 0..24 {
        let bytes = pattern(round as u64, longest - 1000 * round);
        if let Err(fault) = rig.write(&key, &bytes, &any_tag()) {
            panic!("round {round}, in a store with one object: {fault}");
        }
    }
    let kept = fill(&rig, capacity_bytes).0.len() as u64;
    assert!(
        capacity_bytes / OBJECT as u64 / 2 <= kept,
        "{kept} MiB fit beside one object, of {capacity_bytes} bytes"
    );
}
