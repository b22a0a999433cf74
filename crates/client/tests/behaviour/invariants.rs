//! The invariants of ARCHITECTURE.md, each under its own name. What a rig checks at every call of this suite (memory inside
//! one registration, nothing written that may still be written, no limit exceeded) is provoked here on purpose.

use crate::support::{
    Claims, Hooked, KIB, MIB, Rig, SOON, assert_idle, budget, bytes_spec, every_engine, free_engine, pattern,
    pinned_engine, stat, stored, tensor_item,
};
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tensorlease::{
    Buffer, CallerMemory, Delivery, FallbackKind, Options, Patience, PutItem, ReadError, ReadRequest,
    engine::{
        Fault, FaultKind,
        decorators::{Call, Choice, FailOn, Failing, Gate, Gated, LateWriting, ShortReading},
    },
};

fn assert_same(read: &[Buffer], values: &[Vec<u8>]) {
    assert!(read.iter().zip(values).all(|(read, value)| read[..] == value[..]));
}

#[test]
fn no_engine_call_gets_memory_outside_a_registration() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let lens: Vec<u64> = (0..30).map(|at| 1 + (at * 74_747) % (2 * MIB)).collect();
    let values = rig.fill(&lens);
    let mut kept = Vec::new();
    for delivery in Delivery::ALL.iter().cycle().take(8) {
        kept.push(rig.read(&lens, *delivery).unwrap());
    }
    kept.iter().for_each(|read| assert_same(read, &values));
    assert_eq!(rig.broken(), [""; 0]);
}

#[test]
fn no_block_crosses_two_registrations() {
    // Registrations of 1 MiB: an object larger than that lies across a border, in a slab made of several.
    let claims = Claims {
        registration_bytes_max: Some(MIB),
        ..Claims::registering()
    };
    let rig = Rig::claiming(free_engine(), claims, &budget(32 * MIB));
    let lens = [700 * KIB, 5, 3 * MIB + 1, 900 * KIB, 100, 2 * MIB];
    let values = rig.fill(&lens);
    for delivery in [Delivery::Leased, Delivery::Copied, Delivery::Leased] {
        let read = rig.read(&lens, delivery).unwrap();
        assert_same(&read, &values);
    }
    let mut buffer = rig.store.empty(5 * MIB, Patience::default()).unwrap();
    buffer.copy_from_slice(&pattern(77, 5 * MIB));
    let item = PutItem::tensor_in("wide", bytes_spec(5 * MIB), Arc::new(buffer));
    rig.store.put(vec![item], Patience::default()).unwrap();
    let items = vec![tensor_item("wide", 5 * MIB)];
    let read = rig.read_items(items, Delivery::Leased, Patience::default()).unwrap();
    assert!(read[0][..] == pattern(77, 5 * MIB));
    assert_eq!(stat(&rig.store, "retries"), 0);
    assert_eq!(rig.broken(), [""; 0]);
}

#[test]
fn no_register_on_the_pooled_path() {
    let engines = [Some(free_engine()), pinned_engine()];
    for engine in engines.into_iter().flatten() {
        let rig = Rig::registering(engine, &budget(64 * MIB));
        let lens: Vec<u64> = (0..40).map(|at| 1 + (at * 31_337) % 500_000).collect();
        let values = rig.fill(&lens);
        // Slabs are made once: the first leased read may add one.
        drop(rig.read(&lens, Delivery::Leased).unwrap());
        rig.calls.take();
        let at_engine = rig.store.stats().get("register_calls");
        for _ in 0..5 {
            for delivery in [Delivery::Leased, Delivery::Auto, Delivery::Copied] {
                assert_same(&rig.read(&lens, delivery).unwrap(), &values);
            }
        }
        assert_eq!(rig.registrations(), 0, "counted at the engine itself");
        assert_eq!(rig.calls.count(|call| matches!(call, Call::Unregister(_))), 0);
        assert!((rig.store.stats().get("register_calls") - at_engine).abs() < 0.5);
        assert_eq!(stat(&rig.store, "hot_path_register_calls"), 0);
    }
}

#[test]
fn a_block_in_flight_is_not_reused_until_the_engine_returns() {
    let gate = Gate::new();
    let engine = Gated::new(free_engine(), gate.clone());
    let rig = Rig::registering(Arc::new(engine), &budget(32 * MIB));
    let values = rig.fill(&[100_000]);
    gate.shut();
    let patience = Patience::within(Duration::from_millis(600));
    assert!(
        rig.read_items(vec![tensor_item("k0", 100_000)], Delivery::Leased, patience)
            .is_err()
    );
    let hanging = rig.calls.reads().concat();
    let held = stat(&rig.store, "in_flight_bytes");
    assert!(100_000 <= held);
    thread::scope(|scope| {
        // Reads that start now get other memory, though nobody waits for the first one any more.
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    rig.read_items(
                        vec![tensor_item("k0", 100_000)],
                        Delivery::Leased,
                        Patience::within(SOON),
                    )
                })
            })
            .collect();
        assert!(gate.wait_for_waiting(3, SOON));
        gate.open();
        for reader in readers {
            assert_same(&reader.join().unwrap().unwrap(), &values);
        }
    });
    for read in &rig.calls.reads().concat()[hanging.len()..] {
        assert!(!read.target.overlaps(hanging[0].target), "{read:?}");
    }
    assert_idle(&rig.store);
}

