//! Loans when something goes wrong: given back, or kept as long as a transfer may write them.

use crate::{
    loans::{TERMS, assert_given_back, assert_read, callers_memory, over, request},
    support::{Hooked, KIB, Lending, MIB, SOON, Terms, budget, eventually, stat, stored, tensor_item},
};
use std::{sync::Arc, thread, time::Duration};
use tensorlease::{
    CallError, Delivery, Options, Patience, ReadError, ReadItem, ReadRequest,
    engine::{
        Engine, Fault, FaultKind, ReadOp,
        decorators::{Choice, Gate, Gated, LateWriting, ShortReading},
    },
};

const DELAY: Duration = Duration::from_millis(80);

fn no_retries() -> Options {
    Options {
        retries: 0,
        ..budget(16 * MIB)
    }
}

/// Answers every key of the first read with this fault.
fn failing_first(inner: Arc<dyn Engine>, kind: FaultKind) -> Hooked {
    Hooked::new(inner).on_read(move |call, reads| {
        let fault = || Err(Fault::new(kind, -77, "the first error"));
        (call == 1).then(|| reads.iter().map(|_| fault()).collect())
    })
}

fn panicking_first(inner: Arc<dyn Engine>) -> Hooked {
    Hooked::new(inner).on_read(|call, _: &[ReadOp<'_>]| if call == 1 { panic!("on purpose") } else { None })
}

#[test]
fn a_failed_transfer_gives_its_loan_back_and_the_original_error_is_kept() {
    let lens = [20 * KIB, 30 * KIB, 5];
    for kind in [
        FaultKind::Refused,
        FaultKind::Transient,
        FaultKind::NoHandle,
        FaultKind::Expired,
    ] {
        let (engine, values) = stored(&lens);
        let lending = Arc::new(Lending::new(Arc::new(failing_first(engine, kind)), TERMS));
        let rig = over(&lending, &no_retries());
        let error = rig.read(&lens, Delivery::Auto).unwrap_err();
        let ReadError::Transfer { failures, message } = error else {
            panic!("{error:?}")
        };
        assert_eq!(failures.len(), 3);
        assert!(
            failures
                .iter()
                .all(|failure| (failure.kind, failure.code) == (kind, -77)),
            "{failures:?}"
        );
        assert!(message.contains("the first error"), "{message}");
        assert_given_back(&rig, &lending);
        assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
        assert_given_back(&rig, &lending);
    }
}

#[test]
fn a_missing_key_and_a_short_object_in_a_loan_are_named_and_deliver_nothing() {
    let lens = [20 * KIB, 30 * KIB];
    let (engine, _) = stored(&lens);
    let lending = Arc::new(Lending::new(engine, TERMS));
    let rig = over(&lending, &budget(16 * MIB));
    let items: Vec<ReadItem> = ["k0", "gone", "k1"].map(|key| tensor_item(key, 20 * KIB)).to_vec();
    let error = rig
        .read_items(items[..2].to_vec(), Delivery::Auto, Patience::default())
        .unwrap_err();
    assert!(
        matches!(&error, ReadError::KeyNotFound { failures, .. } if failures.len() == 1 && failures[0].key == "gone"),
        "{error:?}"
    );
    assert_eq!(stat(&rig.store, "retries"), 0);
    assert_given_back(&rig, &lending);

    let (engine, _) = stored(&lens);
    let short = Arc::new(ShortReading::new(engine, Choice::keys(["k1"])));
    let lending = Arc::new(Lending::new(short, TERMS));
    let rig = over(&lending, &budget(16 * MIB));
    let error = rig.read(&lens, Delivery::Auto).unwrap_err();
    assert!(
        matches!(&error, ReadError::SizeMismatch { failures, .. } if failures.len() == 1 && failures[0].key == "k1"),
        "{error:?}"
    );
    assert_given_back(&rig, &lending);
}

#[test]
fn an_engine_that_panics_gives_its_loan_back_and_is_a_typed_error() {
    let lens = [20 * KIB; 3];
    let (engine, values) = stored(&lens);
    let lending = Arc::new(Lending::new(Arc::new(panicking_first(engine)), TERMS));
    let rig = over(&lending, &budget(16 * MIB));
    let error = rig.read(&lens, Delivery::Auto).unwrap_err();
    let ReadError::Transfer { message, .. } = error else {
        panic!("{error:?}")
    };
    assert!(message.contains("panicked"), "{message}");
    assert_given_back(&rig, &lending);
    assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
    assert_given_back(&rig, &lending);
}

#[test]
fn an_engine_that_panics_and_may_write_late_keeps_its_loan() {
    let lens = [20 * KIB; 3];
    let (engine, values) = stored(&lens);
    let engine = panicking_first(engine).claiming_late_writes();
    let lending = Arc::new(Lending::new(Arc::new(engine), TERMS));
    let rig = over(&lending, &budget(16 * MIB));
    assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
    assert_eq!(lending.alive(), 1);
    assert_eq!(stat(&rig.store, "quarantined_bytes"), 60 * KIB);
    rig.store.close(Patience::default()).unwrap();
    assert_given_back(&rig, &lending);
}

#[test]
fn a_loan_that_may_still_be_written_is_kept_until_the_engine_is_closed_and_never_lent_again() {
    let lens = [20 * KIB, 30 * KIB, 5];
    let (engine, values) = stored(&lens);
    let late = Arc::new(LateWriting::new(engine, DELAY, Choice::Call(1)));
    let lending = Arc::new(Lending::new(late, TERMS));
    let rig = over(&lending, &budget(16 * MIB));
    let first = rig.read(&lens, Delivery::Auto).unwrap();
    assert_eq!(lending.alive(), 1, "the loan of the first try");
    assert_eq!(stat(&rig.store, "quarantined_bytes"), 50 * KIB + 5);
    let mut kept = vec![first];
    kept.extend((0..6).map(|_| rig.read(&lens, Delivery::Auto).unwrap()));
    thread::sleep(DELAY * 2);
    kept.iter().for_each(|read| assert_read(read, &values));
    let reads = rig.calls.reads();
    let late: Vec<_> = reads[0].iter().map(|read| read.target).collect();
    let clash =
        |read: &&tensorlease::engine::decorators::ObservedRead| late.iter().any(|late| late.overlaps(read.target));
    assert_eq!(reads[1..].iter().flatten().find(clash), None);
    assert_eq!(lending.alive(), 1);
    assert_eq!(stat(&rig.store, "fallback_reads"), 0, "the other loan serves");
    // The rig says when it is given back before the engine was closed.
    rig.store.close(Patience::default()).unwrap();
    assert_eq!(stat(&rig.store, "quarantined_bytes"), 0);
    assert_given_back(&rig, &lending);
    kept.iter().for_each(|read| assert_read(read, &values));
}

#[test]
fn with_every_loan_in_quarantine_reads_go_another_way() {
    let lens = [20 * KIB, 30 * KIB, 5];
    let (engine, values) = stored(&lens);
    // The calls of the first two tries give up.
    let late = Arc::new(LateWriting::new(engine, DELAY, Choice::Call(1)));
    let late = Arc::new(LateWriting::new(late, DELAY, Choice::Call(2)));
    let lending = Arc::new(Lending::new(late, TERMS));
    let rig = over(&lending, &budget(16 * MIB));
    assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
    assert_eq!(lending.alive(), 2, "both are quarantined");
    assert_eq!(stat(&rig.store, "fallback_no_loan"), 3);
    assert_eq!(stat(&rig.store, "registered_reads"), 3);
    assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
    assert_eq!(stat(&rig.store, "fallback_no_loan"), 6);
    rig.store.close(Patience::default()).unwrap();
    assert_given_back(&rig, &lending);
}

#[test]
fn a_loan_in_quarantine_is_never_given_back_where_the_engine_did_not_close() {
    let lens = [20 * KIB];
    let (engine, values) = stored(&lens);
    let engine = failing_first(engine, FaultKind::MayStillWrite).claiming_late_writes();
    let lending = Arc::new(Lending::new(Arc::new(engine.failing_to_close()), TERMS));
    let rig = over(&lending, &budget(16 * MIB));
    assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
    rig.store.close(Patience::default()).unwrap();
    assert_eq!(stat(&rig.store, "quarantined_bytes"), 20 * KIB);
    drop(rig);
    assert_eq!(lending.alive(), 1, "a transfer may still write it");
}

#[test]
fn an_oversized_value_that_is_written_late_is_one_fallback() {
    let lens = [100 * KIB];
    let (engine, values) = stored(&lens);
    let late = Arc::new(LateWriting::new(engine, DELAY, Choice::Call(1)));
    let lending = Arc::new(Lending::new(late, TERMS));
    let rig = over(&lending, &budget(16 * MIB));
    let read = rig.read(&lens, Delivery::Auto).unwrap();
    thread::sleep(DELAY * 2);
    assert_read(&read, &values);
    assert_eq!(rig.calls.reads().len(), 2, "the second try in other memory");
    for counter in ["fallback_loan_too_large", "fallback_reads", "retries"] {
        assert_eq!(stat(&rig.store, counter), 1, "{counter}");
    }
}

#[test]
fn a_loan_is_out_until_the_engine_returns_and_nothing_is_copied_to_a_caller_that_gave_up() {
    let lens = [20 * KIB, 30 * KIB];
    let (engine, values) = stored(&lens);
    let gate = Gate::new();
    let lending = Arc::new(Lending::new(Arc::new(Gated::new(engine, gate.clone())), TERMS));
    let rig = over(&lending, &budget(16 * MIB));
    gate.shut();
    let (into, seen) = callers_memory(&lens);
    let patience = Patience::within(Duration::from_millis(300));
    let error = rig
        .store
        .get(ReadRequest { into, ..request(&lens) }, patience)
        .unwrap_err();
    assert!(matches!(error, ReadError::Call(CallError::Timeout { .. })), "{error:?}");
    assert_eq!(lending.alive(), 1);
    gate.open();
    eventually("the loan is given back", || lending.alive() == 0);
    assert!(
        seen.iter()
            .all(|seen| seen.source(0..seen.len()).to_vec() == vec![0; seen.len()])
    );
    assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
    assert_given_back(&rig, &lending);
}

#[test]
fn a_read_that_expired_is_halved() {
    let lens = [KIB; 32];
    // Bounded by keys, and by bytes.
    for (keys_max, bytes_max) in [(32, 64 * KIB), (400, 32 * KIB)] {
        let (engine, values) = stored(&lens);
        let engine = Hooked::new(engine).on_read(|_, reads| {
            let expired = || Err(Fault::new(FaultKind::Expired, -707, "took too long"));
            (8 < reads.len()).then(|| reads.iter().map(|_| expired()).collect())
        });
        let terms = Terms {
            keys_max,
            bytes_max,
            ..TERMS
        };
        let lending = Arc::new(Lending::new(Arc::new(engine), terms));
        let rig = over(&lending, &budget(16 * MIB));
        assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
        let sizes: Vec<usize> = rig.calls.reads().iter().map(Vec::len).collect();
        assert_eq!(sizes, [vec![32], vec![16; 2], vec![8; 4]].concat());
        assert_eq!(stat(&rig.store, "loans"), 7);
        assert_eq!(stat(&rig.store, "fallback_reads"), 0);
        assert_given_back(&rig, &lending);
    }
}

#[test]
fn closing_waits_for_the_loans_of_running_reads() {
    let lens = [20 * KIB];
    let (engine, values) = stored(&lens);
    let gate = Gate::new();
    let lending = Arc::new(Lending::new(Arc::new(Gated::new(engine, gate.clone())), TERMS));
    let rig = over(&lending, &budget(16 * MIB));
    gate.shut();
    thread::scope(|scope| {
        let reader = scope.spawn(|| rig.read(&lens, Delivery::Auto));
        assert!(gate.wait_for_waiting(1, SOON));
        let closer = scope.spawn(|| rig.store.close(Patience::within(SOON)));
        eventually("the store is closed for new calls", || rig.store.is_closed());
        assert_eq!(lending.alive(), 1);
        gate.open();
        assert_read(&reader.join().unwrap().unwrap(), &values);
        closer.join().unwrap().unwrap();
    });
    assert_given_back(&rig, &lending);
}
