//! The end of a store, by `close`, by drop, and in a forked child.

use crate::support::{MIB, Rig, SOON, budget, eventually, every_engine, free_engine, stat, tensor_item};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tensorlease::{
    CallError, Delivery, Patience, PutItem, QueryError, ReadError, ReadRequest, RemoveError, Store, WriteError,
    engine::{
        FaultKind,
        decorators::{Call, Gate, Gated, Slow},
    },
};

#[test]
fn close_is_idempotent_and_every_call_afterwards_says_closed() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    rig.fill(&[100]);
    for _ in 0..3 {
        rig.store.close(Patience::default()).unwrap();
        assert!(rig.store.is_closed());
    }
    assert_eq!(rig.calls.count(|call| matches!(call, Call::Close)), 1);
    let keys = ["k0".to_owned()];
    let patience = Patience::default;
    assert!(matches!(
        rig.read(&[100], Delivery::Leased),
        Err(ReadError::Call(CallError::Closed))
    ));
    assert!(matches!(
        rig.store.empty(8, Patience::default()),
        Err(ReadError::Call(CallError::Closed))
    ));
    let put = rig.store.put(vec![PutItem::packed("p", vec![1])], patience());
    assert!(matches!(put, Err(WriteError::Call(CallError::Closed))));
    assert!(matches!(
        rig.store.contains(&keys, patience()),
        Err(QueryError::Call(CallError::Closed))
    ));
    assert!(matches!(
        rig.store.describe(&keys, patience()),
        Err(QueryError::Call(CallError::Closed))
    ));
    assert!(matches!(
        rig.store.wait(&keys, patience()),
        Err(QueryError::Call(CallError::Closed))
    ));
    assert!(matches!(
        rig.store.remove(&keys, patience()),
        Err(RemoveError::Call(CallError::Closed))
    ));
    assert!(matches!(
        rig.store.clear(patience()),
        Err(RemoveError::Call(CallError::Closed))
    ));
    assert_eq!(rig.store.trim(), 0);
    assert!(
        0.0 < rig.store.stats().get("register_calls"),
        "counters outlive the store"
    );
}

#[test]
fn values_stay_valid_after_close_and_after_the_store_is_gone() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(32 * MIB));
        let lens = [MIB, 5, 100_000, 3 * MIB];
        let values = rig.fill(&lens);
        let mut read = rig.read(&lens, Delivery::Leased).unwrap();
        rig.store.close(Patience::default()).unwrap();
        let same = |read: &[tensorlease::Buffer]| {
            read.iter()
                .zip(&values)
                .all(|(read, value)| read.as_slice() == value.as_slice())
        };
        assert!(same(&read), "{name}");
        drop(rig);
        assert!(same(&read), "{name}");
        read[0].fill(9);
        assert_eq!(read[0][MIB as usize - 1], 9, "{name}: still writable");
        drop(read);
    }
}

#[test]
fn everything_registered_is_unregistered_before_the_engine_closes() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let lens = [MIB, 5];
    let store = rig.store.clone();
    rig.fill(&lens);
    let _kept = rig.read(&lens, Delivery::Leased).unwrap();
    drop(rig.read(&lens, Delivery::Copied).unwrap());
    store.close(Patience::default()).unwrap();
    let calls = rig.calls.calls();
    assert_eq!(calls.last(), Some(&Call::Close));
    assert!(rig.calls.count(|call| matches!(call, Call::Unregister(_))) >= 1);
    assert_eq!(rig.calls.count(|call| matches!(call, Call::Close)), 1);
}

#[test]
fn the_last_handle_closes_the_store() {
    let engine = free_engine();
    let store = Store::with_engine(Arc::clone(&engine), &budget(16 * MIB)).unwrap();
    let other = store.clone();
    drop(store);
    other
        .put(vec![PutItem::packed("p", vec![1])], Patience::default())
        .unwrap();
    drop(other);
    let after = engine.contains_batch(&["p"]);
    assert!(
        matches!(&after[0], Err(fault) if fault.kind == FaultKind::Unavailable),
        "{after:?}"
    );
}

#[test]
fn close_waits_for_running_reads() {
    let engine = Slow::new(free_engine(), Duration::from_millis(60));
    let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
    let values = rig.fill(&[100_000]);
    thread::scope(|scope| {
        let reader = scope.spawn(|| rig.read(&[100_000], Delivery::Leased));
        eventually("the read runs", || !rig.calls.reads().is_empty());
        rig.store.close(Patience::default()).unwrap();
        let read = reader.join().unwrap().unwrap();
        assert_eq!(read[0].as_slice(), &values[0][..]);
    });
}

#[test]
fn close_while_an_engine_call_hangs_is_bounded_and_ends_the_waiting_read() {
    let gate = Gate::new();
    let rig = Rig::registering(Arc::new(Gated::new(free_engine(), gate.clone())), &budget(16 * MIB));
    rig.fill(&[100_000]);
    gate.shut();
    thread::scope(|scope| {
        let (reads, patience) = (&rig, Patience::within(Duration::from_secs(5)));
        let reader =
            scope.spawn(move || reads.read_items(vec![tensor_item("k0", 100_000)], Delivery::Leased, patience));
        assert!(gate.wait_for_waiting(1, SOON));
        let start = Instant::now();
        rig.store.close(Patience::within(Duration::from_millis(200))).unwrap();
        let took = start.elapsed();
        assert!(
            Duration::from_millis(150) < took && took < Duration::from_secs(3),
            "{took:?}"
        );
        let error = reader.join().unwrap().unwrap_err();
        assert!(
            matches!(error, ReadError::Call(CallError::Timeout { .. } | CallError::Closed)),
            "{error:?}"
        );
    });
    gate.open();
    eventually("the blocks are back", || stat(&rig.store, "in_flight_bytes") == 0);
}

