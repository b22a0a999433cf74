//! The arena never exceeds its budget, and a budget that is used up never stops a read.

use crate::{
    deliveries::shared,
    support::{
        Checking, Claims, Hooked, KIB, MIB, Rig, assert_idle, budget, eventually, every_engine, free_engine, stat,
        stored, tensor_item,
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tensorlease::{
    CallError, CallerMemory, Delivery, KeyFailure, OpenError, Options, Patience, ReadError, ReadRequest, Store,
    engine::{
        FaultKind,
        decorators::{Gate, Gated},
    },
};
use tensorlease_memory::{NoSlab, SlabMemory, SlabSource};

#[test]
fn every_budget_from_one_page_on_serves_every_delivery() {
    let lens = [1, 5000, 100_000, 3 * MIB + 1, 70_000];
    for max_bytes in [4096, 64 * KIB, 8 * MIB, 64 * MIB] {
        for (name, engine) in every_engine() {
            let rig = Rig::new(engine, &budget(max_bytes));
            let values = rig.fill(&lens);
            for delivery in Delivery::ALL {
                let read = rig.read(&lens, delivery).unwrap();
                let same = read
                    .iter()
                    .zip(&values)
                    .all(|(read, value)| read.as_slice() == value.as_slice());
                assert!(same, "{name}, max_bytes={max_bytes}, {delivery:?}");
                let arena = stat(&rig.store, "arena_bytes");
                assert!(
                    arena <= max_bytes,
                    "{name}: {arena} bytes of arena, {max_bytes} allowed"
                );
            }
            assert_idle(&rig.store);
        }
    }
}

/// Has no room, and counts who asks.
#[derive(Default)]
struct NoRoom(AtomicU64);

impl SlabSource for NoRoom {
    fn make(&self, _len: usize) -> Result<SlabMemory, NoSlab> {
        self.0.fetch_add(1, Relaxed);
        Err(NoSlab::Full { free: 0 })
    }
}

#[test]
fn nobody_waits_for_room_that_no_transfer_of_this_store_can_give_back() {
    let source = Arc::new(NoRoom::default());
    let lens = [5000; 4];
    let (engine, _) = stored(&lens);
    let engine = Hooked::new(engine).with_slabs(Arc::clone(&source) as Arc<dyn SlabSource>);
    let options = Options {
        retries: 0,
        ..budget(MIB)
    };
    let rig = Rig::registering(Arc::new(engine), &options);
    let error = rig.read(&lens, Delivery::Copied).unwrap_err();
    let ReadError::Transfer { failures, .. } = error else {
        panic!("{error:?}")
    };
    let no_memory = |failure: &KeyFailure| failure.kind == FaultKind::NoHandle;
    assert!(failures.iter().all(no_memory), "{failures:?}");
    // A wait asks every millisecond, for a second.
    let asked = source.0.load(Relaxed);
    assert!(asked < 200, "a source without room was asked {asked} times");
    assert_idle(&rig.store);
}

fn into(lens: &[u64]) -> (ReadRequest, Vec<Arc<CallerMemory>>) {
    let fresh = |len: &u64| CallerMemory::from_vec(vec![0xaa; usize::try_from(*len).unwrap()]);
    let (into, seen) = lens.iter().map(fresh).map(shared).unzip();
    let items = lens.iter().enumerate();
    let request = ReadRequest {
        items: items.map(|(at, len)| tensor_item(&format!("k{at}"), *len)).collect(),
        into,
        ..ReadRequest::default()
    };
    (request, seen)
}

#[test]
fn without_any_block_the_callers_memory_is_filled_where_nothing_is_registered_and_not_after_a_timeout() {
    let lens = [5, 100_000, 9 * MIB + 1];
    let (engine, values) = stored(&lens);
    let gate = Gate::new();
    let gated = Gated::new(engine, gate.clone());
    let engine = Hooked::new(Arc::new(gated)).with_slabs(Arc::new(NoRoom::default()));
    let rig = Rig::new(Arc::new(engine), &budget(MIB));
    let (request, seen) = into(&lens);
    rig.store.get(request, Patience::default()).unwrap();
    for (value, memory) in values.iter().zip(&seen) {
        assert!(&memory.source(0..memory.len()).to_vec() == value, "{}", value.len());
    }
    assert_eq!(stat(&rig.store, "retries"), 0);
    gate.shut();
    let (request, seen) = into(&lens);
    let error = rig.store.get(request, Patience::within(Duration::from_millis(300)));
    assert!(
        matches!(error, Err(ReadError::Call(CallError::Timeout { .. }))),
        "{error:?}"
    );
    gate.open();
    assert_idle(&rig.store);
    for memory in seen {
        assert!(memory.source(0..memory.len()).to_vec() == vec![0xaa; memory.len()]);
        assert_eq!(Arc::strong_count(&memory), 1, "the store has let go of it");
    }
}

#[test]
fn where_nothing_is_registered_no_read_waits_for_a_block_that_others_hold() {
    const CALLERS: u64 = 6;
    let inside = AtomicU64::new(0);
    let (engine, values) = stored(&[100_000]);
    let engine = Hooked::new(engine).on_read(move |_, _| {
        inside.fetch_add(1, Relaxed);
        eventually("all reads to be in the engine at once", || {
            CALLERS <= inside.load(Relaxed)
        });
        None
    });
    let options = Options {
        retries: 0,
        readers: 1,
        bounce_bytes: Some(256 * KIB),
        ..budget(512 * KIB)
    };
    let store = Store::with_engine(Arc::new(engine), &options).unwrap();
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                let (request, seen) = into(&[100_000]);
                store.get(request, Patience::default()).unwrap();
                assert!(seen[0].source(0..100_000).to_vec() == values[0]);
            });
        }
    });
    assert!(0 < stat(&store, "fallback_bounce_busy"));
    assert_idle(&store);
}

