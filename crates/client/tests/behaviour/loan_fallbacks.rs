//! What gets no loan is read all the same: collected, registered once, counted; under `strict` it is an error.

use crate::{
    loans::{TERMS, assert_given_back, assert_read, callers_memory, over, request},
    support::{
        Hooked, KIB, Lending, MIB, Rig, Terms, budget, free_engine, no_loan, pattern, spec, stat, stored, tensor_item,
        warnings_of,
    },
};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tensorlease::{
    DType, Delivery, FallbackKind, Options, Patience, ReadError, ReadItem, ReadRequest,
    engine::{
        Engine, Fault, FaultKind, WriteOp,
        decorators::{Call, Choice, FailOn, Failing},
    },
};

/// A store whose lender never lends.
fn lending_nothing(lens: &[u64], options: &Options) -> (Rig, Arc<Lending>, Vec<Vec<u8>>) {
    let (engine, values) = stored(lens);
    let lending = Lending::new(engine, TERMS).on_borrow(|number, _| Some(no_loan(&format!("cause {number}"))));
    let lending = Arc::new(lending);
    (over(&lending, options), lending, values)
}

fn strict() -> Options {
    Options {
        strict: true,
        ..budget(16 * MIB)
    }
}

/// Where the calls of a read landed: in loans, or in memory that was registered for them.
fn calls_by_memory(rig: &Rig, lending: &Lending) -> (Vec<usize>, Vec<usize>) {
    let (lent, registered): (Vec<_>, Vec<_>) = rig
        .calls
        .reads()
        .into_iter()
        .partition(|read| lending.holds(read[0].target));
    let keys = |calls: Vec<Vec<_>>| calls.iter().map(Vec::len).collect();
    (keys(lent), keys(registered))
}

fn unregistrations(rig: &Rig) -> usize {
    rig.calls.count(|call| matches!(call, Call::Unregister(_)))
}

