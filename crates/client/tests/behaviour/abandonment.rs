//! Callers that give up: the engine keeps what it may touch, the store goes on.

use crate::{
    deliveries::shared,
    support::{
        Hooked, MIB, Rig, SOON, assert_idle, budget, bytes_spec, eventually, every_engine, free_engine, stat,
        tensor_item,
    },
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tensorlease::{
    CallError, CallerMemory, Delivery, ObjectKind, Patience, PutItem, QueryError, ReadError, ReadRequest, RemoveError,
    Segment, WriteError,
    engine::{
        Engine,
        decorators::{Gate, Gated},
    },
};
use tensorlease_memory::{CopyMode, Source, copy};

/// A rig behind a gate, filled with values of these lengths.
fn gated(engine: Arc<dyn Engine>, lens: &[u64]) -> (Rig, Gate, Vec<Vec<u8>>) {
    let gate = Gate::new();
    let rig = Rig::new(Arc::new(Gated::new(engine, gate.clone())), &budget(32 * MIB));
    let values = rig.fill(lens);
    (rig, gate, values)
}

/// Long enough that a call reaches the engine, also on a busy machine.
fn soon() -> Patience<'static> {
    Patience::within(Duration::from_millis(600))
}

fn is_timeout(error: &ReadError) -> bool {
    matches!(error, ReadError::Call(CallError::Timeout { waited_ms }) if *waited_ms < 5000)
}

#[test]
fn blocks_of_a_call_that_timed_out_stay_in_flight_until_the_engine_returns() {
    for delivery in [Delivery::Leased, Delivery::Copied, Delivery::RegisterPerCall] {
        for (name, engine) in every_engine() {
            let (rig, gate, values) = gated(engine, &[100_000, 50]);
            gate.shut();
            let items = || vec![tensor_item("k0", 100_000), tensor_item("k1", 50)];
            let error = rig.read_items(items(), delivery, soon()).unwrap_err();
            assert!(is_timeout(&error), "{name}, {delivery:?}: {error:?}");
            if delivery != Delivery::RegisterPerCall {
                let held = stat(&rig.store, "in_flight_bytes") + stat(&rig.store, "copy_cache_held_bytes");
                assert!(100_000 <= held, "{name}, {delivery:?}: {held} bytes in flight");
            }
            assert!(1 <= stat(&rig.store, "abandoned_running_calls"), "{name}, {delivery:?}");
            gate.open();
            assert_idle(&rig.store);
            let read = rig.read_items(items(), delivery, Patience::within(SOON)).unwrap();
            assert!(
                read.iter()
                    .zip(&values)
                    .all(|(read, value)| read.as_slice() == value.as_slice())
            );
        }
    }
}

#[test]
fn an_abandoned_call_gives_its_reader_slot_back() {
    // Two readers; four calls hang, and the fifth is still served.
    let (rig, gate, values) = gated(free_engine(), &[100_000]);
    gate.shut();
    for call in 1..=4 {
        // A call that gives up before a reader took it up does not hang.
        while stat(&rig.store, "abandoned_running_calls") < call as u64 {
            let error = rig
                .read_items(vec![tensor_item("k0", 100_000)], Delivery::Leased, soon())
                .unwrap_err();
            assert!(is_timeout(&error), "{error:?}");
        }
        assert!(gate.wait_for_waiting(call, SOON));
    }
    assert_eq!(stat(&rig.store, "abandoned_running_calls"), 4);
    assert_eq!(stat(&rig.store, "abandoned_calls"), 4);
    gate.open();
    let read = rig.read_items(
        vec![tensor_item("k0", 100_000)],
        Delivery::Leased,
        Patience::within(SOON),
    );
    assert!(read.unwrap()[0].as_slice() == values[0].as_slice());
    assert_idle(&rig.store);
}