#[test]
fn values_kept_past_the_budget_never_stop_a_read() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(16 * MIB));
        let lens = vec![MIB; 20];
        let values = rig.fill(&lens);
        let mut kept = Vec::new();
        for _ in 0..3 {
            kept.push(rig.read(&lens, Delivery::Leased).unwrap());
            assert!(stat(&rig.store, "arena_bytes") <= 16 * MIB);
        }
        for read in &kept {
            assert!(
                read.iter()
                    .zip(&values)
                    .all(|(read, value)| read.as_slice() == value.as_slice()),
                "{name}"
            );
        }
        assert_eq!(
            stat(&rig.store, "leased_reads"),
            8,
            "{name}: 8 MiB of 16 are for leases"
        );
        assert_eq!(stat(&rig.store, "fallback_reads"), 52);
        assert_eq!(stat(&rig.store, "fallback_budget"), 52);
        assert_eq!(
            stat(&rig.store, "warnings_suppressed"),
            4,
            "one warning for the budget and one for the copy cache, whatever the number of fallbacks"
        );
        drop(kept);
        assert_idle(&rig.store);
        let read = rig.read(&lens[..8], Delivery::Leased).unwrap();
        assert!(read.iter().all(tensorlease::Buffer::is_leased));
        assert_eq!(
            stat(&rig.store, "fallback_reads"),
            52,
            "leased again once the values are dropped"
        );
    }
}

#[test]
fn a_batch_past_the_budget_is_still_one_buffer() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    let lens = vec![MIB; 10];
    let values = rig.fill(&lens);
    let request = || ReadRequest {
        items: lens
            .iter()
            .enumerate()
            .map(|(at, len)| tensor_item(&format!("k{at}"), *len))
            .collect(),
        batches: std::iter::once(0..10).collect(),
        ..Default::default()
    };
    let kept: Vec<_> = (0..3)
        .map(|_| rig.store.get(request(), Patience::default()).unwrap())
        .collect();
    for output in &kept {
        assert!(output.batches[0].as_deref().unwrap() == values.concat());
    }
    assert_eq!(stat(&rig.store, "fallback_too_large"), 3 * 10 / 10);
}

