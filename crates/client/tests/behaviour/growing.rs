//! The arena grows while calls wait for it: no call outlives its timeout by that, and none fails where there is room.

use crate::support::{
    Claims, Hooked, KIB, MIB, Rig, SOON, assert_idle, budget, bytes_spec, eventually, free_engine, pattern, stat,
    stored, tensor_item,
};
use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tensorlease::{
    CallError, Delivery, FallbackKind, Options, Patience, PutItem, ReadError, ReadItem, Store, WriteError,
    engine::{Engine, RegisterError, decorators::from_spec},
};

const TIMEOUT: Duration = Duration::from_millis(300);
/// What a call may take beyond that, with room for a busy machine: registrations hang for far longer.
const SLACK: Duration = Duration::from_millis(1500);

/// A rig whose registrations stand still while the flag is set.
fn rig(engine: Arc<dyn Engine>, claims: Claims, options: &Options) -> (Rig, Arc<AtomicBool>) {
    let hangs = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&hangs);
    let hooked = Hooked::new(engine).on_register(move |_| {
        let until = Instant::now() + SOON;
        while flag.load(Relaxed) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        None
    });
    (Rig::claiming(Arc::new(hooked), claims, options), hangs)
}

fn items(lens: &[u64]) -> Vec<ReadItem> {
    let item = |(at, len): (usize, &u64)| tensor_item(&format!("k{at}"), *len);
    lens.iter().enumerate().map(item).collect()
}

fn put(store: &Store, lens: &[u64], patience: Patience<'_>) -> Result<(), WriteError> {
    let item = |(at, len): (usize, &u64)| PutItem::tensor(format!("p{at}"), bytes_spec(*len), pattern(7, *len));
    store.put(lens.iter().enumerate().map(item).collect(), patience)
}

/// What one call came to that needed the arena to grow.
type Outcome = Result<(), String>;

fn of_call(error: &CallError) -> Outcome {
    match error {
        CallError::Timeout { .. } => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn of_read<T>(read: Result<T, ReadError>) -> Outcome {
    match read {
        Ok(_) => Err("it was served".to_owned()),
        Err(ReadError::Call(error)) => of_call(&error),
        Err(error) => Err(format!("{error:?}")),
    }
}

fn of_write(written: Result<(), WriteError>) -> Outcome {
    match written {
        Ok(()) => Err("it was stored".to_owned()),
        Err(WriteError::Call(error)) => of_call(&error),
        Err(error) => Err(format!("{error:?}")),
    }
}

type Call = fn(&Rig) -> Outcome;

/// Each needs a slab that is not there.
const CALLS: [(&str, Call); 6] = [
    ("one leased value", |rig| {
        of_read(rig.read_items(items(&[MIB; 1]), Delivery::Leased, Patience::within(TIMEOUT)))
    }),
    ("many leased values", |rig| {
        of_read(rig.read_items(items(&[MIB; 20]), Delivery::Auto, Patience::within(TIMEOUT)))
    }),
    ("copied values, through the bounce reserve", |rig| {
        of_read(rig.read_items(items(&[MIB; 20]), Delivery::Copied, Patience::within(TIMEOUT)))
    }),
    ("a small put, through the bounce reserve", |rig| {
        of_write(put(&rig.store, &[30 * KIB], Patience::within(TIMEOUT)))
    }),
    ("a large put, through a block of its own", |rig| {
        of_write(put(&rig.store, &[40 * MIB], Patience::within(TIMEOUT)))
    }),
    ("an empty tensor", |rig| {
        of_read(rig.store.empty(MIB, Patience::within(TIMEOUT)))
    }),
];

#[test]
fn no_call_outlives_its_timeout_while_a_slab_is_registered() {
    for not_prompt in [false, true] {
        for (name, call) in CALLS {
            let lens = [MIB; 20];
            let (engine, _) = stored(&lens);
            let claims = Claims {
                not_prompt,
                ..Claims::registering()
            };
            let (rig, hangs) = rig(engine, claims, &budget(160 * MIB));
            // The first slab was made at open: without it each call needs one.
            let _freed = rig.store.trim();
            hangs.store(true, Relaxed);
            // The second one finds the first one's slab in the making.
            for _ in 0..2 {
                let started = Instant::now();
                call(&rig).unwrap_or_else(|ended| panic!("{name}: {ended}"));
                let took = started.elapsed();
                assert!(took < TIMEOUT + SLACK, "{name} took {took:?}");
            }
            hangs.store(false, Relaxed);
            eventually("the late slab", || 0 < stat(&rig.store, "arena_bytes"));
            let read = rig.read(&lens, Delivery::Leased).unwrap();
            assert_eq!(stat(&rig.store, "fallback_reads"), 0, "{name}");
            drop(read);
            assert_idle(&rig.store);
        }
    }
}

#[test]
fn an_interrupt_ends_the_wait_for_a_slab() {
    let (engine, _) = stored(&[MIB]);
    let (rig, hangs) = rig(engine, Claims::registering(), &budget(160 * MIB));
    let _freed = rig.store.trim();
    hangs.store(true, Relaxed);
    let started = Instant::now();
    let interrupted = || TIMEOUT < started.elapsed();
    let patience = Patience {
        interrupted: Some(&interrupted),
        ..Patience::default()
    };
    let read = rig.read_items(items(&[MIB]), Delivery::Leased, patience);
    assert!(matches!(read, Err(ReadError::Call(CallError::Interrupted))), "{read:?}");
    assert!(started.elapsed() < TIMEOUT + SLACK, "{:?}", started.elapsed());
    hangs.store(false, Relaxed);
    assert_idle(&rig.store);
}

#[test]
fn what_needs_no_growth_goes_on_while_a_registration_hangs() {
    let lens = [MIB, 100 * MIB];
    let (engine, values) = stored(&lens);
    let claims = Claims {
        not_prompt: true,
        ..Claims::registering()
    };
    let (rig, hangs) = rig(engine, claims, &budget(256 * MIB));
    let large = || {
        let item = vec![tensor_item("k1", lens[1])];
        rig.read_items(item, Delivery::Leased, Patience::within(SOON))
    };
    thread::scope(|scope| {
        hangs.store(true, Relaxed);
        // More of them than readers. Those of the bounce reserve wait for it before they take a reader.
        let waiting: Vec<_> = (0..3).map(|_| scope.spawn(large)).collect();
        let copies: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| rig.read(&lens[..1], Delivery::Copied)))
            .collect();
        eventually("the calls", || stat(&rig.store, "running_calls") == 6);
        for _ in 0..50 {
            let read = rig.read_items(items(&lens[..1]), Delivery::Leased, Patience::within(SOON / 4));
            assert_eq!(read.unwrap()[0].as_slice(), values[0].as_slice());
        }
        assert_eq!(stat(&rig.store, "running_calls"), 6, "they wait");
        hangs.store(false, Relaxed);
        for call in waiting {
            assert_eq!(call.join().unwrap().unwrap()[0].len(), values[1].len());
        }
        for call in copies {
            assert_eq!(call.join().unwrap().unwrap()[0].as_slice(), values[0].as_slice());
        }
    });
    assert_idle(&rig.store);
}