fn assert_refused(error: &ReadError, expected: FallbackKind, parts: &[&str]) {
    let ReadError::Fallback { kind, message, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(*kind, expected, "{message}");
    for part in parts.iter().chain(&["strict"]) {
        assert!(message.contains(part), "{part:?} in {message}");
    }
}

#[test]
fn values_larger_than_a_loan_are_one_registration_and_one_transfer_per_dtype_after_the_others() {
    // Requirement A8, over two dtypes and more keys than one batch of loans.
    let engine = free_engine();
    let mut tensors = Vec::new();
    for at in 0..40_u64 {
        let dtype = if at % 2 == 0 { DType::F32 } else { DType::F64 };
        let shape = if at % 5 == 0 { 25 * KIB } else { 500 };
        let spec = spec(dtype, &[shape]);
        let (key, bytes) = (format!("t{at}"), pattern(at, spec.bytes()));
        let segments = [bytes.as_slice().into()];
        let write = WriteOp {
            key: &key,
            segments: &segments,
            tag: spec.tag(),
        };
        assert_eq!(engine.write_batch(&[write]), [Ok(())]);
        tensors.push((ReadItem::tensor(key, spec), bytes));
    }
    let lending = Arc::new(Lending::new(engine, Terms { keys_max: 10, ..TERMS }));
    let rig = over(&lending, &budget(16 * MIB));
    let (items, values): (Vec<ReadItem>, Vec<Vec<u8>>) = tensors.into_iter().unzip();
    rig.calls.take();
    let read = rig.read_items(items, Delivery::Auto, Patience::default()).unwrap();
    assert_read(&read, &values);
    assert_eq!((rig.registrations(), unregistrations(&rig)), (2, 2), "one per dtype");
    let (lent, registered) = calls_by_memory(&rig, &lending);
    assert_eq!(registered, [4, 4], "one transfer per dtype");
    assert_eq!(lent.iter().sum::<usize>(), 32);
    let calls = rig.calls.calls();
    let first = calls.iter().position(|call| matches!(call, Call::Register(_))).unwrap();
    let later = |call: &Call| matches!(call, Call::Read(reads) if lending.holds(reads[0].target));
    assert!(!calls[first..].iter().any(later), "loans first");
    for counter in ["fallback_loan_too_large", "fallback_reads", "registered_reads"] {
        assert_eq!(stat(&rig.store, counter), 8, "{counter}");
    }
    assert_eq!(stat(&rig.store, "fallback_no_loan"), 0);
    assert_given_back(&rig, &lending);
}

#[test]
fn values_that_got_no_loan_are_registered_once_and_the_others_are_unaffected() {
    let lens = [10 * KIB; 60];
    let (engine, values) = stored(&lens);
    // Ten loans are asked for; every second one is refused.
    let refusing = |number, _| (number % 2 == 0).then(|| no_loan("buffer pool is exhausted"));
    let lending = Arc::new(Lending::new(engine, TERMS).on_borrow(refusing));
    let rig = over(&lending, &budget(16 * MIB));
    rig.calls.take();
    let read = rig.read(&lens, Delivery::Auto).unwrap();
    assert_read(&read, &values);
    assert_eq!(rig.registrations(), 1);
    let (lent, registered) = calls_by_memory(&rig, &lending);
    assert_eq!((lent, registered), (vec![6; 5], vec![30]));
    assert_eq!(stat(&rig.store, "loans"), 5);
    for counter in ["fallback_no_loan", "fallback_reads", "registered_reads", "copied_reads"] {
        assert_eq!(stat(&rig.store, counter), 30, "{counter}");
    }
    assert_eq!(stat(&rig.store, "retries"), 0, "going another way is no retry");
    assert_given_back(&rig, &lending);
}

#[test]
fn what_is_too_large_and_what_got_no_loan_share_one_registration() {
    let lens = [10, 100 * KIB, 20, 200 * KIB];
    let (rig, lending, values) = lending_nothing(&lens, &budget(16 * MIB));
    rig.calls.take();
    assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
    assert_eq!(rig.registrations(), 1);
    assert_eq!(rig.calls.reads().iter().map(Vec::len).collect::<Vec<_>>(), [4]);
    assert_eq!(stat(&rig.store, "fallback_loan_too_large"), 2);
    assert_eq!(stat(&rig.store, "fallback_no_loan"), 2);
    assert_given_back(&rig, &lending);
}

#[test]
fn a_pool_that_cannot_serve_warns_once_with_its_first_cause() {
    let lens = [20 * KIB; 20];
    let (rig, lending, values) = lending_nothing(&lens, &budget(16 * MIB));
    let warnings = warnings_of(|| {
        for _ in 0..5 {
            assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
        }
    });
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in ["cause ", "local_buffer", "pool=own"] {
        assert!(warnings[0].contains(part), "{part:?} in {}", warnings[0]);
    }
    // The first read asked for seven loans; the causes of later reads are not the first.
    let first: BTreeSet<String> = (1..=7).map(|number| format!("cause {number})")).collect();
    assert!(first.iter().any(|cause| warnings[0].contains(cause)), "{}", warnings[0]);
    assert_eq!(stat(&rig.store, "fallback_no_loan"), 100);
    assert_eq!(stat(&rig.store, "warnings_suppressed"), 4);
    assert_given_back(&rig, &lending);
}

#[test]
fn loans_made_for_themselves_are_counted_and_warned_of_once() {
    let lens = [20 * KIB; 6];
    let (engine, values) = stored(&lens);
    let lending = Arc::new(Lending::new(engine, TERMS));
    // A prompt engine serves one small call on the caller's own thread, whose warnings are seen here.
    let rig = Rig::registering(Arc::clone(&lending) as Arc<dyn Engine>, &budget(16 * MIB));
    let read = |count: usize| assert_read(&rig.read(&lens[..count], Delivery::Auto).unwrap(), &values[..count]);
    read(3);
    assert_eq!(stat(&rig.store, "overflow_loans"), 0);
    lending.overflow();
    let warnings = warnings_of(|| (0..4).for_each(|_| read(3)));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("local_buffer"), "{}", warnings[0]);
    read(6);
    assert_eq!(
        stat(&rig.store, "overflow_loans"),
        6,
        "four reads of one loan, one of two"
    );
    assert_eq!(stat(&rig.store, "loans"), 7);
    assert_given_back(&rig, &lending);
}