#[test]
fn concurrent_reads_share_one_budget_and_never_exceed_it() {
    // Requirement B9.
    for (name, engine) in every_engine() {
        let options = Options {
            readers: 4,
            ..budget(16 * MIB)
        };
        let rig = Rig::new(engine, &options);
        let lens: Vec<u64> = (0..24).map(|at| 1 + (at * 99_991) % (2 * MIB)).collect();
        let values = rig.fill(&lens);
        let done = AtomicBool::new(false);
        let most = thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut most = 0;
                while !done.load(Relaxed) {
                    most = most.max(stat(&rig.store, "arena_bytes"));
                    thread::sleep(Duration::from_micros(200));
                }
                most
            });
            let readers: Vec<_> = [Delivery::Leased, Delivery::Copied, Delivery::Auto, Delivery::Leased]
                .into_iter()
                .map(|delivery| {
                    let (rig, lens, values) = (&rig, &lens, &values);
                    scope.spawn(move || {
                        let mut kept = None;
                        for _ in 0..4 {
                            let read = rig.read(lens, delivery).unwrap();
                            assert!(
                                read.iter()
                                    .zip(values)
                                    .all(|(read, value)| read.as_slice() == value.as_slice())
                            );
                            kept = Some(read);
                        }
                        drop(kept);
                    })
                })
                .collect();
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            done.store(true, Relaxed);
            watcher.join().unwrap()
        });
        assert!(0 < most && most <= 16 * MIB, "{name}: {most} bytes of arena");
        assert_idle(&rig.store);
    }
}

#[test]
fn a_large_object_gets_a_slab_in_place_of_the_empty_ones() {
    let lens = [68 * MIB, 30 * MIB, 30 * MIB, 5 * MIB];
    let (engine, values) = stored(&lens);
    let rig = Rig::registering(engine, &budget(80 * MIB));
    // Slabs of 64 and 6 MiB use the budget up, and an object of 68 MiB fits into neither.
    let read = |range: std::ops::Range<usize>| {
        let items = range.clone().map(|at| tensor_item(&format!("k{at}"), lens[at]));
        let read = rig
            .read_items(items.collect(), Delivery::Leased, Patience::default())
            .unwrap();
        assert!(
            read.iter()
                .zip(&values[range])
                .all(|(read, value)| read[..] == value[..])
        );
    };
    read(1..4);
    assert_eq!(stat(&rig.store, "slabs_made"), 2);
    read(0..1);
    read(0..1);
    assert_eq!(stat(&rig.store, "slabs_rebuilt"), 1, "made once, then reused");
    assert_eq!(stat(&rig.store, "fallback_reads"), 0);
    assert!(stat(&rig.store, "arena_bytes") <= 80 * MIB);
}

#[test]
fn trim_gives_memory_back_and_the_next_read_makes_it_anew() {
    for (_, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(64 * MIB));
        let lens = [MIB, 3, 2 * MIB];
        let values = rig.fill(&lens);
        let kept = rig.read(&lens[..1], Delivery::Leased).unwrap();
        drop(rig.read(&lens, Delivery::Copied).unwrap());
        let before = stat(&rig.store, "arena_bytes");
        let _freed = rig.store.trim();
        assert!(
            stat(&rig.store, "arena_bytes") <= before,
            "a slab with a live value stays"
        );
        assert_eq!(kept[0].as_slice(), &values[0][..]);
        drop(kept);
        let freed = rig.store.trim();
        assert!(0 < freed);
        assert_eq!(stat(&rig.store, "arena_bytes"), 0);
        assert_eq!(stat(&rig.store, "copy_cache_bytes"), 0);
        for delivery in [Delivery::Leased, Delivery::Copied] {
            let read = rig.read(&lens, delivery).unwrap();
            assert!(
                read.iter()
                    .zip(&values)
                    .all(|(read, value)| read.as_slice() == value.as_slice())
            );
        }
    }
}