#[test]
fn an_open_waits_for_its_first_memory_no_longer_than_a_call_may() {
    for spec in ["hang:60s", "hang:60s:call2"] {
        let engine = from_spec(spec, free_engine()).unwrap();
        let options = Options {
            call_timeout: TIMEOUT,
            // The second slab is the bounce reserve.
            prewarm_bytes: 192 * MIB,
            ..budget(192 * MIB)
        };
        let started = Instant::now();
        let error = Store::with_engine(engine, &options).unwrap_err();
        let took = started.elapsed();
        assert!(took < TIMEOUT + SLACK, "{spec} took {took:?}");
        assert!(error.to_string().contains("not finished within"), "{error}");
    }
}

#[test]
fn a_close_does_not_wait_for_a_registration_longer_than_it_may() {
    let (engine, _) = stored(&[MIB]);
    let (rig, hangs) = rig(engine, Claims::registering(), &budget(160 * MIB));
    let _freed = rig.store.trim();
    hangs.store(true, Relaxed);
    assert!(
        rig.read_items(items(&[MIB]), Delivery::Leased, Patience::within(TIMEOUT))
            .is_err()
    );
    let started = Instant::now();
    rig.store.close(Patience::within(TIMEOUT)).unwrap();
    // The engine has half a second to close.
    let took = started.elapsed();
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    hangs.store(false, Relaxed);
    // Its slab goes back: what is registered when its memory goes shows when the rig goes.
    eventually("the end of the slab", || stat(&rig.store, "arena_bytes") == 0);
}