#[test]
fn strict_names_a_value_larger_than_a_loan_and_reads_nothing() {
    let (engine, _) = stored(&[10, 100 * KIB]);
    let lending = Arc::new(Lending::new(engine, TERMS));
    let rig = over(&lending, &strict());
    let error = rig.read(&[10, 100 * KIB], Delivery::Auto).unwrap_err();
    assert_refused(
        &error,
        FallbackKind::LoanTooLarge,
        &["local_buffer", "strict=True, key \"k1\", and"],
    );
    assert!(rig.calls.reads().is_empty());
    assert_eq!(stat(&rig.store, "fallback_reads"), 0);
    assert!(rig.read(&[10], Delivery::Auto).is_ok());
    assert!(
        rig.read(&[10, 100 * KIB], Delivery::Leased).is_ok(),
        "the arena has room for it"
    );
    assert_given_back(&rig, &lending);
}

#[test]
fn strict_names_the_missing_loan_and_its_cause_and_delivers_nothing() {
    let lens = [10 * KIB; 20];
    let (rig, lending, _) = lending_nothing(&lens, &strict());
    rig.calls.take();
    let error = rig.read(&lens, Delivery::Auto).unwrap_err();
    assert_refused(
        &error,
        FallbackKind::NoLoan,
        &["local_buffer", "(cause ", "strict=True, key \"k"],
    );
    let (into, seen) = callers_memory(&lens);
    let error = rig
        .store
        .get(ReadRequest { into, ..request(&lens) }, Patience::default())
        .unwrap_err();
    assert_refused(&error, FallbackKind::NoLoan, &["(cause "]);
    assert!(
        seen.iter()
            .all(|seen| seen.source(0..seen.len()).to_vec() == vec![0; seen.len()])
    );
    assert!(rig.calls.reads().is_empty());
    assert_eq!(stat(&rig.store, "retries"), 0);
    assert_given_back(&rig, &lending);
}

#[test]
fn strict_refuses_a_loan_that_was_made_for_itself() {
    let lens = [10 * KIB; 3];
    let (engine, _) = stored(&lens);
    let lending = Arc::new(Lending::new(engine, TERMS));
    let rig = over(&lending, &strict());
    assert!(rig.read(&lens, Delivery::Auto).is_ok());
    lending.overflow();
    rig.calls.take();
    let error = rig.read(&lens, Delivery::Auto).unwrap_err();
    assert_refused(
        &error,
        FallbackKind::LoanOverflow,
        &["local_buffer", "strict=True, key \"k"],
    );
    assert!(rig.calls.reads().is_empty());
    assert_eq!(stat(&rig.store, "overflow_loans"), 1);
    assert_given_back(&rig, &lending);
}

#[test]
fn a_batch_of_which_some_rows_got_no_loan_is_registered_whole() {
    let lens: Vec<u64> = (0..50).map(|row| 5000 + row).collect();
    let (engine, values) = stored(&lens);
    let refusing = |number, _| (number == 2).then(|| no_loan("buffer pool is exhausted"));
    let lending = Arc::new(Lending::new(engine, TERMS).on_borrow(refusing));
    let rig = over(&lending, &budget(16 * MIB));
    rig.calls.take();
    let read = ReadRequest {
        batches: std::iter::once(0..30).collect(),
        ..request(&lens)
    };
    let output = rig.store.get(read, Patience::default()).unwrap();
    assert!(output.batches[0].as_deref().unwrap() == values[..30].concat());
    for (value, expected) in output.values[30..].iter().zip(&values[30..]) {
        assert!(value.buffer.as_deref() == Some(&expected[..]));
    }
    assert_eq!(rig.registrations(), 1);
    let fallbacks = stat(&rig.store, "fallback_no_loan");
    assert_eq!(
        stat(&rig.store, "registered_reads"),
        fallbacks,
        "each value is counted once"
    );
    assert_eq!(stat(&rig.store, "copied_reads"), 50 - fallbacks);
    drop(output);
    assert_given_back(&rig, &lending);
}

