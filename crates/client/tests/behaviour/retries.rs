//! Faults that pass: tried again, the failed keys only, without the memory that the next try needs.

use crate::support::{Hooked, MIB, Rig, assert_idle, budget, free_engine, stat, tensor_item};
use std::sync::Arc;
use tensorlease::{
    Delivery, Options, Patience, PutItem, ReadError, ReadRequest, WriteError,
    engine::{
        Engine, Fault, FaultKind,
        decorators::{Choice, FailOn, Failing},
    },
};

const DELIVERIES: [Delivery; 3] = [Delivery::Leased, Delivery::Copied, Delivery::RegisterPerCall];

/// Fails `key` with `kind` in the first `times` calls that ask for it; other keys are served.
fn failing_first(key: &'static str, kind: FaultKind, times: u64) -> Arc<dyn Engine> {
    let inner = free_engine();
    let served = Arc::clone(&inner);
    let left = std::sync::atomic::AtomicU64::new(times);
    let hook = move |_, reads: &[tensorlease::engine::ReadOp<'_>]| {
        let asked = reads.iter().any(|read| read.key == key);
        let fails = asked
            && left
                .fetch_update(
                    std::sync::atomic::Ordering::Relaxed,
                    std::sync::atomic::Ordering::Relaxed,
                    |left| left.checked_sub(1),
                )
                .is_ok();
        fails.then(|| {
            let mut results = served.read_batch(reads);
            for (result, read) in results.iter_mut().zip(reads) {
                if read.key == key {
                    *result = Err(Fault::new(kind, -1, "not now"));
                }
            }
            results
        })
    };
    Arc::new(Hooked::new(inner).on_read(hook))
}

#[test]
fn a_fault_that_passes_is_tried_again_until_it_has_passed() {
    for delivery in DELIVERIES {
        let rig = Rig::registering(failing_first("k1", FaultKind::Transient, 2), &budget(16 * MIB));
        let lens = [20_000, 30_000, 40_000];
        let values = rig.fill(&lens);
        let read = rig.read(&lens, delivery).unwrap();
        assert!(
            read.iter()
                .zip(&values)
                .all(|(read, value)| read.as_slice() == value.as_slice())
        );
        assert_eq!(stat(&rig.store, "retries"), 2);
        let asked: Vec<Vec<String>> = rig
            .calls
            .reads()
            .iter()
            .map(|call| call.iter().map(|read| read.key.clone()).collect())
            .collect();
        assert_eq!(asked.len(), 3);
        assert_eq!(
            asked[1..],
            [["k1"], ["k1"]],
            "only the failed key is asked for again (requirement A16)"
        );
        drop(read);
        assert_idle(&rig.store);
    }
}

#[test]
fn a_transient_fault_is_retried_in_the_same_memory() {
    let rig = Rig::registering(failing_first("k0", FaultKind::Transient, 1), &budget(16 * MIB));
    rig.fill(&[20_000]);
    let _read = rig.read(&[20_000], Delivery::Leased).unwrap();
    let reads = rig.calls.reads();
    assert_eq!(reads[0][0].target, reads[1][0].target);
}

#[test]
fn one_row_of_a_batch_is_retried_alone() {
    for delivery in DELIVERIES {
        let rig = Rig::registering(failing_first("k1", FaultKind::Transient, 1), &budget(16 * MIB));
        let lens = [2000, 3000, 4000];
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
        assert_eq!(output.batches[0].as_deref(), Some(&values.concat()[..]), "{delivery:?}");
        assert_eq!(rig.calls.reads().iter().map(Vec::len).collect::<Vec<_>>(), [3, 1]);
    }
}

