//! Each decorator does the harm that it promises, and no other.
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlease_engine::conformance::{Rig, RigMemory, pattern};
use tensorlease_engine::decorators::{
    Call, Choice, FailOn, Failing, Gate, Gated, KeyLosing, LateWriting, Observing, ShortReading, Slow, SpecError,
    from_spec,
};
use tensorlease_engine::{Embedded, EmbeddedOptions, Engine, Fault, FaultKind, ReadOp, Tag};

fn store() -> Arc<Embedded> {
    let options = EmbeddedOptions {
        capacity_bytes: 4 << 20,
        pinned: false,
    };
    Arc::new(Embedded::new(&options).expect("an engine that registers nothing needs nothing"))
}

/// Stores ten objects of 100 bytes each, "0" to "9".
fn ten_objects(engine: &Arc<Embedded>) {
    let rig = Rig::new(Arc::clone(engine) as Arc<dyn Engine>);
    (0..10).for_each(|index| rig.put(&index.to_string(), &pattern(index, 100)));
}

const UNTOUCHED: u8 = 0xa5;

/// Reads all ten in one call, into memory full of `UNTOUCHED`.
fn read_ten(engine: &dyn Engine, memory: &RigMemory) -> Vec<Result<u64, Fault>> {
    memory.fill(0, &[UNTOUCHED; 1000]);
    let keys: Vec<String> = (0..10).map(|index| index.to_string()).collect();
    let reads: Vec<ReadOp<'_>> = keys
        .iter()
        .enumerate()
        .map(|(index, key)| ReadOp::whole(key, memory.target(index * 100..index * 100 + 100)))
        .collect();
    engine.read_batch(&reads)
}

fn memory() -> RigMemory {
    Rig::new(store()).memory(1000)
}

fn found(memory: &RigMemory, index: usize) -> Vec<u8> {
    memory.bytes(index * 100..index * 100 + 100)
}

#[test]
fn failing_fails_chosen_keys_and_leaves_their_targets_untouched() {
    let inner = store();
    ten_objects(&inner);
    let chosen = Choice::keys(["3", "7"]);
    let engine = Failing::new(inner.clone(), FaultKind::Transient, FailOn::READS, chosen);
    let memory = memory();
    let results = read_ten(&engine, &memory);
    for (index, result) in results.into_iter().enumerate() {
        if index == 3 || index == 7 {
            let fault = result.expect_err("a chosen key");
            assert_eq!((fault.kind, fault.code), (FaultKind::Transient, Failing::CODE));
            assert_eq!(found(&memory, index), [UNTOUCHED; 100]);
        } else {
            assert_eq!(result, Ok(100));
            assert_eq!(found(&memory, index), pattern(index as u64, 100));
        }
    }
    assert_eq!(inner.stats().read_calls, 1, "one call stays one call");
    let rig = Rig::new(Arc::new(engine));
    rig.put("3", &[1; 10]);
    assert_eq!(
        rig.engine().remove_batch(&["3"]),
        [Ok(true)],
        "writes and removals are not chosen"
    );
}

#[test]
fn failing_fails_exactly_the_nth_call() {
    let inner = store();
    ten_objects(&inner);
    let engine = Failing::new(inner.clone(), FaultKind::NoHandle, FailOn::READS, Choice::Call(2));
    let memory = memory();
    assert_eq!(read_ten(&engine, &memory), vec![Ok(100); 10]);
    assert!(
        read_ten(&engine, &memory)
            .iter()
            .all(|result| result.as_ref().is_err_and(|f| f.kind == FaultKind::NoHandle))
    );
    assert_eq!(memory.bytes(0..1000), [UNTOUCHED; 1000]);
    assert_eq!(read_ten(&engine, &memory), vec![Ok(100); 10]);
    assert_eq!(
        inner.stats().read_calls,
        2,
        "a call that fails whole never reaches the engine"
    );
}