#[test]
fn memory_that_may_still_be_written_is_never_handed_out() {
    for (name, engine) in every_engine() {
        let choice = Choice::Chance {
            probability: 0.15,
            seed: 3,
        };
        let engine = LateWriting::new(engine, Duration::from_millis(30), choice);
        let options = Options {
            retries: 60,
            ..budget(64 * MIB)
        };
        let rig = Rig::new(Arc::new(engine), &options);
        let lens = [20_000, 17, 40_000, 1000];
        let values = rig.fill(&lens);
        let read: Vec<Vec<Buffer>> = (0..6)
            .map(|at| rig.read(&lens, Delivery::ALL[at % 4]).unwrap())
            .collect();
        assert!(0 < stat(&rig.store, "quarantines"), "{name}");
        thread::sleep(Duration::from_millis(80));
        read.iter().for_each(|read| assert_same(read, &values));
        assert_eq!(rig.broken(), [""; 0], "{name}");
    }
}

/// Reads everything in every delivery, and does not care how that ends.
fn try_reads(rig: &Rig, lens: &[u64], patience: Patience<'_>) {
    for delivery in Delivery::ALL {
        let items = lens
            .iter()
            .enumerate()
            .map(|(at, len)| tensor_item(&format!("k{at}"), *len));
        let _ended = rig.read_items(items.collect(), delivery, patience);
    }
    let request = ReadRequest {
        items: lens
            .iter()
            .enumerate()
            .map(|(at, len)| tensor_item(&format!("k{at}"), *len))
            .collect(),
        batches: std::iter::once(0..lens.len()).collect(),
        ..ReadRequest::default()
    };
    let _ended = rig.store.get(request, patience);
    let request = ReadRequest {
        items: lens
            .iter()
            .enumerate()
            .map(|(at, len)| tensor_item(&format!("k{at}"), *len))
            .collect(),
        into: lens
            .iter()
            .map(|len| CallerMemory::from_vec(vec![0; usize::try_from(*len).unwrap()]))
            .collect(),
        ..ReadRequest::default()
    };
    let _ended = rig.store.get(request, patience);
}

#[test]
fn everything_is_released_on_every_path() {
    let lens = [30_000, 5, 2 * MIB, 100_000];
    let none = Options {
        retries: 1,
        ..budget(16 * MIB)
    };
    let all = Patience::default();
    let of = |engine| {
        let rig = Rig::registering(engine, &none);
        rig.fill(&lens);
        rig
    };
    // Success, then one kind of fault after the other.
    let rig = of(free_engine());
    try_reads(&rig, &lens, all);
    assert_idle(&rig.store);
    for kind in [
        FaultKind::NotFound,
        FaultKind::Mismatch,
        FaultKind::NoHandle,
        FaultKind::Transient,
        FaultKind::Unregistered,
        FaultKind::Unavailable,
        FaultKind::Refused,
    ] {
        for choice in [Choice::always(), Choice::keys(["k1", "k2"])] {
            let rig = of(Arc::new(Failing::new(free_engine(), kind, FailOn::READS, choice)));
            try_reads(&rig, &lens, all);
            assert_idle(&rig.store);
        }
    }
    let rig = of(Arc::new(ShortReading::new(free_engine(), Choice::always())));
    try_reads(&rig, &lens, all);
    assert_idle(&rig.store);
    let rig = of(Arc::new(
        Hooked::new(free_engine()).on_read(|_, _| panic!("a defect of the engine")),
    ));
    try_reads(&rig, &lens, all);
    assert_idle(&rig.store);
    // Timeout and interrupt, with the engine returning later.
    let gate = Gate::new();
    let rig = of(Arc::new(Gated::new(free_engine(), gate.clone())));
    gate.shut();
    try_reads(&rig, &lens, Patience::within(Duration::from_millis(20)));
    gate.open();
    assert_idle(&rig.store);
    gate.shut();
    let asked = AtomicUsize::new(0);
    let interrupted = || 0 < asked.fetch_add(1, Relaxed);
    let patience = Patience {
        interrupted: Some(&interrupted),
        ..Patience::default()
    };
    try_reads(&rig, &lens, patience);
    gate.open();
    assert_idle(&rig.store);
}

