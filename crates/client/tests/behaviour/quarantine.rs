//! Memory that a transfer may still write is never reused nor handed out: requirement B12.

use crate::{
    deliveries::shared,
    support::{
        Claims, Hooked, MIB, Rig, SOON, budget, eventually, every_engine, free_engine, stat, stored, tensor_item,
    },
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};
use tensorlease::{
    Buffer, CallerMemory, Delivery, Options, Patience, PutItem, ReadError, ReadRequest, Store, WriteError,
    engine::{
        Engine, Fault, FaultKind, WriteOp,
        decorators::{Choice, LateWriting, ObservedRead},
    },
};

const DELAY: Duration = Duration::from_millis(80);

/// Each key of a read gives up with this probability, and is written 80 ms later.
fn late(inner: Arc<dyn Engine>, probability: f64) -> Arc<dyn Engine> {
    let choice = Choice::Chance { probability, seed: 9 };
    Arc::new(LateWriting::new(inner, DELAY, choice))
}

fn patient(max_bytes: u64) -> Options {
    Options {
        retries: 40,
        ..budget(max_bytes)
    }
}

fn assert_same(read: &[Buffer], values: &[Vec<u8>], what: &str) {
    for (at, (read, value)) in read.iter().zip(values).enumerate() {
        assert!(read.as_slice() == value.as_slice(), "value {at} changed: {what}");
    }
}

#[test]
fn what_was_handed_out_never_changes_after_a_late_write() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(late(engine, 0.04), &patient(64 * MIB));
        let lens: Vec<u64> = (0..30).map(|at| 1 + (at * 9973) % 60_000).collect();
        let values = rig.fill(&lens);
        let mut kept = Vec::new();
        for delivery in Delivery::ALL {
            for _ in 0..3 {
                kept.push((delivery, rig.read(&lens, delivery).unwrap()));
            }
        }
        assert!(0 < stat(&rig.store, "quarantined_bytes"), "{name}: nothing was late");
        thread::sleep(DELAY * 2);
        for (delivery, read) in &kept {
            assert_same(read, &values, &format!("{name}, {delivery:?}"));
        }
        // Whoever got a block after the late write has it alone, too.
        let again = rig.read(&lens, Delivery::Leased).unwrap();
        thread::sleep(DELAY * 2);
        assert_same(&again, &values, name);
        rig.store.close(Patience::default()).unwrap();
        assert_eq!(
            stat(&rig.store, "quarantined_bytes"),
            0,
            "{name}: closing the engine ends the quarantine"
        );
        for (delivery, read) in &kept {
            assert_same(read, &values, &format!("{name}, {delivery:?}, after close"));
        }
    }
}

#[test]
fn a_batch_that_was_written_late_lands_elsewhere_as_a_whole() {
    for delivery in Delivery::ALL {
        let engine = LateWriting::new(free_engine(), DELAY, Choice::Call(1));
        let rig = Rig::registering(Arc::new(engine), &patient(64 * MIB));
        let lens = [20_000, 30_000, 7];
        let values = rig.fill(&lens);
        let request = ReadRequest {
            items: lens
                .iter()
                .enumerate()
                .map(|(at, len)| tensor_item(&format!("k{at}"), *len))
                .collect(),
            batches: std::iter::once(0..3).collect(),
            delivery: Some(delivery),
            ..ReadRequest::default()
        };
        let output = rig.store.get(request, Patience::default()).unwrap();
        thread::sleep(DELAY * 2);
        assert_eq!(output.batches[0].as_deref(), Some(&values.concat()[..]), "{delivery:?}");
        assert!(50_007 <= stat(&rig.store, "quarantined_bytes"), "{delivery:?}");
    }
}