#[test]
fn retries_that_are_used_up_fail_with_the_last_faults() {
    for delivery in DELIVERIES {
        let engine = Failing::new(
            free_engine(),
            FaultKind::Transient,
            FailOn::READS,
            Choice::keys(["k0", "k2"]),
        );
        let options = Options {
            retries: 2,
            ..budget(16 * MIB)
        };
        let rig = Rig::registering(Arc::new(engine), &options);
        let lens = [20_000; 3];
        rig.fill(&lens);
        let error = rig.read(&lens, delivery).unwrap_err();
        let ReadError::Transfer { failures, .. } = error else {
            panic!("{error:?}")
        };
        let mut keys: Vec<&str> = failures.iter().map(|failure| failure.key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["k0", "k2"]);
        assert_eq!(failures[0].code, Failing::CODE);
        assert_eq!(rig.calls.reads().len(), 3, "once, and two retries");
        assert_eq!(stat(&rig.store, "retries"), 4, "counted in keys");
        assert_idle(&rig.store);
    }
}

#[test]
fn without_retries_the_first_fault_is_the_answer() {
    let options = Options {
        retries: 0,
        ..budget(16 * MIB)
    };
    let rig = Rig::registering(failing_first("k0", FaultKind::Transient, 1), &options);
    rig.fill(&[100]);
    assert!(matches!(
        rig.read(&[100], Delivery::Copied),
        Err(ReadError::Transfer { .. })
    ));
    assert!(rig.read(&[100], Delivery::Copied).is_ok());
}

#[test]
fn no_handle_gives_the_lease_back_and_halves_the_group() {
    // The engine has a handle for at most 5 keys at once, as one that stages reads in its own registered memory.
    let engine = Hooked::new(free_engine()).on_read(|_, reads| {
        let none = || Err(Fault::new(FaultKind::NoHandle, -600, "no handle for so many"));
        (5 < reads.len()).then(|| reads.iter().map(|_| none()).collect())
    });
    let claims = crate::support::Claims {
        batch_keys_max: Some(32),
        ..crate::support::Claims::registering()
    };
    let rig = Rig::claiming(Arc::new(engine), claims, &budget(16 * MIB));
    let lens = [20_000; 32];
    let values = rig.fill(&lens);
    for delivery in [Delivery::Leased, Delivery::Copied] {
        rig.calls.take();
        let read = rig.read(&lens, delivery).unwrap();
        assert!(
            read.iter()
                .zip(&values)
                .all(|(read, value)| read.as_slice() == value.as_slice())
        );
        let sizes: Vec<usize> = rig.calls.reads().iter().map(Vec::len).collect();
        assert_eq!(
            sizes,
            [vec![32], vec![16; 2], vec![8; 4], vec![4; 8]].concat(),
            "{delivery:?}"
        );
        drop(read);
        assert_idle(&rig.store);
    }
}

#[test]
fn a_read_that_expired_is_halved_and_lands_in_the_same_memory() {
    for delivery in [Delivery::Leased, Delivery::Copied] {
        assert_halved(delivery);
    }
}

/// A read of 32 values that expires until no call has more than 8.
pub(crate) fn assert_halved(delivery: Delivery) {
    let engine = Hooked::new(free_engine()).on_read(|_, reads| {
        let expired = || Err(Fault::new(FaultKind::Expired, -707, "took too long"));
        (8 < reads.len()).then(|| reads.iter().map(|_| expired()).collect())
    });
    let claims = crate::support::Claims {
        batch_keys_max: Some(32),
        ..crate::support::Claims::registering()
    };
    let rig = Rig::claiming(Arc::new(engine), claims, &budget(16 * MIB));
    let lens = [20_000; 32];
    let values = rig.fill(&lens);
    rig.calls.take();
    let read = rig.read(&lens, delivery).unwrap();
    assert!(
        read.iter()
            .zip(&values)
            .all(|(read, value)| read.as_slice() == value.as_slice())
    );
    let reads = rig.calls.reads();
    let sizes: Vec<usize> = reads.iter().map(Vec::len).collect();
    assert_eq!(sizes, [vec![32], vec![16; 2], vec![8; 4]].concat(), "{delivery:?}");
    if delivery != Delivery::Copied {
        let target = |key: &str, reads: &[Vec<tensorlease::engine::decorators::ObservedRead>]| {
            let reads = reads.iter().flatten();
            let targets: Vec<_> = reads.filter(|read| read.key == key).map(|read| read.target).collect();
            targets
        };
        for key in ["k0", "k17", "k31"] {
            let targets = target(key, &reads);
            assert_eq!(targets, [targets[0]; 3], "{delivery:?}, {key}");
        }
    }
    drop(read);
    assert_idle(&rig.store);
}