#[test]
fn failing_writes_and_removals_leave_the_store_as_it_was() {
    let inner = store();
    ten_objects(&inner);
    let plain = Rig::new(inner.clone());
    let failing = |on| {
        Rig::new(Arc::new(Failing::new(
            inner.clone(),
            FaultKind::Full,
            on,
            Choice::keys(["1", "new"]),
        )))
    };
    let rig = failing(FailOn::WRITES);
    for key in ["1", "new"] {
        assert_eq!(
            rig.write(key, &[9; 50], &Tag::new(b"")).map_err(|fault| fault.kind),
            Err(FaultKind::Full)
        );
    }
    plain.expect("1", &pattern(1, 100));
    assert_eq!(plain.engine().contains_batch(&["new"]), [Ok(false)]);
    rig.put("2", &[9; 50]);
    plain.expect("2", &[9; 50]);
    let results = failing(FailOn::REMOVES).engine().remove_batch(&["0", "1", "2"]);
    assert_eq!((&results[0], &results[2]), (&Ok(true), &Ok(true)));
    assert_eq!(results[1].as_ref().map_err(|fault| fault.kind), Err(FaultKind::Full));
    assert_eq!(
        plain.engine().contains_batch(&["0", "1", "2"]),
        [Ok(false), Ok(true), Ok(false)]
    );
}

#[test]
fn failing_by_chance_is_repeatable_and_lets_retries_through() {
    let inner = store();
    ten_objects(&inner);
    let memory = memory();
    let run = |seed| -> Vec<bool> {
        let choice = Choice::Chance { probability: 0.3, seed };
        let engine = Failing::new(inner.clone(), FaultKind::Transient, FailOn::ALL, choice);
        (0..20)
            .flat_map(|_| read_ten(&engine, &memory))
            .map(|result| result.is_err())
            .collect()
    };
    let failed = run(7);
    assert_eq!(failed, run(7), "the same seed");
    assert_ne!(failed, run(8), "another seed");
    let count = failed.iter().filter(|&&failed| failed).count();
    assert!((30..90).contains(&count), "{count} of 200 at 0.3");
    assert!(
        (0..10).all(|key| failed.iter().skip(key).step_by(10).any(|&failed| !failed)),
        "no key fails for ever"
    );
}

#[test]
fn failing_with_may_still_write_claims_late_writes() {
    let late = Failing::new(store(), FaultKind::MayStillWrite, FailOn::READS, Choice::never());
    assert!(late.capabilities().late_writes);
    let plain = Failing::new(store(), FaultKind::Transient, FailOn::READS, Choice::never());
    assert!(!plain.capabilities().late_writes);
}

#[test]
fn short_reading_writes_half_and_says_so() {
    let inner = store();
    ten_objects(&inner);
    Rig::new(inner.clone()).put("single", &[7]);
    let engine = ShortReading::new(inner, Choice::keys(["4", "single"]));
    let memory = memory();
    let results = read_ten(&engine, &memory);
    assert_eq!((&results[3], &results[4], &results[5]), (&Ok(100), &Ok(50), &Ok(100)));
    assert_eq!(found(&memory, 4)[..50], pattern(4, 100)[..50]);
    assert_eq!(found(&memory, 4)[50..], [UNTOUCHED; 50]);
    assert_eq!(found(&memory, 5), pattern(5, 100));
    memory.fill(0, &[UNTOUCHED]);
    let read = ReadOp::whole("single", memory.target(0..1));
    assert_eq!(engine.read_batch(&[read]), [Ok(0)], "half of one byte is none");
    assert_eq!(memory.bytes(0..1), [UNTOUCHED]);
}

#[test]
fn slow_pauses_once_per_call() {
    let inner = store();
    ten_objects(&inner);
    let engine = Slow::new(inner, Duration::from_millis(200));
    assert!(
        !engine.capabilities().prompt,
        "a slow engine may not run on the caller's thread"
    );
    let memory = memory();
    let started = Instant::now();
    assert_eq!(read_ten(&engine, &memory), vec![Ok(100); 10]);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?}");
    assert!(
        took < Duration::from_millis(1800),
        "once per call, not per key: {took:?}"
    );
}