#[test]
fn sixteen_calls_that_hang_make_the_store_unavailable_until_they_return() {
    let (rig, gate, _) = gated(free_engine(), &[1000]);
    gate.shut();
    // A call that gives up before a reader took it up does not hang.
    while stat(&rig.store, "abandoned_running_calls") < 16 {
        let patience = Patience::within(Duration::from_millis(10));
        let error = rig.store.contains(&["k0".into()], patience).unwrap_err();
        assert!(
            matches!(error, QueryError::Call(CallError::Timeout { .. })),
            "{error:?}"
        );
    }
    let error = rig.read(&[1000], Delivery::Leased).unwrap_err();
    let ReadError::Call(CallError::Unavailable { message }) = error else {
        panic!("{error:?}")
    };
    assert!(
        message.contains("16 calls") && message.contains("open a new one"),
        "{message}"
    );
    gate.open();
    eventually("no call hangs", || stat(&rig.store, "abandoned_running_calls") == 0);
    assert!(rig.read(&[1000], Delivery::Leased).is_ok());
}

#[test]
fn every_kind_of_call_ends_at_its_deadline() {
    let (rig, gate, _) = gated(free_engine(), &[1000]);
    gate.shut();
    let keys = ["k0".to_owned()];
    let start = Instant::now();
    let put = rig.store.put(vec![PutItem::packed("p", vec![1])], soon());
    assert!(
        matches!(put, Err(WriteError::Call(CallError::Timeout { .. }))),
        "{put:?}"
    );
    let contains = rig.store.contains(&keys, soon());
    assert!(
        matches!(contains, Err(QueryError::Call(CallError::Timeout { .. }))),
        "{contains:?}"
    );
    let describe = rig.store.describe(&keys, soon());
    assert!(
        matches!(describe, Err(QueryError::Call(CallError::Timeout { .. }))),
        "{describe:?}"
    );
    let wait = rig.store.wait(&keys, soon());
    assert!(
        matches!(wait, Err(QueryError::Call(CallError::Timeout { .. }))),
        "{wait:?}"
    );
    let remove = rig.store.remove(&keys, soon());
    assert!(
        matches!(remove, Err(RemoveError::Call(CallError::Timeout { .. }))),
        "{remove:?}"
    );
    let clear = rig.store.clear(soon());
    assert!(
        matches!(clear, Err(RemoveError::Call(CallError::Timeout { .. }))),
        "{clear:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(12));
    gate.open();
    assert_idle(&rig.store);
}

#[test]
fn waiting_for_a_key_ends_when_it_comes_or_at_the_deadline() {
    let rig = Rig::new(free_engine(), &budget(16 * MIB));
    let error = rig.store.wait(&["later".into()], soon()).unwrap_err();
    let QueryError::NotThere { message, failures } = error else {
        panic!("{error:?}")
    };
    assert!(message.contains("\"later\""), "{message}");
    assert_eq!(failures.len(), 1);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| rig.store.wait(&["later".into()], Patience::within(SOON)));
        thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        rig.store
            .put(vec![PutItem::packed("later", vec![1])], Patience::default())
            .unwrap();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn an_interrupt_ends_a_read_soon_and_the_blocks_stay_with_the_engine() {
    let (rig, gate, _) = gated(free_engine(), &[100_000]);
    gate.shut();
    let asked = AtomicBool::new(false);
    let interrupted = || asked.load(Relaxed);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let patience = Patience {
                interrupted: Some(&interrupted),
                ..Patience::default()
            };
            rig.read_items(vec![tensor_item("k0", 100_000)], Delivery::Leased, patience)
        });
        assert!(gate.wait_for_waiting(1, SOON));
        let start = Instant::now();
        asked.store(true, Relaxed);
        let error = reader.join().unwrap().unwrap_err();
        assert!(matches!(error, ReadError::Call(CallError::Interrupted)), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(2));
    });
    assert!(100_000 <= stat(&rig.store, "in_flight_bytes"));
    gate.open();
    assert_idle(&rig.store);
}

#[test]
fn callers_memory_never_changes_after_a_timeout() {
    let (rig, gate, _) = gated(free_engine(), &[100_000]);
    gate.shut();
    let (given, seen) = shared(CallerMemory::from_vec(vec![0xaa; 100_000]));
    let request = ReadRequest {
        items: vec![tensor_item("k0", 100_000)],
        into: vec![given],
        ..ReadRequest::default()
    };
    let error = rig.store.get(request, soon()).unwrap_err();
    assert!(is_timeout(&error), "{error:?}");
    gate.open();
    assert_idle(&rig.store);
    assert!(seen.source(0..100_000).to_vec() == vec![0xaa; 100_000]);
    assert_eq!(Arc::strong_count(&seen), 1, "the store has let go of it");
}

