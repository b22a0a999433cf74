//! What is put is what is read, and goes out the shortest way.

use crate::support::{
    Claims, MIB, Rig, assert_idle, budget, bytes_spec, every_engine, free_engine, pattern, stat, tensor_item,
};
use std::sync::Arc;
use tensorlease::{
    Buffer, CallError, CallerMemory, Delivery, FallbackKind, ObjectKind, Options, Patience, PutItem, ReadRequest,
    Segment, WriteError,
    engine::{Embedded, EmbeddedOptions, FaultKind, decorators::Call},
};

const READ: Delivery = Delivery::Copied;

/// An arena buffer with the pattern of `seed`.
fn arena_buffer(rig: &Rig, seed: u64, len: u64) -> Arc<Buffer> {
    let mut buffer = rig.store.empty(len, Patience::default()).unwrap();
    buffer.copy_from_slice(&pattern(seed, len));
    Arc::new(buffer)
}

fn read_one(rig: &Rig, key: &str, len: u64) -> Buffer {
    let mut read = rig
        .read_items(vec![tensor_item(key, len)], READ, Patience::default())
        .unwrap();
    read.remove(0)
}

/// Registrations of the write path itself: those of slabs are not counted here.
fn write_registrations(rig: &Rig) -> u64 {
    stat(&rig.store, "hot_path_register_calls")
}

#[test]
fn memory_of_the_arena_is_written_as_it_lies() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(32 * MIB));
        let buffer = arena_buffer(&rig, 1, MIB + 3);
        rig.calls.take();
        let item = PutItem::tensor_in("a", bytes_spec(MIB + 3), Arc::clone(&buffer));
        rig.store.put(vec![item], Patience::default()).unwrap();
        let writes: Vec<Call> = rig.calls.take();
        assert_eq!(
            writes,
            [Call::Write(vec![("a".to_owned(), vec![buffer.region()])])],
            "{name}: no copy, no registration"
        );
        assert_eq!(stat(&rig.store, "copied_bytes"), 0);
        assert!(read_one(&rig, "a", MIB + 3)[..] == buffer[..]);
    }
}

#[test]
fn in_place_and_staged_writes_are_counted() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let buffer = arena_buffer(&rig, 1, 5000);
    let items = vec![
        PutItem::tensor_in("in place", bytes_spec(5000), Arc::clone(&buffer)),
        PutItem::tensor("staged", bytes_spec(7000), pattern(2, 7000)),
    ];
    rig.store.put(items, Patience::default()).unwrap();
    assert_eq!(stat(&rig.store, "in_place_writes"), 1);
    assert_eq!(stat(&rig.store, "staged_writes"), 1);
    assert_eq!(stat(&rig.store, "copied_bytes"), 7000);
    assert_eq!(write_registrations(&rig), 0);
    assert!(read_one(&rig, "in place", 5000)[..] == buffer[..]);
    assert!(read_one(&rig, "staged", 7000)[..] == pattern(2, 7000));
}

#[test]
fn what_was_read_can_be_put_again_without_a_copy() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let values = rig.fill(&[100_000]);
    let copied = stat(&rig.store, "copied_bytes");
    let read = rig.read(&[100_000], Delivery::Leased).unwrap().remove(0);
    let item = PutItem::tensor_in("again", bytes_spec(100_000), Arc::new(read));
    rig.store.put(vec![item], Patience::default()).unwrap();
    assert_eq!(stat(&rig.store, "copied_bytes"), copied);
    assert_eq!(stat(&rig.store, "in_place_writes"), 1);
    assert!(read_one(&rig, "again", 100_000)[..] == values[0]);
}

#[test]
fn segments_are_gathered_in_order_wherever_they_lie() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(32 * MIB));
        for len in [10, 3000, 9 * MIB] {
            let arena = arena_buffer(&rig, 3, len);
            let segments = vec![
                Segment::Owned(pattern(1, len)),
                Segment::Caller(CallerMemory::from_vec(pattern(2, 7))),
                Segment::Owned(Vec::new()),
                Segment::Buffer(Arc::clone(&arena)),
                Segment::Caller(CallerMemory::from_vec(Vec::new())),
                Segment::Owned(vec![9]),
            ];
            let whole = [pattern(1, len), pattern(2, 7), arena.to_vec(), vec![9]].concat();
            let item = PutItem {
                key: "gathered".to_owned(),
                segments,
                kind: ObjectKind::Tensor(bytes_spec(whole.len() as u64)),
            };
            rig.store.put(vec![item], Patience::default()).unwrap();
            assert!(
                read_one(&rig, "gathered", whole.len() as u64)[..] == whole,
                "{name}, {len}"
            );
        }
    }
}