#[test]
fn trim_while_others_read_takes_nothing_from_them() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let lens = [MIB, 20_000, 3, 2 * MIB];
    let values = rig.fill(&lens);
    thread::scope(|scope| {
        let readers: Vec<_> = [Delivery::Leased, Delivery::Copied, Delivery::RegisterPerCall]
            .into_iter()
            .map(|delivery| {
                let (rig, values) = (&rig, &values);
                scope.spawn(move || {
                    for _ in 0..30 {
                        let read = rig.read(&lens, delivery).unwrap();
                        assert!(read.iter().zip(values).all(|(read, value)| read[..] == value[..]));
                    }
                })
            })
            .collect();
        while readers.iter().any(|reader| !reader.is_finished()) {
            let _freed = rig.store.trim();
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert_idle(&rig.store);
}

#[test]
fn a_bounce_reserve_that_no_registration_holds_is_refused_at_open() {
    let claims = Claims {
        registration_bytes_max: Some(4 * MIB),
        ..Claims::registering()
    };
    let options = Options {
        bounce_bytes: Some(5 * MIB),
        ..budget(32 * MIB)
    };
    let engine = Checking::new(free_engine(), claims);
    let error = Store::with_engine(Arc::new(engine), &options).unwrap_err();
    assert!(error.to_string().contains("bounce_bytes=5242880"), "{error}");
}

#[test]
fn a_prewarmed_store_makes_no_slab_when_it_reads() {
    let options = Options {
        prewarm_bytes: 100 * MIB,
        ..budget(128 * MIB)
    };
    let rig = Rig::registering(free_engine(), &options);
    let made = stat(&rig.store, "slabs_made");
    assert!(100 * MIB <= stat(&rig.store, "arena_bytes"));
    let lens = vec![10 * MIB; 9];
    rig.fill(&lens);
    rig.calls.take();
    let made_by_writes = stat(&rig.store, "slabs_made") - made;
    drop(rig.read(&lens, Delivery::Leased).unwrap());
    assert_eq!(stat(&rig.store, "slabs_made"), made + made_by_writes);
    assert_eq!(rig.registrations(), 0);
    assert_eq!(stat(&rig.store, "fallback_reads"), 0);
}

#[test]
fn a_store_that_is_prewarmed_whole_registers_nothing_afterwards() {
    let options = Options {
        prewarm_bytes: 64 * MIB,
        ..budget(64 * MIB)
    };
    let rig = Rig::registering(free_engine(), &options);
    assert_eq!(stat(&rig.store, "arena_bytes"), 64 * MIB);
    let registered = stat(&rig.store, "register_calls");
    let lens = [100, 20 << 10, 3 * MIB, 20 * MIB];
    rig.fill(&lens);
    for delivery in [Delivery::Leased, Delivery::Copied, Delivery::Auto] {
        drop(rig.read(&lens, delivery).unwrap());
    }
    assert_eq!(stat(&rig.store, "register_calls"), registered);
    assert_eq!(stat(&rig.store, "fallback_reads"), 0);
    assert_eq!(stat(&rig.store, "fallback_writes"), 0);
}

#[test]
fn empty_takes_a_block_of_the_budget_or_says_what_is_held() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    let mut block = rig.store.empty(6 * MIB, Patience::default()).unwrap();
    block[..3].copy_from_slice(b"abc");
    assert!(block.is_leased());
    assert!(rig.store.empty(0, Patience::default()).unwrap().is_empty());
    let error = rig.store.empty(6 * MIB, Patience::default()).unwrap_err();
    let ReadError::ArenaExhausted { asked, held, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(asked, 6 * MIB);
    assert!(6 * MIB <= held);
    drop(block);
    drop(rig.store.empty(6 * MIB, Patience::default()).unwrap());
    assert_idle(&rig.store);
}

#[test]
fn options_that_no_arena_can_follow_name_themselves() {
    let cases = [
        (budget(100), "max_bytes"),
        (budget(1 << 60), "max_bytes"),
        (
            Options {
                readers: 0,
                ..budget(MIB)
            },
            "readers",
        ),
    ];
    for (options, name) in cases {
        let error = Store::open("embedded://?capacity=16MiB", &options).unwrap_err();
        assert!(matches!(error, OpenError::Config { .. }), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn dropping_values_after_close_is_fine() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    let values = rig.fill(&[MIB]);
    let read = rig.read(&[MIB], Delivery::Leased).unwrap();
    rig.store.close(Patience::default()).unwrap();
    assert_eq!(read[0].as_slice(), &values[0][..]);
    drop(read);
    eventually("leased_bytes = 0", || stat(&rig.store, "leased_bytes") == 0);
    let error = rig.read(&[MIB], Delivery::Leased).unwrap_err();
    assert!(matches!(error, ReadError::Call(CallError::Closed)));
}