#[test]
fn every_fallback_is_counted_and_strict_names_it() {
    let count = |rig: &Rig, kind| {
        let name = match kind {
            FallbackKind::Budget => "fallback_budget",
            FallbackKind::TooLarge => "fallback_too_large",
            _ => unreachable!("not provoked here"),
        };
        stat(&rig.store, name)
    };
    for (kind, lens) in [
        (FallbackKind::Budget, vec![MIB; 10]),
        (FallbackKind::TooLarge, vec![9 * MIB]),
    ] {
        let (engine, values) = stored(&lens);
        let rig = Rig::registering(engine, &budget(16 * MIB));
        let read = rig.read(&lens, Delivery::Leased).unwrap();
        assert_same(&read, &values);
        let leased = read.iter().filter(|buffer| buffer.is_leased()).count() as u64;
        let expected = lens.len() as u64 - stat(&rig.store, "leased_reads");
        assert!(0 < expected && leased <= lens.len() as u64);
        assert_eq!(count(&rig, kind), expected);
        assert_eq!(stat(&rig.store, "fallback_reads"), expected);
        let strict = Options {
            strict: true,
            ..budget(16 * MIB)
        };
        let rig = Rig::registering(stored(&lens).0, &strict);
        let error = rig.read(&lens, Delivery::Leased).unwrap_err();
        let ReadError::Fallback {
            kind: named, message, ..
        } = error
        else {
            panic!("{error:?}")
        };
        assert_eq!(named, kind);
        assert!(message.contains(kind.words()), "{message}");
        assert_idle(&rig.store);
    }
}

#[test]
fn the_original_error_reaches_the_caller() {
    for delivery in Delivery::ALL {
        let engine = Hooked::new(free_engine()).on_read(|_, reads| {
            let fault = |key: &str| Fault::new(FaultKind::Refused, 4711, format!("the disk of {key} is gone"));
            Some(reads.iter().map(|read| Err(fault(read.key))).collect())
        });
        let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
        let error = rig.read(&[30_000, 5], delivery).unwrap_err();
        let ReadError::Transfer { message, failures } = error else {
            panic!("{error:?}")
        };
        for (at, failure) in failures.iter().enumerate() {
            assert_eq!(failure.code, 4711);
            assert!(failure.message.contains("the disk of k"), "{at}: {failure:?}");
        }
        assert!(
            message.contains("the disk of k0 is gone") && message.contains("the disk of k1 is gone"),
            "{message}"
        );
    }
}

#[test]
fn returned_values_are_independent() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(32 * MIB));
        let lens = [20_000, 20_000, 7, 7, 3 * MIB, 17_001];
        let values = rig.fill(&lens);
        for delivery in Delivery::ALL {
            let mut first = rig.read(&lens, delivery).unwrap();
            let mut second = rig.read(&lens, delivery).unwrap();
            for at in 0..lens.len() {
                assert_eq!(first[at].len() as u64, lens[at], "exactly its bytes");
                first[at].fill(0x11);
                second[at].fill(0x22);
            }
            let third = rig.read(&lens, delivery).unwrap();
            assert_same(&third, &values);
            for at in 0..lens.len() {
                assert!(first[at].iter().all(|byte| *byte == 0x11), "{name}, {delivery:?}, {at}");
                assert!(
                    second[at].iter().all(|byte| *byte == 0x22),
                    "{name}, {delivery:?}, {at}"
                );
            }
            // One value kept keeps no other, in whatever order they go.
            first.remove(4);
            drop(second);
            assert!(first.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0x11)));
            let regions: Vec<_> = first.iter().chain(&third).map(Buffer::region).collect();
            for (at, region) in regions.iter().enumerate() {
                assert!(regions[at + 1..].iter().all(|other| !other.overlaps(*region)));
            }
        }
    }
}

#[test]
fn values_are_dropped_in_any_thread_while_others_read() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let lens = vec![40_000; 30];
    let values = rig.fill(&lens);
    let pile: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let read = rig.read(&lens, Delivery::Leased).unwrap();
                    assert_same(&read, &values);
                    pile.lock().unwrap().extend(read);
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..400 {
                    let taken: Vec<Buffer> = pile.lock().unwrap().drain(..).step_by(2).collect();
                    thread::yield_now();
                    drop(taken);
                }
            });
        }
    });
    drop(pile);
    assert_idle(&rig.store);
}

#[test]
fn no_two_live_values_share_memory() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let lens: Vec<u64> = (0..50).map(|at| 1 + (at * 7919) % 60_000).collect();
    rig.fill(&lens);
    let kept: Vec<Buffer> = (0..3)
        .flat_map(|_| rig.read(&lens, Delivery::Leased).unwrap())
        .collect();
    let starts: HashSet<usize> = kept.iter().map(|buffer| buffer.region().addr).collect();
    assert_eq!(starts.len(), kept.len());
    let mut regions: Vec<_> = kept.iter().map(Buffer::region).collect();
    regions.sort_by_key(|region| region.addr);
    assert!(regions.windows(2).all(|pair| pair[0].end() <= pair[1].addr));
}