#[test]
fn a_retry_never_lands_in_memory_that_may_still_be_written() {
    for delivery in Delivery::ALL {
        let engine = LateWriting::new(free_engine(), DELAY, Choice::Call(1));
        let rig = Rig::registering(Arc::new(engine), &patient(64 * MIB));
        let lens = [100_000, 5, 20_000];
        rig.fill(&lens);
        drop(rig.read(&lens, delivery).unwrap());
        let reads = rig.calls.reads();
        let first = reads
            .iter()
            .position(|call| call.iter().any(|read| read.key == "k0"))
            .unwrap();
        let late: Vec<ObservedRead> = reads[first].clone();
        let later = reads[first + 1..].iter().flatten();
        for read in later {
            let clash = late.iter().find(|late| late.target.overlaps(read.target));
            assert_eq!(clash, None, "{delivery:?}: {read:?}");
        }
        assert!(first + 1 < reads.len(), "it was tried again");
    }
}

#[test]
fn callers_memory_is_written_after_the_transfer_only() {
    let engine = LateWriting::new(free_engine(), DELAY, Choice::Call(1));
    let rig = Rig::registering(Arc::new(engine), &patient(64 * MIB));
    let values = rig.fill(&[100_000]);
    let (given, seen) = shared(CallerMemory::from_vec(vec![0; 100_000]));
    let request = ReadRequest {
        items: vec![tensor_item("k0", 100_000)],
        into: vec![given],
        ..ReadRequest::default()
    };
    rig.store.get(request, Patience::default()).unwrap();
    thread::sleep(DELAY * 2);
    assert!(
        seen.source(0..100_000).to_vec() == values[0],
        "the late write went to the bounce block"
    );
    assert!(100_000 <= stat(&rig.store, "quarantined_bytes"));
}