#[test]
fn one_large_object_that_expired_is_read_in_halves_into_the_same_memory() {
    // As where the transfer of so many bytes outlasts the read lease.
    let engine = Hooked::new(free_engine()).on_read(|_, reads| {
        let long = |read: &tensorlease::engine::ReadOp<'_>| 6 * MIB < read.target.len() as u64;
        let expired = || Err(Fault::new(FaultKind::Expired, -707, "took too long"));
        reads
            .iter()
            .any(long)
            .then(|| reads.iter().map(|_| expired()).collect())
    });
    let rig = Rig::claiming(
        Arc::new(engine),
        crate::support::Claims::registering(),
        &budget(64 * MIB),
    );
    let len = 20 * MIB + 7;
    let values = rig.fill(&[len]);
    rig.calls.take();
    let read = rig.read(&[len], Delivery::Leased).unwrap();
    assert!(read[0].as_slice() == values[0].as_slice(), "every byte at its place");
    let sizes: Vec<usize> = rig.calls.reads().iter().flatten().map(|read| read.target.len).collect();
    assert_eq!(sizes.len(), 7, "whole, two halves, four quarters: {sizes:?}");
    assert_eq!(
        sizes[3..].iter().sum::<usize>() as u64,
        len,
        "the quarters are the object: {sizes:?}"
    );
    let first = rig.calls.reads()[0][0].target.addr;
    let lowest = rig.calls.reads().iter().flatten().map(|read| read.target.addr).min();
    assert_eq!(lowest, Some(first), "in the same memory");
    drop(read);
    assert_idle(&rig.store);
}

#[test]
fn a_read_that_has_no_handle_holds_no_lease_while_it_waits() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let held = Arc::new(AtomicU64::new(u64::MAX));
    let engine = Hooked::new(free_engine()).on_read(|call, reads| {
        let none = || Err(Fault::new(FaultKind::NoHandle, -600, "no handle"));
        (call <= 3).then(|| reads.iter().map(|_| none()).collect())
    });
    let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
    rig.fill(&[5 * MIB]);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| rig.read(&[5 * MIB], Delivery::Leased));
        // Between two tries the block is free: 40 ms or more after the third.
        while !reader.is_finished() {
            held.fetch_min(stat(&rig.store, "in_flight_bytes"), Relaxed);
        }
        reader.join().unwrap().unwrap();
    });
    assert_eq!(held.load(Relaxed), 0);
}

#[test]
fn a_write_is_tried_again_and_names_what_failed_for_good() {
    let engine = Failing::new(free_engine(), FaultKind::Transient, FailOn::WRITES, Choice::Call(1));
    let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
    let values = rig.fill(&[50_000, 5]);
    assert!(0 < stat(&rig.store, "retries"));
    let read = rig.read(&[50_000, 5], Delivery::Leased).unwrap();
    assert!(
        read.iter()
            .zip(&values)
            .all(|(read, value)| read.as_slice() == value.as_slice())
    );

    let engine = Failing::new(
        free_engine(),
        FaultKind::NoHandle,
        FailOn::WRITES,
        Choice::keys(["bad"]),
    );
    let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
    let items = vec![
        PutItem::packed("bad", vec![1; 10]),
        PutItem::packed("good", vec![2; 10]),
    ];
    let error = rig.store.put(items, Patience::default()).unwrap_err();
    let WriteError::Transfer { failures, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].key, "bad");
    let there = rig
        .store
        .contains(&["bad".into(), "good".into()], Patience::default())
        .unwrap();
    assert_eq!(there, [false, true], "the others are stored");
    assert_idle(&rig.store);
}

/// Finds no room in the first `times` write calls, and claims to make some, or not.
fn full_at_first(times: u64, evicts: bool) -> Arc<dyn Engine> {
    let engine = Hooked::new(free_engine()).on_write(move |call, writes| {
        let full = || Err(Fault::new(FaultKind::Full, -200, "no room"));
        (call <= times).then(|| writes.iter().map(|_| full()).collect())
    });
    Arc::new(if evicts { engine.claiming_eviction() } else { engine })
}

