//! The released client's way to write, as the benchmarks' baseline: each batch's own memory is registered for its call.

use crate::{
    deliveries::part,
    support::{Hooked, MIB, Rig, assert_idle, budget, bytes_spec, free_engine, pattern, stat},
};
use std::sync::Arc;
use tensorlease::{
    CallerMemory, Delivery, ObjectKind, Options, Patience, PutItem, PutMode, Segment, WriteError,
    engine::{Fault, FaultKind, decorators::Call},
};

/// A value in memory of the caller.
fn foreign_item(key: &str, memory: CallerMemory) -> PutItem {
    let spec = bytes_spec(memory.len() as u64);
    PutItem {
        key: key.to_owned(),
        kind: ObjectKind::Tensor(spec),
        segments: vec![Segment::Caller(memory)],
    }
}

fn put_per_call(rig: &Rig, items: Vec<PutItem>) {
    rig.calls.take();
    rig.store
        .put_by(items, PutMode::RegisterPerCall, Patience::default())
        .unwrap();
}

fn assert_stored(rig: &Rig, values: &[Vec<u8>]) {
    let lens: Vec<u64> = values.iter().map(|value| value.len() as u64).collect();
    let read = rig.read(&lens, Delivery::Copied).unwrap();
    assert!(
        read.iter()
            .zip(values)
            .all(|(read, value)| read.as_slice() == value.as_slice())
    );
}

/// Registrations and their ends since the last put began.
fn registered(rig: &Rig) -> (usize, usize) {
    (
        rig.registrations(),
        rig.calls.count(|call| matches!(call, Call::Unregister(_))),
    )
}

#[test]
fn encoded_values_are_put_together_and_registered_once_for_each_batch() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let values: Vec<Vec<u8>> = (0..900).map(|seed| pattern(seed, 1 + seed % 700)).collect();
    let item = |(at, value): (usize, &Vec<u8>)| {
        PutItem::tensor(format!("k{at}"), bytes_spec(value.len() as u64), value.clone())
    };
    put_per_call(&rig, values.iter().enumerate().map(item).collect());
    assert_eq!(registered(&rig), (3, 3), "batches of 400 keys");
    let written: Vec<usize> = rig
        .calls
        .calls()
        .iter()
        .filter_map(|call| {
            if let Call::Write(writes) = call {
                Some(writes.len())
            } else {
                None
            }
        })
        .collect();
    let mut sorted = written;
    sorted.sort_unstable();
    assert_eq!(sorted, [100, 400, 400]);
    assert_eq!(stat(&rig.store, "staged_writes"), 0);
    assert_eq!(stat(&rig.store, "written_keys"), 900);
    assert_stored(&rig, &values);
    assert_idle(&rig.store);
}

#[test]
fn memory_of_the_caller_is_registered_as_it_lies() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let values: Vec<Vec<u8>> = (0..3).map(|seed| pattern(seed, 50_000)).collect();
    // Two of them lie side by side: one registration.
    let joined = Arc::new(CallerMemory::from_vec(values[..2].concat()));
    let alone = Arc::new(CallerMemory::from_vec(values[2].clone()));
    let items = vec![
        foreign_item("k0", part(&joined, 0..50_000, Box::new(()))),
        foreign_item("k1", part(&joined, 50_000..100_000, Box::new(()))),
        foreign_item("k2", part(&alone, 0..50_000, Box::new(()))),
    ];
    put_per_call(&rig, items);
    let (registrations, ended) = registered(&rig);
    assert_eq!(registrations, ended);
    assert!((1..=2).contains(&registrations), "{registrations}");
    assert_eq!(stat(&rig.store, "copied_bytes"), 0);
    assert_stored(&rig, &values);
}