#[test]
fn a_late_direct_read_into_callers_memory_fails_without_a_retry() {
    let engine = LateWriting::new(free_engine(), DELAY, Choice::Call(1));
    let rig = Rig::registering(Arc::new(engine), &patient(64 * MIB));
    rig.fill(&[100_000]);
    let (given, seen) = shared(CallerMemory::from_vec(vec![0; 100_000]));
    let request = ReadRequest {
        items: vec![tensor_item("k0", 100_000)],
        into: vec![given],
        direct: true,
        ..ReadRequest::default()
    };
    let error = rig.store.get(request, Patience::default()).unwrap_err();
    let ReadError::Transfer { failures, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(
        (failures[0].kind, failures[0].code),
        (FaultKind::MayStillWrite, LateWriting::CODE)
    );
    assert_eq!(rig.calls.reads().len(), 1);
    assert!(
        1 < Arc::strong_count(&seen),
        "the store keeps the memory as long as it may be written"
    );
    assert!(100_000 <= stat(&rig.store, "quarantined_bytes"));
    rig.store.close(Patience::default()).unwrap();
    assert_eq!(Arc::strong_count(&seen), 1);
}

#[test]
fn a_quarantine_past_its_bound_says_what_to_do() {
    let engine = LateWriting::new(free_engine(), Duration::from_millis(1), Choice::always());
    let options = Options {
        quarantine_bytes: Some(200_000),
        ..patient(64 * MIB)
    };
    let rig = Rig::registering(Arc::new(engine), &options);
    rig.fill(&[90_000]);
    let error = rig.read(&[90_000], Delivery::Leased).unwrap_err();
    let ReadError::ArenaExhausted { message, held, .. } = error else {
        panic!("{error:?}")
    };
    assert!(200_000 < held);
    for part in ["quarantine_bytes=200000", "close this store", "open a new one"] {
        assert!(message.contains(part), "{part:?} in {message}");
    }
    let calls = rig.calls.reads().len();
    let again = rig.read(&[90_000], Delivery::Copied).unwrap_err();
    assert!(matches!(again, ReadError::ArenaExhausted { .. }), "{again:?}");
    assert_eq!(rig.calls.reads().len(), calls, "nothing more is risked");
}

#[test]
fn memory_of_several_values_counts_in_the_quarantine_before_the_next_try() {
    let engine = LateWriting::new(free_engine(), Duration::from_millis(1), Choice::always());
    let options = Options {
        quarantine_bytes: Some(200_000),
        ..patient(64 * MIB)
    };
    let rig = Rig::registering(Arc::new(engine), &options);
    rig.fill(&[150_000, 150_000]);
    let error = rig.read(&[150_000, 150_000], Delivery::RegisterPerCall).unwrap_err();
    let ReadError::ArenaExhausted { message, held, .. } = error else {
        panic!("{error:?}")
    };
    assert!(message.contains("quarantine_bytes=200000"), "{held} in {message}");
    assert_eq!(
        rig.calls.reads().len(),
        1,
        "one call, whose late memory is past the bound"
    );
}

#[test]
fn a_bounce_reserve_in_quarantine_leaves_staging_to_the_arena_until_that_is_full_too() {
    let engine = LateWriting::new(free_engine(), Duration::from_millis(1), Choice::keys(["k0"]));
    let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
    let values = rig.fill(&[7 * MIB / 2, MIB]);
    let error = rig.read(&[7 * MIB / 2], Delivery::Copied).unwrap_err();
    assert!(matches!(error, ReadError::Transfer { .. }), "{error:?}");
    assert_eq!(
        stat(&rig.store, "quarantined_bytes"),
        14 * MIB,
        "four tries, each in memory of its own"
    );
    assert!(0 < stat(&rig.store, "fallback_bounce_busy"));
    let error = rig.read(&[7 * MIB / 2], Delivery::Copied).unwrap_err();
    let ReadError::Transfer { message, failures } = error else {
        panic!("{error:?}")
    };
    assert_eq!(failures[0].kind, FaultKind::NoHandle);
    for part in ["no staging block", "quarantined", "open a new one"] {
        assert!(message.contains(part), "{part:?} in {message}");
    }
    for delivery in [Delivery::Leased, Delivery::Copied] {
        let items = vec![tensor_item("k1", MIB)];
        let read = rig.read_items(items, delivery, Patience::default()).unwrap();
        assert!(read[0][..] == values[1][..]);
    }
}

#[test]
fn values_kept_when_the_store_is_dropped_survive_the_late_writes() {
    let rig = Rig::registering(late(free_engine(), 0.3), &patient(64 * MIB));
    let lens = [50_000; 20];
    let values = rig.fill(&lens);
    let read = rig.read(&lens, Delivery::Leased).unwrap();
    assert!(0 < stat(&rig.store, "quarantined_bytes"));
    drop(rig);
    assert_same(&read, &values, "the store is gone");
}

/// Fails the first write with `MayStillWrite`: the engine may go on reading the value.
fn late_write() -> Arc<dyn Engine> {
    let hook = |call, writes: &[WriteOp<'_>]| {
        let late = || Err(Fault::new(FaultKind::MayStillWrite, -800, "gave up"));
        (call == 1).then(|| writes.iter().map(|_| late()).collect())
    };
    Arc::new(Hooked::new(free_engine()).claiming_late_writes().on_write(hook))
}

#[test]
fn what_an_engine_keeps_for_late_writes_counts_and_ends_puts_past_the_bound() {
    let hook =
        |call, _: &[WriteOp<'_>]| (call == 1).then(|| vec![Err(Fault::new(FaultKind::MayStillWrite, -800, "gave up"))]);
    let engine = Hooked::new(free_engine())
        .claiming_late_writes()
        .keeping(150_000)
        .on_write(hook);
    let options = Options {
        quarantine_bytes: Some(180_000),
        ..budget(64 * MIB)
    };
    let store = Store::with_engine(Arc::new(engine), &options).unwrap();
    assert_eq!(stat(&store, "quarantined_bytes"), 150_000);
    let put = |key: &str| store.put(vec![PutItem::packed(key, vec![7; 50_000])], Patience::default());
    let error = put("late").unwrap_err();
    assert!(matches!(error, WriteError::Transfer { .. }), "{error:?}");
    assert_eq!(stat(&store, "quarantined_bytes"), 200_000);
    let error = put("next").unwrap_err();
    let WriteError::ArenaExhausted { message, .. } = error else {
        panic!("{error:?}")
    };
    for part in [
        "200000 bytes are quarantined",
        "quarantine_bytes=180000",
        "open a new one",
    ] {
        assert!(message.contains(part), "{part:?} in {message}");
    }
    store.close(Patience::default()).unwrap();
}

#[test]
fn a_staged_write_that_may_still_be_read_is_tried_from_another_block() {
    let rig = Rig::registering(late_write(), &patient(64 * MIB));
    let values = rig.fill(&[50_000]);
    assert!(50_000 <= stat(&rig.store, "quarantined_bytes"));
    let read = rig.read(&[50_000], Delivery::Leased).unwrap();
    assert_same(&read, &values, "written");
}

#[test]
fn a_value_that_a_failed_write_may_still_read_is_kept_until_close() {
    // Memory that needs no registration is sent as it lies; so is a leased buffer where it does.
    for registering in [false, true] {
        let rig = if registering {
            Rig::registering(late_write(), &budget(64 * MIB))
        } else {
            Rig::new(late_write(), &budget(64 * MIB))
        };
        let buffer = Arc::new(rig.store.empty(50_000, Patience::default()).unwrap());
        let item = PutItem::tensor_in("late", crate::support::bytes_spec(50_000), Arc::clone(&buffer));
        let error = rig.store.put(vec![item], Patience::default()).unwrap_err();
        assert!(
            matches!(&error, WriteError::Transfer { failures, .. } if failures[0].code == -800),
            "{error:?}"
        );
        assert_eq!(Arc::strong_count(&buffer), 2, "the store keeps it");
        assert_eq!(stat(&rig.store, "quarantined_bytes"), 50_000);
        rig.store.close(Patience::default()).unwrap();
        assert_eq!(Arc::strong_count(&buffer), 1);
        assert_eq!(stat(&rig.store, "quarantined_bytes"), 0);
    }
}

#[test]
fn a_call_that_ends_after_its_engine_was_closed_leaves_nothing_in_quarantine() {
    for delivery in [Delivery::Leased, Delivery::Copied, Delivery::RegisterPerCall] {
        let (engine, _) = stored(&[100_000]);
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let entered = Arc::new(AtomicBool::new(false));
        let entering = Arc::clone(&entered);
        // Before the inner engine sees the call, so that it can close meanwhile.
        let hanging = Hooked::new(engine).claiming_late_writes().on_read(move |_, reads| {
            entering.store(true, Relaxed);
            let _given_up = released.lock().unwrap().recv_timeout(SOON);
            let late = || Err(Fault::new(FaultKind::MayStillWrite, 0, "given up"));
            Some(reads.iter().map(|_| late()).collect())
        });
        let claims = Claims {
            not_prompt: true,
            ..Claims::registering()
        };
        let rig = Rig::claiming(Arc::new(hanging), claims, &budget(16 * MIB));
        let items = vec![tensor_item("k0", 100_000)];
        let begun = || entered.load(Relaxed);
        let given_up = Patience {
            interrupted: Some(&begun),
            ..Patience::default()
        };
        assert!(rig.read_items(items, delivery, given_up).is_err());
        rig.store.close(Patience::within(Duration::from_millis(30))).unwrap();
        drop(release);
        eventually("the call's end", || stat(&rig.store, "abandoned_running_calls") == 0);
        eventually("the end of its quarantine", || {
            stat(&rig.store, "quarantined_bytes") == 0
        });
        assert!(0 < stat(&rig.store, "quarantines"), "{delivery:?}: it was quarantined");
    }
}