#[test]
fn hanging_registrations_take_their_time_and_nothing_else_does() {
    let pause = Duration::from_millis(200);
    let (inner, memory) = (store(), memory());
    ten_objects(&inner);
    let engine = from_spec("hang:200ms:call2", inner).expect("a valid text");
    assert!(
        !engine.capabilities().prompt,
        "an engine that hangs may not run on the caller's thread"
    );
    assert_eq!(read_ten(&*engine, &memory), vec![Ok(100); 10]);
    for hangs in [false, true, false] {
        let started = Instant::now();
        engine.register(memory.region()).expect("it registers all the same");
        let took = started.elapsed();
        assert!(!hangs || pause <= took, "{took:?}");
        engine.unregister(memory.region()).expect("it is registered");
    }
}

#[test]
fn gated_calls_wait_until_the_gate_opens() {
    let inner = store();
    ten_objects(&inner);
    let gate = Gate::new();
    let engine = Gated::new(inner.clone(), gate.clone());
    assert_eq!(engine.contains_batch(&["1"]), [Ok(true)], "an open gate lets through");
    gate.shut();
    assert!(!gate.wait_for_waiting(1, Duration::from_millis(1)), "nobody waits yet");
    let memory = memory();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_ten(&engine, &memory));
        let remover = scope.spawn(|| engine.remove_batch(&["none"]));
        assert!(gate.wait_for_waiting(2, Duration::from_secs(20)), "both calls wait");
        assert_eq!(inner.stats().read_calls, 0, "a waiting call has not reached the engine");
        gate.open();
        assert_eq!(reader.join().expect("a reader"), vec![Ok(100); 10]);
        assert_eq!(remover.join().expect("a remover"), [Ok(false)]);
    });
    assert_eq!(gate.waiting(), 0);
}