/// Serves `k0` at its second try only.
fn passing_at_first(inner: Arc<dyn Engine>) -> Arc<dyn Engine> {
    let (served, failed) = (Arc::clone(&inner), AtomicBool::new(false));
    let hook = move |_, reads: &[tensorlease::engine::ReadOp<'_>]| {
        let at = reads.iter().position(|read| read.key == "k0")?;
        if failed.swap(true, Relaxed) {
            return None;
        }
        let mut results = served.read_batch(reads);
        results[at] = Err(Fault::new(FaultKind::Transient, -1, "not now"));
        Some(results)
    };
    Arc::new(Hooked::new(inner).on_read(hook))
}

#[test]
fn rows_of_one_batch_may_fail_in_several_ways_at_once() {
    // One row fails for now, the others of its loan land, and those of the next loan get none.
    for refused in [1, 2] {
        let lens = [30 * KIB; 4];
        let (engine, values) = stored(&lens);
        let refusing = move |number, _| (number == refused).then(|| no_loan("buffer pool is exhausted"));
        let lending = Arc::new(Lending::new(passing_at_first(engine), TERMS).on_borrow(refusing));
        let options = Options {
            retries: 1,
            ..budget(16 * MIB)
        };
        let rig = over(&lending, &options);
        let read = ReadRequest {
            batches: std::iter::once(0..4).collect(),
            ..request(&lens)
        };
        let output = rig.store.get(read, Patience::default()).unwrap();
        assert!(output.batches[0].as_deref().unwrap() == values.concat());
        assert_eq!(stat(&rig.store, "fallback_no_loan"), 4);
        assert_given_back(&rig, &lending);
    }
}

#[test]
fn callers_memory_is_filled_through_the_arena_where_nothing_is_lent() {
    // The caller's own memory is written after the transfer only (requirement B12), so it can't be registered instead.
    let lens = [10 * KIB, 5, 300 * KIB, 50 * KIB];
    let (rig, lending, values) = lending_nothing(&lens, &budget(16 * MIB));
    let (into, seen) = callers_memory(&lens);
    rig.calls.take();
    rig.store
        .get(ReadRequest { into, ..request(&lens) }, Patience::default())
        .unwrap();
    for (at, (seen, value)) in seen.iter().zip(&values).enumerate() {
        assert!(seen.source(0..seen.len()).to_vec() == *value, "value {at}");
    }
    let regions: Vec<_> = seen.iter().map(|seen| seen.region()).collect();
    let direct = |read: &tensorlease::engine::decorators::ObservedRead| {
        regions.iter().any(|region| region.overlaps(read.target))
    };
    assert!(
        !rig.calls.reads().iter().flatten().any(direct),
        "the caller's memory is no target"
    );
    assert_eq!(stat(&rig.store, "hot_path_register_calls"), 0);
    assert_eq!(stat(&rig.store, "fallback_no_loan"), 4);
    assert_eq!(stat(&rig.store, "retries"), 0);
    assert_given_back(&rig, &lending);
}