#[test]
fn waiting_for_a_key_ends_when_the_store_closes() {
    let rig = Rig::new(free_engine(), &budget(16 * MIB));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| rig.store.wait(&["never".into()], Patience::within(SOON)));
        eventually("it looks", || {
            0 < rig.calls.count(|call| matches!(call, Call::Contains(_)))
        });
        rig.store.close(Patience::default()).unwrap();
        let error = waiter.join().unwrap().unwrap_err();
        assert!(matches!(error, QueryError::Call(CallError::Closed)), "{error:?}");
    });
}

#[test]
fn dropping_a_store_whose_engine_hangs_is_bounded() {
    let gate = Gate::new();
    let engine = Gated::new(free_engine(), gate.clone());
    let store = Store::with_engine(Arc::new(engine), &budget(16 * MIB)).unwrap();
    gate.shut();
    let patience = Patience::within(Duration::from_millis(300));
    let error = store.contains(&["k".into()], patience).unwrap_err();
    assert!(matches!(error, QueryError::Call(CallError::Timeout { .. })));
    let start = Instant::now();
    drop(store);
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    gate.open();
}

#[test]
fn reads_that_race_with_close_end_with_their_bytes_or_with_closed() {
    for _ in 0..10 {
        let rig = Rig::registering(free_engine(), &budget(32 * MIB));
        let lens = [2 * MIB, 100_000, 7];
        let values = rig.fill(&lens);
        thread::scope(|scope| {
            for delivery in [Delivery::Leased, Delivery::Copied, Delivery::RegisterPerCall] {
                let (rig, values) = (&rig, &values);
                scope.spawn(move || {
                    for _ in 0..1000 {
                        match rig.read(&lens, delivery) {
                            Ok(read) => {
                                assert!(read.iter().zip(values).all(|(read, value)| read[..] == value[..]));
                            }
                            Err(ReadError::Call(CallError::Closed)) => return,
                            Err(error) => panic!("{delivery:?}: {error:?}"),
                        }
                    }
                });
            }
            thread::sleep(Duration::from_millis(10));
            rig.store.close(Patience::default()).unwrap();
        });
        eventually("in_flight_bytes = 0", || stat(&rig.store, "in_flight_bytes") == 0);
    }
}

/// Runs `work` in a forked child; `true` where it returned `true` and the child ended in good order.
#[allow(unsafe_code)]
fn in_a_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only runs `work`, which takes no lock that another thread of this process may have held, and
    // leaves with `_exit`.
    let child = unsafe { libc::fork() };
    assert!(0 <= child, "fork works");
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends this process, without running anybody's exit handlers.
        unsafe { libc::_exit(i32::from(!matches!(done, Ok(true)))) }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, into a local variable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn in_a_forked_child_every_call_is_refused_and_drops_do_nothing() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(16 * MIB));
        let values = rig.fill(&[100_000, MIB]);
        let read = rig.read(&[100_000, MIB], Delivery::Leased).unwrap();
        let held = stat(&rig.store, "leased_bytes");
        let keys = ["k0".to_owned()];
        let store = rig.store.clone();
        let good = in_a_child(|| {
            let refused = matches!(
                store.get(ReadRequest::default(), Patience::default()),
                Err(ReadError::Call(CallError::Forked))
            ) && matches!(
                store.empty(8, Patience::default()),
                Err(ReadError::Call(CallError::Forked))
            ) && matches!(
                store.put(Vec::new(), Patience::default()),
                Err(WriteError::Call(CallError::Forked))
            ) && matches!(
                store.contains(&keys, Patience::default()),
                Err(QueryError::Call(CallError::Forked))
            ) && matches!(
                store.remove(&keys, Patience::default()),
                Err(RemoveError::Call(CallError::Forked))
            ) && matches!(
                store.clear(Patience::default()),
                Err(RemoveError::Call(CallError::Forked))
            ) && matches!(store.close(Patience::default()), Err(CallError::Forked))
                && store.trim() == 0;
            // What was leased stays readable, and is given back by nobody here.
            let readable = read[1][..] == values[1][..];
            drop(read);
            drop(store);
            refused && readable
        });
        assert!(good, "{name}: the child saw something else");
        // The parent's values were moved into the closure, which its child alone ran: they are dropped here, too.
        eventually("leased_bytes = 0", || stat(&rig.store, "leased_bytes") == 0);
        assert!(100_000 + MIB <= held);
        let again = rig.read(&[100_000, MIB], Delivery::Leased).unwrap();
        assert!(
            again.iter().zip(&values).all(|(read, value)| read[..] == value[..]),
            "{name}: the parent goes on"
        );
    }
}