#[test]
fn copies_side_by_side_under_strict_never_fail_where_there_is_room() {
    let lens = [MIB, 8 * MIB];
    let (engine, _) = stored(&lens);
    let options = Options {
        copy_cache_bytes: Some(36 * MIB),
        strict: true,
        ..budget(160 * MIB)
    };
    let rig = Rig::new(engine, &options);
    for round in 0..60 {
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            for (at, len) in lens.iter().enumerate() {
                let (rig, barrier) = (&rig, &barrier);
                scope.spawn(move || {
                    let item = vec![tensor_item(&format!("k{at}"), *len)];
                    barrier.wait();
                    let read = rig.read_items(item, Delivery::Copied, Patience::default());
                    assert!(read.is_ok(), "round {round}: {read:?}");
                });
            }
        });
        let _freed = rig.store.trim();
    }
}

#[test]
fn a_read_that_is_refused_gives_up_no_slab_in_vain() {
    let lens = [60 * MIB, 70 * MIB, 120 * MIB];
    let (engine, _) = stored(&lens);
    let options = Options {
        bounce_bytes: Some(32 * MIB),
        ..budget(192 * MIB)
    };
    let rig = Rig::registering(engine, &options);
    let read = |at: usize| {
        let item = vec![tensor_item(&format!("k{at}"), lens[at])];
        rig.read_items(item, Delivery::Leased, Patience::default()).unwrap()
    };
    let _held = read(0);
    drop(read(1));
    let made = stat(&rig.store, "slabs_made");
    let bytes = stat(&rig.store, "arena_bytes");
    for _ in 0..3 {
        drop(read(2));
        drop(read(1));
    }
    assert_eq!(stat(&rig.store, "fallback_budget"), 3, "60 of 160 MiB are held");
    assert!(bytes <= stat(&rig.store, "arena_bytes"));
    // The bounce reserve is one more.
    assert!(stat(&rig.store, "slabs_made") <= made + 1);
    assert_eq!(stat(&rig.store, "slabs_rebuilt"), 0);
}

/// Registrations of more than `most` bytes are refused while the flag is set.
fn refusing(most: u64, lens: &[u64], options: &Options) -> (Rig, Arc<AtomicBool>, Arc<AtomicU64>) {
    let (refuses, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (flag, count) = (Arc::clone(&refuses), Arc::clone(&tries));
    let engine = Hooked::new(stored(lens).0).on_register(move |region| {
        count.fetch_add(1, Relaxed);
        let source = "RLIMIT_MEMLOCK is used up".into();
        let refused = flag.load(Relaxed) && most < region.len as u64;
        refused.then_some(RegisterError::Failed {
            len: region.len,
            source,
        })
    });
    (
        Rig::claiming(Arc::new(engine), Claims::registering(), options),
        refuses,
        tries,
    )
}

#[test]
fn a_refused_slab_forbids_no_smaller_one_of_the_other_kind_and_is_tried_again() {
    let options = Options {
        bounce_bytes: Some(32 * MIB),
        ..budget(256 * MIB)
    };
    let lens = [60 * MIB, 50 * MIB];
    let (rig, refuses, tries) = refusing(40 * MIB, &lens, &options);
    let held = rig.read(&lens[..1], Delivery::Leased).unwrap();
    refuses.store(true, Relaxed);
    tries.store(0, Relaxed);
    let second_is_leased = || {
        let before = stat(&rig.store, "leased_reads");
        let item = vec![tensor_item("k1", lens[1])];
        rig.read_items(item, Delivery::Leased, Patience::default()).unwrap();
        before < stat(&rig.store, "leased_reads")
    };
    // It comes through the bounce reserve, which is far smaller.
    for _ in 0..3 {
        assert!(!second_is_leased());
    }
    assert_eq!(stat(&rig.store, "fallback_slab_not_registered"), 3);
    assert_eq!(stat(&rig.store, "fallback_bounce_busy"), 0);
    assert_eq!(tries.load(Relaxed), 2, "one of each kind: a refusal holds for a while");
    let error = rig.store.empty(50 * MIB, Patience::default()).unwrap_err();
    assert!(error.to_string().contains("RLIMIT_MEMLOCK is used up"), "{error}");
    refuses.store(false, Relaxed);
    eventually("another try without trim", second_is_leased);
    drop(held);
    assert_idle(&rig.store);
}

#[test]
fn strict_names_the_cause_of_a_refused_slab() {
    let options = Options {
        strict: true,
        ..budget(256 * MIB)
    };
    let lens = [60 * MIB, 50 * MIB];
    let (rig, refuses, _) = refusing(40 * MIB, &lens, &options);
    refuses.store(true, Relaxed);
    let error = rig.read(&lens, Delivery::Leased).unwrap_err();
    let ReadError::Fallback { kind, message, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(kind, FallbackKind::SlabNotRegistered);
    assert!(message.contains("RLIMIT_MEMLOCK is used up"), "{message}");
}