#[test]
fn a_value_larger_than_the_arena_is_registered_for_its_own_write() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    let arena = arena_buffer(&rig, 4, MIB);
    let large = pattern(5, 20 * MIB);
    // A part that lies in the arena already must not be registered twice.
    let item = PutItem {
        key: "large".to_owned(),
        segments: vec![Segment::Owned(large.clone()), Segment::Buffer(Arc::clone(&arena))],
        kind: ObjectKind::Tensor(bytes_spec(21 * MIB)),
    };
    rig.store.put(vec![item], Patience::default()).unwrap();
    assert_eq!(stat(&rig.store, "fallback_writes"), 1);
    assert_eq!(write_registrations(&rig), 1);
    assert_eq!(stat(&rig.store, "retries"), 0);
    let read = read_one(&rig, "large", 21 * MIB);
    assert!(read[..20 * MIB as usize] == large && read[20 * MIB as usize..] == arena[..]);
    drop((read, arena));
    assert_idle(&rig.store);
}

#[test]
fn strict_refuses_a_write_that_needs_its_own_registration() {
    let options = Options {
        strict: true,
        ..budget(16 * MIB)
    };
    let rig = Rig::registering(free_engine(), &options);
    let item = PutItem::tensor("large", bytes_spec(20 * MIB), pattern(5, 20 * MIB));
    let error = rig.store.put(vec![item], Patience::default()).unwrap_err();
    assert!(
        matches!(
            error,
            WriteError::Fallback {
                kind: FallbackKind::TooLarge,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(
        rig.store.contains(&["large".into()], Patience::default()).unwrap(),
        [false]
    );
    assert_idle(&rig.store);
}

#[test]
fn a_large_object_is_staged_in_a_block_of_its_own() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(64 * MIB));
        let value = pattern(6, 20 * MIB + 1);
        let item = PutItem::tensor("large", bytes_spec(20 * MIB + 1), value.clone());
        rig.store.put(vec![item], Patience::default()).unwrap();
        assert_eq!(stat(&rig.store, "fallback_writes"), 0, "{name}");
        assert!(read_one(&rig, "large", 20 * MIB + 1)[..] == value, "{name}");
        assert_idle(&rig.store);
    }
}

#[test]
fn an_existing_object_is_replaced_whatever_its_size() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    for (seed, len) in [(1, 100), (2, 100), (3, 70_000), (4, 1), (5, 0), (6, 10)] {
        let item = PutItem::tensor("same", bytes_spec(len), pattern(seed, len));
        rig.store.put(vec![item], Patience::default()).unwrap();
        if 0 < len {
            assert!(read_one(&rig, "same", len)[..] == pattern(seed, len));
        }
    }
}

#[test]
fn a_value_of_zero_bytes_takes_the_place_of_another_also_where_nothing_is_described() {
    let rig = Rig::describing_nothing(free_engine(), &budget(16 * MIB));
    let keys = ["a".to_owned(), "b".to_owned(), "c".to_owned(), "new".to_owned()];
    let filled = |key: &String| PutItem::tensor(key.as_str(), bytes_spec(100), pattern(1, 100));
    rig.store
        .put(keys[..3].iter().map(filled).collect(), Patience::default())
        .unwrap();
    let items = vec![
        PutItem::tensor("a", bytes_spec(0), Vec::new()),
        filled(&keys[1]),
        PutItem::packed("c", Vec::new()),
        PutItem::packed("new", Vec::new()),
    ];
    rig.store.put(items, Patience::default()).unwrap();
    let there = rig.store.contains(&keys, Patience::default()).unwrap();
    assert_eq!(there, [true; 4]);
    let read = ReadRequest {
        items: vec![tensor_item("a", 0)],
        ..ReadRequest::default()
    };
    let read = rig.store.get(read, Patience::default()).unwrap();
    assert!(
        read.values[0].buffer.is_none(),
        "nothing is read of a value without bytes"
    );
    rig.store.wait(&keys, Patience::default()).unwrap();
    assert_eq!(rig.store.remove(&keys, Patience::default()).unwrap(), 4);
}

#[test]
fn a_value_of_zero_bytes_exists_like_any_other() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(16 * MIB));
        let items = vec![
            PutItem::tensor("empty", bytes_spec(0), Vec::new()),
            PutItem::packed("nothing", Vec::new()),
        ];
        rig.store.put(items, Patience::default()).unwrap();
        let keys = ["empty".to_owned(), "nothing".to_owned()];
        assert_eq!(
            rig.store.contains(&keys, Patience::default()).unwrap(),
            [true, true],
            "{name}"
        );
        let sent = rig.calls.take();
        let zero = sent.iter().any(|call| matches!(call, Call::Write(writes) if writes.iter().any(|(_, regions)| regions.iter().all(|region| region.len == 0))));
        assert!(!zero, "{name}: the engine never sees zero bytes (requirement B14)");
        assert_eq!(rig.store.remove(&keys, Patience::default()).unwrap(), 2, "{name}");
        assert_eq!(
            rig.store.contains(&keys, Patience::default()).unwrap(),
            [false, false],
            "{name}"
        );
        assert_eq!(
            rig.store.remove(&keys, Patience::default()).unwrap(),
            0,
            "{name}: missing keys are fine"
        );
    }
}