#[test]
fn a_full_store_is_tried_again_where_it_makes_room_by_itself_and_fails_at_once_elsewhere() {
    let write_calls = |rig: &Rig| stat(&rig.store, "engine_write_calls");
    let item = || vec![PutItem::packed("k", vec![7; 100]), PutItem::packed("l", vec![8; 100])];
    let rig = Rig::registering(full_at_first(2, true), &budget(16 * MIB));
    rig.store.put(item(), Patience::default()).unwrap();
    assert_eq!((write_calls(&rig), stat(&rig.store, "retries")), (3, 4));
    assert_eq!(stat(&rig.store, "written_keys"), 2);

    for (evicts, calls) in [(true, 3), (false, 1)] {
        let options = Options {
            retries: 2,
            ..budget(16 * MIB)
        };
        let rig = Rig::registering(full_at_first(u64::MAX, evicts), &options);
        let error = rig.store.put(item(), Patience::default()).unwrap_err();
        let WriteError::StoreFull { failures, message } = error else {
            panic!("{error:?}")
        };
        assert_eq!((failures.len(), failures[0].code), (2, -200));
        assert!(message.contains("no room"), "{message}");
        assert_eq!(write_calls(&rig), calls, "evicts={evicts}");
        assert_eq!(stat(&rig.store, "written_keys"), 0);
        assert_idle(&rig.store);
    }
}

#[test]
fn many_keys_without_a_handle_halve_a_write_once() {
    let engine = Hooked::new(free_engine()).on_write(|call, writes| {
        let none = || Err(Fault::new(FaultKind::NoHandle, -600, "no handle"));
        (call == 1).then(|| writes.iter().map(|_| none()).collect())
    });
    let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
    let lens = [20_000; 200];
    let values = rig.fill(&lens);
    assert_eq!(stat(&rig.store, "engine_write_calls"), 3, "one, and two halves");
    let read = rig.read(&lens, Delivery::Leased).unwrap();
    assert!(
        read.iter()
            .zip(&values)
            .all(|(read, value)| read.as_slice() == value.as_slice())
    );
}

/// Replaces "k0" by one byte value between the first and the second range of each of the first `times` reads.
fn replacing_between_ranges(times: u64) -> Arc<dyn Engine> {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let inner = free_engine();
    let (store, replaced) = (Arc::clone(&inner), AtomicU64::new(0));
    let engine = Hooked::new(inner).on_read(move |_, reads| {
        if reads.iter().all(|read| read.offset == 0) || times <= replaced.load(Relaxed) {
            return None;
        }
        let byte = u8::try_from(replaced.fetch_add(1, Relaxed) + 1).unwrap();
        let bytes = vec![byte; usize::try_from(reads[0].object_len).unwrap()];
        let tag = reads[0].tag.expect("the engine describes").clone();
        let segments = [tensorlease_memory::Source::from(bytes.as_slice())];
        let write = tensorlease::engine::WriteOp {
            key: reads[0].key,
            segments: &segments,
            tag: &tag,
        };
        assert_eq!(store.write_batch(&[write]), [Ok(())]);
        None
    });
    Arc::new(engine)
}

#[test]
fn an_object_that_is_replaced_between_its_ranges_is_read_again_and_never_delivered_mixed() {
    let options = Options {
        readers: 1,
        ..budget(16 * MIB)
    };
    let len = 6 * MIB;
    let rig = Rig::registering(replacing_between_ranges(2), &options);
    rig.fill(&[len]);
    let read = rig.read(&[len], Delivery::Copied).unwrap();
    assert!(
        read[0].as_slice().iter().all(|byte| *byte == 2),
        "the last object, whole"
    );
    assert!(2.0 <= rig.store.stats().get("retries"));
    drop(read);
    assert_idle(&rig.store);

    let rig = Rig::registering(replacing_between_ranges(100), &options);
    rig.fill(&[len]);
    let error = rig.read(&[len], Delivery::Copied).unwrap_err();
    assert!(
        error.to_string().contains("was replaced while it was read in ranges"),
        "{error}"
    );
    assert_idle(&rig.store);
}