#[test]
fn what_is_staged_is_not_read_any_more_once_its_caller_has_given_up() {
    const LEN: usize = 256 << 20;
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    let engine = Hooked::new(free_engine()).on_write(move |_, writes| {
        let last = writes[0].segments.last().expect("a value with bytes");
        seen.lock()
            .unwrap()
            .extend(last.slice(last.len() - 1..last.len()).to_vec());
        None
    });
    let rig = Rig::registering(Arc::new(engine), &budget(2 * LEN as u64));
    for after_ms in [1, 10, 30] {
        let (given, memory) = shared(CallerMemory::from_vec(vec![0xaa; LEN]));
        let begun = Instant::now();
        let interrupted = || Duration::from_millis(after_ms) < begun.elapsed();
        let patience = Patience {
            interrupted: Some(&interrupted),
            ..Patience::default()
        };
        let item = PutItem {
            key: "k".into(),
            segments: vec![Segment::Caller(given)],
            kind: ObjectKind::Tensor(bytes_spec(LEN as u64)),
        };
        if rig.store.put(vec![item], patience).is_err() {
            copy(
                Source::from(&[0xbb][..]),
                &memory.target(LEN - 1..LEN),
                CopyMode::Cached,
            );
        }
        assert_idle(&rig.store);
    }
    let sent = sent.lock().unwrap();
    assert!(sent.iter().all(|last| *last == 0xaa), "{sent:?}");
}

#[test]
fn a_deadline_that_has_passed_asks_the_engine_for_nothing_large() {
    let (rig, gate, _) = gated(free_engine(), &[100]);
    gate.shut();
    let patience = Patience {
        deadline: Some(Instant::now()),
        ..Patience::default()
    };
    let error = rig
        .read_items(vec![tensor_item("k0", 100)], Delivery::Leased, patience)
        .unwrap_err();
    assert!(matches!(error, ReadError::Call(CallError::Timeout { .. })), "{error:?}");
    gate.open();
    assert_idle(&rig.store);
}

#[test]
fn a_put_that_timed_out_keeps_its_value_until_the_engine_returns() {
    let (rig, gate, _) = gated(free_engine(), &[]);
    gate.shut();
    let buffer = Arc::new(rig.store.empty(1000, Patience::default()).unwrap());
    let item = PutItem::tensor_in("slow", bytes_spec(1000), Arc::clone(&buffer));
    let error = rig.store.put(vec![item], soon()).unwrap_err();
    assert!(
        matches!(error, WriteError::Call(CallError::Timeout { .. })),
        "{error:?}"
    );
    assert_eq!(Arc::strong_count(&buffer), 2);
    gate.open();
    eventually("the engine returned", || Arc::strong_count(&buffer) == 1);
}

#[test]
fn many_threads_that_give_up_at_random_leave_nothing_behind() {
    let (rig, gate, values) = gated(free_engine(), &[40_000; 8]);
    let lens = [40_000; 8];
    thread::scope(|scope| {
        let flicker = scope.spawn(|| {
            for pause in 0..60 {
                gate.shut();
                thread::sleep(Duration::from_millis(pause % 7));
                gate.open();
                thread::sleep(Duration::from_millis(pause % 3));
            }
        });
        for seed in 0..4_u64 {
            let (rig, values) = (&rig, &values);
            scope.spawn(move || {
                for round in 0..40 {
                    let patience = Patience::within(Duration::from_micros(((seed * 7 + round * 13) % 50) * 100));
                    let items = lens
                        .iter()
                        .enumerate()
                        .map(|(at, len)| tensor_item(&format!("k{at}"), *len));
                    let delivery = [Delivery::Leased, Delivery::Copied][usize::try_from(round % 2).unwrap()];
                    match rig.read_items(items.collect(), delivery, patience) {
                        Ok(read) => {
                            assert!(
                                read.iter()
                                    .zip(values)
                                    .all(|(read, value)| read.as_slice() == value.as_slice())
                            );
                        }
                        Err(ReadError::Call(CallError::Timeout { .. } | CallError::Unavailable { .. })) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                    let _contained = rig.store.contains(&["k0".into()], patience);
                }
            });
        }
        flicker.join().unwrap();
    });
    assert_idle(&rig.store);
    assert!(rig.read(&lens, Delivery::Leased).is_ok());
}