#[test]
fn a_wrong_put_is_refused_before_anything_is_written() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    rig.calls.take();
    let good = || PutItem::packed("good", vec![1]);
    let puts = [
        (vec![good(), PutItem::packed("good", vec![2])], "twice"),
        (vec![good(), PutItem::packed("", vec![2])], "empty"),
        (vec![good(), PutItem::tensor("t", bytes_spec(3), vec![1, 2])], "\"t\""),
        (vec![good(), PutItem::packed("k".repeat(50_000), vec![2])], "40000"),
    ];
    for (items, part) in puts {
        let error = rig.store.put(items, Patience::default()).unwrap_err();
        assert!(
            matches!(error, WriteError::Call(CallError::Invalid { .. })),
            "{error:?}"
        );
        assert!(error.to_string().contains(part), "{part} in {error}");
    }
    assert!(rig.calls.calls().is_empty());
}

#[test]
fn a_full_store_names_what_it_refused_and_goes_on() {
    for registering in [false, true] {
        let options = EmbeddedOptions {
            capacity_bytes: 4 * MIB,
            pinned: false,
        };
        let claims = Claims {
            registering,
            ..Claims::default()
        };
        let rig = Rig::claiming(Arc::new(Embedded::new(&options).unwrap()), claims, &budget(32 * MIB));
        let items = (0..6).map(|at| PutItem::tensor(format!("k{at}"), bytes_spec(MIB), pattern(at, MIB)));
        let error = rig.store.put(items.collect(), Patience::default()).unwrap_err();
        let WriteError::StoreFull { message, failures } = error else {
            panic!("{error:?}")
        };
        assert_eq!(failures.len(), 2);
        assert!(
            failures
                .iter()
                .all(|failure| failure.kind == FaultKind::Full && message.contains(&failure.key))
        );
        let stored: Vec<u64> = (0..6)
            .filter(|at| failures.iter().all(|failure| failure.key != format!("k{at}")))
            .collect();
        for at in &stored {
            assert!(
                read_one(&rig, &format!("k{at}"), MIB)[..] == pattern(*at, MIB),
                "the others are stored"
            );
        }
        assert_eq!(stat(&rig.store, "written_keys"), 4);
        rig.store
            .remove(&[format!("k{}", stored[0])], Patience::default())
            .unwrap();
        let item = PutItem::tensor("after", bytes_spec(MIB), pattern(9, MIB));
        rig.store.put(vec![item], Patience::default()).unwrap();
        assert!(read_one(&rig, "after", MIB)[..] == pattern(9, MIB));
        assert_idle(&rig.store);
    }
}

#[test]
fn thousands_of_small_values_go_out_in_few_calls() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(32 * MIB));
        let lens = vec![100; 3000];
        let values: Vec<Vec<u8>> = (0..3000).map(|at| pattern(at, 100)).collect();
        let items = (0..3000).map(|at| PutItem::tensor(format!("k{at}"), bytes_spec(100), values[at].clone()));
        rig.calls.take();
        rig.store.put(items.collect(), Patience::default()).unwrap();
        let writes = rig.calls.count(|call| matches!(call, Call::Write(_)));
        assert_eq!(writes, 3, "{name}: 1,024 keys a call");
        let read = rig.read(&lens, READ).unwrap();
        assert!(
            read.iter().zip(&values).all(|(read, value)| read[..] == value[..]),
            "{name}"
        );
    }
}

#[test]
fn writers_of_many_threads_share_the_bounce_reserve() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    std::thread::scope(|scope| {
        for writer in 0..6_u64 {
            let rig = &rig;
            scope.spawn(move || {
                for round in 0..6_u64 {
                    let len = 1 + (writer * 131_071 + round * 524_287) % (3 * MIB);
                    let key = format!("w{writer}-{round}");
                    let item = PutItem::tensor(&key, bytes_spec(len), pattern(writer * 10 + round, len));
                    rig.store.put(vec![item], Patience::default()).unwrap();
                    assert!(read_one(rig, &key, len)[..] == pattern(writer * 10 + round, len));
                }
            });
        }
    });
    assert!(stat(&rig.store, "arena_bytes") <= 16 * MIB);
    assert_idle(&rig.store);
}

#[test]
fn large_values_of_one_put_wait_for_each_other_instead_of_falling_back() {
    let options = Options {
        strict: true,
        ..budget(4 * MIB)
    };
    let rig = Rig::registering(free_engine(), &options);
    let values = rig.fill(&[MIB; 6]);
    assert_eq!(stat(&rig.store, "fallback_writes"), 0);
    let read = rig.read(&[MIB], Delivery::Leased).unwrap();
    assert_eq!(read[0].as_slice(), values[0].as_slice());
}