#[test]
fn one_memory_under_two_keys_is_registered_once() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let value = pattern(7, 50_000);
    let memory = Arc::new(CallerMemory::from_vec(value.clone()));
    let items = vec![
        foreign_item("k0", part(&memory, 0..50_000, Box::new(()))),
        foreign_item("k1", part(&memory, 0..50_000, Box::new(()))),
        foreign_item("k2", part(&memory, 100..40_000, Box::new(()))),
    ];
    put_per_call(&rig, items);
    assert_eq!(registered(&rig), (1, 1));
    assert_eq!(stat(&rig.store, "retries"), 0);
    let part_of_it = value[100..40_000].to_vec();
    assert_stored(&rig, &[value.clone(), value, part_of_it]);
}

#[test]
fn memory_of_the_arena_and_engines_without_registration_need_none() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let value = pattern(1, 70_000);
    let mut buffer = rig.store.empty(70_000, Patience::default()).unwrap();
    buffer.copy_from_slice(&value);
    put_per_call(
        &rig,
        vec![PutItem::tensor_in("k0", bytes_spec(70_000), Arc::new(buffer))],
    );
    assert_eq!(registered(&rig), (0, 0));
    assert_stored(&rig, std::slice::from_ref(&value));

    let rig = Rig::new(free_engine(), &budget(32 * MIB));
    put_per_call(&rig, vec![PutItem::tensor("k0", bytes_spec(70_000), value.clone())]);
    assert_eq!(registered(&rig), (0, 0));
    assert_stored(&rig, &[value]);
}

#[test]
fn batch_keys_bounds_the_keys_of_one_registration() {
    let options = Options {
        batch_keys: 7,
        ..budget(32 * MIB)
    };
    let rig = Rig::registering(free_engine(), &options);
    let values: Vec<Vec<u8>> = (0..20).map(|seed| pattern(seed, 100)).collect();
    let item = |(at, value): (usize, &Vec<u8>)| PutItem::tensor(format!("k{at}"), bytes_spec(100), value.clone());
    put_per_call(&rig, values.iter().enumerate().map(item).collect());
    assert_eq!(registered(&rig), (3, 3));
    assert_stored(&rig, &values);
}

#[test]
fn what_stays_registered_is_kept_and_nothing_else() {
    for neighbour in [Ok(()), Err(Fault::new(FaultKind::Transient, 0, "try again"))] {
        let late = Err(Fault::new(FaultKind::MayStillWrite, 0, "gave up"));
        let answers = vec![late, neighbour.clone(), Ok(())];
        let engine = Hooked::new(free_engine())
            .claiming_late_writes()
            .on_write(move |call, _| (call == 1).then(|| answers.clone()));
        let rig = Rig::registering(Arc::new(engine), &budget(32 * MIB));
        let memory = Arc::new(CallerMemory::from_vec(pattern(1, 300_000)));
        let guards = [(); 3].map(|()| Arc::new(()));
        // The first two lie side by side, and so in one registration.
        let items = [0..50_000, 50_000..100_000, 200_000..250_000]
            .into_iter()
            .enumerate()
            .map(|(at, range)| {
                foreign_item(
                    &format!("k{at}"),
                    part(&memory, range, Box::new(Arc::clone(&guards[at]))),
                )
            });
        rig.calls.take();
        let error = rig
            .store
            .put_by(items.collect(), PutMode::RegisterPerCall, Patience::default())
            .unwrap_err();
        let WriteError::Transfer { failures, .. } = error else {
            panic!("{error:?}")
        };
        let failed: Vec<&str> = failures.iter().map(|failure| failure.key.as_str()).collect();
        let expected = if neighbour.is_ok() {
            vec!["k0"]
        } else {
            vec!["k0", "k1"]
        };
        assert_eq!(failed, expected);
        let kept = || guards.each_ref().map(|guard| 1 < Arc::strong_count(guard));
        assert_eq!(kept(), [true, true, false], "{neighbour:?}");
        let unregistered = rig.calls.calls().into_iter().filter_map(|call| match call {
            Call::Unregister(region) => Some(region.addr - memory.addr()),
            _ => None,
        });
        assert_eq!(unregistered.collect::<Vec<_>>(), [200_000]);
        assert_eq!(stat(&rig.store, "quarantined_bytes"), 100_000);
        rig.store.close(Patience::default()).unwrap();
        assert_eq!(kept(), [false; 3], "the engine is closed");
    }
}