#[test]
fn a_part_tried_again_after_another_part_got_no_loan_is_cut_by_the_bounce_reserve() {
    // Two loans of which one is refused; what came through the other fails once. The reserve holds neither part whole.
    let lens = [100 * KIB];
    for refused in [1, 2] {
        let (engine, values) = stored(&lens);
        let refusing = move |number, _| (number == refused).then(|| no_loan("buffer pool is exhausted"));
        let lending = Arc::new(Lending::new(passing_at_first(engine), TERMS).on_borrow(refusing));
        let options = Options {
            retries: 1,
            readers: 2,
            bounce_bytes: Some(32 * KIB),
            ..budget(MIB)
        };
        let rig = over(&lending, &options);
        // Nothing but the reserve has room: no larger block may stand in for it.
        let held = rig.store.empty(MIB - 32 * KIB, Patience::default()).unwrap();
        let (into, seen) = callers_memory(&lens);
        let read = ReadRequest { into, ..request(&lens) };
        rig.store.get(read, Patience::default()).unwrap();
        assert!(seen[0].source(0..seen[0].len()).to_vec() == values[0]);
        drop(held);
        assert_given_back(&rig, &lending);
    }
}

#[test]
fn a_value_that_finds_neither_block_nor_loan_is_one_fallback_for_two_reasons() {
    let lens = [100, 50 * KIB, 100 * KIB];
    let (rig, lending, values) = lending_nothing(&lens, &budget(16 * MIB));
    let held = rig.store.empty(8 * MIB, Patience::default()).unwrap();
    rig.calls.take();
    let read = rig.read(&lens, Delivery::Leased).unwrap();
    assert_read(&read, &values);
    let counters = [
        "fallback_reads",
        "fallback_budget",
        "fallback_no_loan",
        "fallback_loan_too_large",
    ];
    assert_eq!(counters.map(|counter| stat(&rig.store, counter)), [3, 3, 2, 1]);
    assert_eq!(rig.registrations(), 1);
    drop((held, read));
    assert_given_back(&rig, &lending);
}

#[test]
fn no_loan_from_a_transfer_itself_is_a_fault_that_passes() {
    // Over an engine that lends nothing, and over one that does.
    let failing = |inner| {
        let choice = Choice::always();
        Arc::new(Failing::new(inner, FaultKind::NoLoan, FailOn::READS, choice)) as Arc<dyn Engine>
    };
    let options = Options {
        retries: 2,
        ..budget(16 * MIB)
    };
    for lends in [false, true] {
        let (engine, _) = stored(&[100]);
        let engine = if lends {
            Arc::new(Lending::new(failing(engine), TERMS)) as Arc<dyn Engine>
        } else {
            failing(engine)
        };
        let rig = Rig::registering(engine, &options);
        for delivery in [Delivery::Auto, Delivery::Leased, Delivery::RegisterPerCall] {
            let before = rig.calls.reads().len();
            let error = rig
                .read_items(vec![tensor_item("k0", 100)], delivery, Patience::default())
                .unwrap_err();
            let ReadError::Transfer { failures, .. } = error else {
                panic!("{error:?}")
            };
            assert_eq!((failures[0].kind, failures[0].code), (FaultKind::NoLoan, Failing::CODE));
            assert_eq!(
                rig.calls.reads().len() - before,
                3,
                "{delivery:?}: once, and two retries"
            );
        }
    }
}

#[test]
fn an_engine_that_breaks_its_promise_to_lend_is_read_another_way() {
    // It lends less than asked, or panics.
    for short in [true, false] {
        let (engine, values) = stored(&[10 * KIB; 3]);
        let breaking = move |_, _| if short { None } else { panic!("a lender that panics") };
        let lending = Lending::new(engine, TERMS).on_borrow(breaking);
        let lending = Arc::new(if short { lending.lending_short() } else { lending });
        let rig = over(&lending, &budget(16 * MIB));
        assert_read(&rig.read(&[10 * KIB; 3], Delivery::Auto).unwrap(), &values);
        assert_eq!(stat(&rig.store, "fallback_no_loan"), 3);
        assert_given_back(&rig, &lending);
    }
}