fn wait_for(memory: &RigMemory, index: usize, byte: u8) {
    let started = Instant::now();
    while found(memory, index) != [byte; 100] {
        assert!(started.elapsed() < Duration::from_secs(20), "the late write never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn late_writing_fails_first_and_writes_garbage_later() {
    let inner = store();
    ten_objects(&inner);
    let engine = LateWriting::new(inner, Duration::from_millis(50), Choice::keys(["5"]));
    assert!(engine.capabilities().late_writes);
    let memory = memory();
    let results = read_ten(&engine, &memory);
    assert_eq!(
        found(&memory, 5),
        [UNTOUCHED; 100],
        "nothing is written during the call"
    );
    let fault = results[5].as_ref().expect_err("the chosen key");
    assert_eq!((fault.kind, fault.code), (FaultKind::MayStillWrite, LateWriting::CODE));
    wait_for(&memory, 5, LateWriting::GARBAGE);
    assert_eq!(results[4], Ok(100));
    assert_eq!(found(&memory, 4), pattern(4, 100), "the other keys are served");
    engine.close().expect("the engine closes");
}

#[test]
fn late_writing_has_written_when_close_returns_and_never_after() {
    let inner = store();
    ten_objects(&inner);
    let engine = LateWriting::new(inner, Duration::from_secs(3600), Choice::always());
    let memory = memory();
    assert!(read_ten(&engine, &memory).iter().all(Result::is_err));
    engine.close().expect("the engine closes, without waiting an hour");
    assert_eq!(memory.bytes(0..1000), [LateWriting::GARBAGE; 1000]);
    let results = read_ten(&engine, &memory);
    assert!(
        results
            .iter()
            .all(|result| result.as_ref().is_err_and(|fault| fault.kind == FaultKind::Unavailable))
    );
    drop(engine);
    assert_eq!(memory.bytes(0..1000), [UNTOUCHED; 1000], "no writer after close");
}

#[test]
fn late_writing_writes_nothing_when_it_is_dropped_without_close() {
    let inner = store();
    ten_objects(&inner);
    let engine = LateWriting::new(inner, Duration::from_secs(3600), Choice::always());
    let memory = memory();
    assert!(read_ten(&engine, &memory).iter().all(Result::is_err));
    drop(engine);
    assert_eq!(memory.bytes(0..1000), [UNTOUCHED; 1000]);
}

#[test]
fn key_losing_loses_the_same_keys_everywhere_and_for_ever() {
    let inner = store();
    ten_objects(&inner);
    let engine = KeyLosing::new(inner.clone(), 0.5, 2);
    let lost: Vec<bool> = (0..10).map(|index| engine.loses(&index.to_string())).collect();
    let count = lost.iter().filter(|&&lost| lost).count();
    assert!((1..10).contains(&count), "{count} of 10 at 0.5 with this seed");
    let memory = memory();
    for _ in 0..3 {
        for (index, result) in read_ten(&engine, &memory).into_iter().enumerate() {
            if lost[index] {
                assert_eq!(result.map_err(|fault| fault.kind), Err(FaultKind::NotFound));
                assert_eq!(found(&memory, index), [UNTOUCHED; 100]);
            } else {
                assert_eq!(result, Ok(100));
                assert_eq!(found(&memory, index), pattern(index as u64, 100));
            }
        }
    }
    let keys: Vec<String> = (0..10).map(|index| index.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let kept: Vec<_> = lost.iter().map(|lost| Ok(!lost)).collect();
    assert_eq!(engine.contains_batch(&keys), kept);
    let described = engine
        .describe_batch(&keys)
        .into_iter()
        .map(|info| info.map(|info| info.is_some()));
    assert_eq!(described.collect::<Vec<_>>(), kept);
    assert_eq!(engine.remove_batch(&keys), kept, "removing a lost key finds nothing");
    assert_eq!(inner.stats().objects, 0, "yet nothing is left behind");
}

#[test]
fn observing_records_every_call_with_keys_and_regions() {
    let engine = Arc::new(Observing::new(store()));
    let rig = Rig::new(Arc::clone(&engine) as Arc<dyn Engine>);
    rig.put("key", &[1; 100]);
    let memory = rig.memory(4096);
    engine.register(memory.region()).expect("registering is free here");
    let read = ReadOp {
        key: "key",
        offset: 10,
        target: memory.target(64..74),
        object_len: 100,
        tag: None,
        by_transport: false,
    };
    let region = read.target.region();
    assert_eq!(engine.read_batch(&[read]), [Ok(10)]);
    engine.remove_batch(&["key", "none"]);
    engine.remove_prefix("k").expect("an open store");
    engine.close().expect("the engine closes");

    let calls = engine.calls();
    assert_eq!(calls.len(), 6, "{calls:?}");
    assert!(matches!(&calls[0], Call::Write(keys) if keys.len() == 1 && keys[0].0 == "key" && keys[0].1[0].len == 100));
    assert_eq!(calls[1], Call::Register(memory.region()));
    let reads = engine.reads();
    let recorded = &reads[0][0];
    assert_eq!(
        (recorded.key.as_str(), recorded.offset, recorded.object_len),
        ("key", 10, 100)
    );
    assert_eq!(recorded.target, region);
    assert_eq!(calls[3], Call::Remove(vec!["key".to_owned(), "none".to_owned()]));
    assert_eq!(calls[4], Call::RemovePrefix("k".to_owned()));
    assert_eq!(calls[5], Call::Close);
    assert_eq!(engine.count(|call| matches!(call, Call::Read(_))), 1);
    assert_eq!(engine.take(), calls);
    assert_eq!(engine.calls(), []);
}

#[test]
fn decorators_are_stacked_from_a_text() {
    let inner = store();
    ten_objects(&inner);
    let engine = from_spec("fail:transient:0.5:seed7+slow:20ms", inner.clone()).expect("a valid text");
    let memory = memory();
    let started = Instant::now();
    let results = read_ten(&*engine, &memory);
    assert!(started.elapsed() >= Duration::from_millis(20));
    let failed = results.iter().filter(|result| result.is_err()).count();
    assert!((1..10).contains(&failed), "{failed} of 10 at 0.5 with this seed");

    let nth = from_spec("fail:full:call1", inner.clone()).expect("a valid text");
    assert!(read_ten(&*nth, &memory).iter().all(Result::is_err));
    assert!(read_ten(&*nth, &memory).iter().all(Result::is_ok));

    let late = from_spec("late:5ms:1:seed3", inner.clone()).expect("a valid text");
    assert!(late.capabilities().late_writes);
    assert!(read_ten(&*late, &memory).iter().all(Result::is_err));
    wait_for(&memory, 0, LateWriting::GARBAGE);

    let short = from_spec("short:1", inner.clone()).expect("a valid text");
    assert_eq!(read_ten(&*short, &memory), vec![Ok(50); 10]);
    let losing = from_spec("lose:1:seed2", inner).expect("a valid text");
    assert_eq!(losing.contains_batch(&["1"]), [Ok(false)]);
}

#[test]
fn a_text_names_every_kind_of_fault() {
    let kinds = [
        ("notfound", FaultKind::NotFound),
        ("mismatch", FaultKind::Mismatch),
        ("nohandle", FaultKind::NoHandle),
        ("noloan", FaultKind::NoLoan),
        ("expired", FaultKind::Expired),
        ("full", FaultKind::Full),
        ("transient", FaultKind::Transient),
        ("maystillwrite", FaultKind::MayStillWrite),
        ("unregistered", FaultKind::Unregistered),
        ("unavailable", FaultKind::Unavailable),
        ("refused", FaultKind::Refused),
    ];
    let listed = from_spec("fail:unknown:1", store())
        .err()
        .expect("no such kind")
        .to_string();
    for (name, kind) in kinds {
        let inner = store();
        ten_objects(&inner);
        let engine = from_spec(&format!("fail:{name}:call1"), inner).expect("a valid text");
        let memory = memory();
        let fails = |result: &Result<u64, Fault>| matches!(result, Err(fault) if fault.kind == kind);
        assert!(read_ten(&*engine, &memory).iter().all(fails), "{name}");
        assert!(
            read_ten(&*engine, &memory).iter().all(Result::is_ok),
            "{name}, the second call"
        );
        assert!(listed.contains(name), "{name} in {listed}");
    }
}

#[test]
fn a_wrong_text_names_the_part_and_what_is_allowed() {
    let error = |spec: &str| from_spec(spec, store()).err().expect("a wrong text");
    assert_eq!(
        error("slow:5ms+burn:1"),
        SpecError::UnknownFault {
            name: "burn".to_owned()
        }
    );
    assert_eq!(
        error("burn").to_string(),
        "unknown fault `burn`; known: slow, hang, fail, short, late, lose"
    );
    let wrong = [
        "",
        "slow",
        "slow:",
        "slow:50",
        "slow:ms",
        "slow:-1ms",
        "slow:1h",
        "slow:1ms:1",
        "hang",
        "hang:5s:call0",
        "hang:5s:0.5",
        "fail",
        "fail:transient",
        "fail:bad:0.1",
        "fail:transient:1.5",
        "fail:transient:nan",
        "fail:transient:0.1:7",
        "fail:transient:call0",
        "fail:transient:call",
        "short:-0.1",
        "short:0.1:seedx",
        "short:0.1:seed1:more",
        "late:0.5",
        "late:1ms",
        "lose",
        "+",
    ];
    for spec in wrong {
        error(spec);
    }
    let message = "`1.5` in `fail:transient:1.5` is not a probability from 0 to 1";
    assert_eq!(error("fail:transient:1.5").to_string(), message);
}
