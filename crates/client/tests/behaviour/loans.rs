//! Reads through memory that the engine lends: the reference's design.

use crate::{
    announcing::{assert_said, said},
    deliveries::{mixed, shared},
    support::{Claims, KIB, Lending, MIB, Rig, Terms, assert_idle, budget, free_engine, stat, stored, tensor_item},
};
use std::{sync::Arc, thread};
use tensorlease::{
    Buffer, CallerMemory, Delivery, Options, Patience, PutItem, ReadItem, ReadRequest,
    engine::{Engine, decorators::ObservedRead},
};

/// Two loans of 64 KiB at a time.
pub(crate) const TERMS: Terms = Terms {
    arena_bytes: 256 * KIB,
    bytes_max: 64 * KIB,
    keys_max: 400,
    loans_max: 2,
};

/// A store over an engine that holds `k0`, `k1`, ... of these lengths, and lends.
pub(crate) fn lent(terms: Terms, lens: &[u64]) -> (Rig, Arc<Lending>, Vec<Vec<u8>>) {
    let (engine, values) = stored(lens);
    let lending = Arc::new(Lending::new(engine, terms));
    (over(&lending, &budget(16 * MIB)), lending, values)
}

/// A store over a lender whose loans are taken by readers alone.
pub(crate) fn over(lending: &Arc<Lending>, options: &Options) -> Rig {
    let claims = Claims {
        not_prompt: true,
        ..Claims::registering()
    };
    Rig::claiming(Arc::clone(lending) as Arc<dyn Engine>, claims, options)
}

pub(crate) fn assert_read(read: &[Buffer], values: &[Vec<u8>]) {
    assert_eq!(read.len(), values.len());
    for (at, (read, value)) in read.iter().zip(values).enumerate() {
        assert!(read.as_slice() == value.as_slice(), "value {at}");
    }
}

/// All loans are back, and nothing else is held.
pub(crate) fn assert_given_back(rig: &Rig, lending: &Lending) {
    assert_idle(&rig.store);
    assert_eq!(lending.alive(), 0, "every loan is given back");
}

/// A request for `k0`, `k1`, ... of these lengths.
pub(crate) fn request(lens: &[u64]) -> ReadRequest {
    let items = lens
        .iter()
        .enumerate()
        .map(|(at, len)| tensor_item(&format!("k{at}"), *len));
    ReadRequest {
        items: items.collect(),
        ..ReadRequest::default()
    }
}

/// Memory of the caller for each, and a handle to look at it.
pub(crate) fn callers_memory(lens: &[u64]) -> (Vec<CallerMemory>, Vec<Arc<CallerMemory>>) {
    let fresh = |len: &u64| shared(CallerMemory::from_vec(vec![0; *len as usize]));
    lens.iter().map(fresh).unzip()
}

/// One loan per call: its keys lie back to back in it.
fn assert_tight_inside(lending: &Lending, read: &[ObservedRead]) {
    for read in read {
        assert!(lending.holds(read.target), "{} lands in a loan", read.key);
    }
    for pair in read.windows(2) {
        assert_eq!(
            pair[0].target.end(),
            pair[1].target.addr,
            "no gap after {}",
            pair[0].key
        );
    }
}

#[test]
fn mixed_dtypes_scalars_and_empty_values_come_through_loans() {
    let terms = Terms {
        bytes_max: 100 * KIB,
        ..TERMS
    };
    let (rig, lending, _) = lent(terms, &[]);
    let tensors = mixed();
    let items = tensors
        .iter()
        .enumerate()
        .map(|(at, (spec, bytes))| PutItem::tensor(format!("t{at}"), Arc::clone(spec), bytes.clone()));
    rig.store.put(items.collect(), Patience::default()).unwrap();
    let all: Vec<usize> = (0..tensors.len()).collect();
    for (round, chosen) in [all, vec![2], vec![1, 2, 5, 9], vec![2, 4], vec![1]]
        .into_iter()
        .enumerate()
    {
        let item = |at: &usize| ReadItem::tensor(format!("t{at}"), Arc::clone(&tensors[*at].0));
        let request = ReadRequest {
            items: chosen.iter().map(item).collect(),
            ..ReadRequest::default()
        };
        rig.calls.take();
        let output = rig.store.get(request, Patience::default()).unwrap();
        for (at, value) in chosen.iter().zip(output.values) {
            let (spec, bytes) = &tensors[*at];
            assert_eq!(value.buffer.as_deref().unwrap_or(&[]), &bytes[..], "{}", spec.words());
            assert_eq!(value.buffer.is_none(), bytes.is_empty());
        }
        assert_eq!(rig.registrations(), 0, "round {round}");
        rig.calls
            .reads()
            .iter()
            .for_each(|read| assert_tight_inside(&lending, read));
    }
    assert!(0 < stat(&rig.store, "loans"));
    assert_given_back(&rig, &lending);
}

#[test]
fn a_read_larger_than_its_share_takes_several_loans_and_registers_nothing() {
    let lens = [10 * KIB; 50];
    let (rig, lending, values) = lent(TERMS, &lens);
    for delivery in [Delivery::Auto, Delivery::Copied] {
        rig.calls.take();
        let before = stat(&rig.store, "loans");
        let read = rig.read(&lens, delivery).unwrap();
        assert_read(&read, &values);
        // Six values of 10 KiB fit into 64 KiB.
        assert_eq!(stat(&rig.store, "loans") - before, 9, "{delivery:?}");
        assert_eq!(rig.registrations(), 0);
        let reads = rig.calls.reads();
        assert_eq!(reads.len(), 9, "one call per loan");
        reads.iter().for_each(|read| assert_tight_inside(&lending, read));
        drop(read);
    }
    assert!(lending.alive_max() <= 2, "one loan per reader");
    assert_eq!(stat(&rig.store, "fallback_reads"), 0);
    assert_eq!(stat(&rig.store, "copied_reads"), 100);
    assert_given_back(&rig, &lending);
}

#[test]
fn loan_counts_are_those_of_the_reference() {
    // 64 x 16 MB, 1024 x 1 MB, 4096 x 1 MB and 16384 x 64 KB in batches of 400 keys through 1 GB: a quarter of the keys,
    // each a 1,024th of the bytes.
    let table = [
        (16, 16 * KIB, 4, 8),
        (256, KIB, 5, 10),
        (1024, KIB, 21, 41),
        (4096, 64, 41, 41),
    ];
    for (count, len, quarter, eighth) in table {
        let lens = vec![len; count];
        for (part, loans) in [(4, quarter), (8, eighth)] {
            let terms = Terms {
                arena_bytes: 256 * KIB,
                bytes_max: 256 * KIB / part,
                keys_max: 100,
                loans_max: 4,
            };
            let (rig, lending, values) = lent(terms, &lens);
            assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
            assert_eq!(stat(&rig.store, "loans"), loans, "{count} x {len} at 1/{part}");
            assert_eq!(rig.calls.reads().len() as u64, loans, "one call per loan");
            assert_given_back(&rig, &lending);
        }
    }
}

#[test]
fn a_small_buffer_takes_more_rounds_for_the_same_read() {
    // 400 x 1 MiB with four readers at the half share: the reference's table, each a 1,024th.
    for (arena_bytes, rounds) in [(64 * KIB, 50), (256 * KIB, 13), (MIB, 4), (4 * MIB, 1)] {
        let lens = [KIB; 400];
        let (rig, lending, values) = lent(Terms::half_share(arena_bytes, 4), &lens);
        assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
        assert_eq!(stat(&rig.store, "loans"), rounds, "{arena_bytes} bytes");
        assert_given_back(&rig, &lending);
    }
}

#[test]
fn no_call_through_a_loan_exceeds_what_the_engine_takes_at_once() {
    let lens = [100; 1000];
    let (engine, values) = stored(&lens);
    let terms = Terms {
        bytes_max: MIB,
        arena_bytes: 2 * MIB,
        ..TERMS
    };
    let lending = Arc::new(Lending::new(engine, terms));
    let claims = Claims {
        batch_keys_max: Some(64),
        batch_bytes_max: Some(5000),
        ..Claims::registering()
    };
    let rig = Rig::claiming(Arc::clone(&lending) as Arc<dyn Engine>, claims, &budget(16 * MIB));
    assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
    assert_eq!(stat(&rig.store, "loans"), 3, "batches of 400 keys");
    // What was exceeded, if anything, the rig says as it goes.
    assert_given_back(&rig, &lending);
}

#[test]
fn callers_memory_is_filled_through_loans() {
    // One value is larger than a loan: it comes in ranges.
    let lens = [5, 30 * KIB, 150 * KIB + 1, 0, 64 * KIB, 7];
    let (rig, lending, _) = lent(TERMS, &[]);
    let values = rig.fill(&lens);
    let (into, seen) = callers_memory(&lens);
    let read = ReadRequest { into, ..request(&lens) };
    rig.store.get(read, Patience::default()).unwrap();
    for (at, (seen, value)) in seen.iter().zip(&values).enumerate() {
        assert!(seen.source(0..seen.len()).to_vec() == *value, "value {at}");
    }
    assert_eq!(rig.registrations(), 0);
    let reads = rig.calls.reads();
    assert!(
        reads.iter().flatten().all(|read| lending.holds(read.target)),
        "never the caller's memory"
    );
    let ranges: u64 = reads
        .iter()
        .flatten()
        .filter(|read| read.key == "k2")
        .map(|read| read.target.len as u64)
        .sum();
    assert_eq!(ranges, lens[2]);
    assert_given_back(&rig, &lending);
}

#[test]
fn a_batch_comes_through_loans_back_to_back_each_byte_copied_once() {
    let lens: Vec<u64> = (0..900).map(|row| (row * 37) % 500).collect();
    let (rig, lending, _) = lent(TERMS, &[]);
    let values = rig.fill(&lens);
    let before = stat(&rig.store, "copied_bytes");
    let read = ReadRequest {
        batches: std::iter::once(0..lens.len()).collect(),
        ..request(&lens)
    };
    let output = rig.store.get(read, Patience::default()).unwrap();
    assert!(output.batches[0].as_deref().unwrap() == values.concat());
    let reads = rig.calls.reads();
    reads.iter().for_each(|read| assert_tight_inside(&lending, read));
    // 400 keys to a batch, 64 KiB to a loan; rows without bytes are in neither.
    let rows = lens.iter().filter(|len| 0 < **len).count();
    assert_eq!(reads.iter().map(Vec::len).sum::<usize>(), rows);
    assert!(reads.iter().all(|read| read.len() <= 400));
    assert_eq!(stat(&rig.store, "loans"), reads.len() as u64);
    assert_eq!(stat(&rig.store, "copied_bytes") - before, lens.iter().sum::<u64>());
    assert_given_back(&rig, &lending);
}

#[test]
fn a_key_asked_for_twice_takes_one_place_in_a_loan() {
    let (rig, lending, values) = lent(TERMS, &[30 * KIB, 40]);
    let keys = ["k0", "k1", "k0", "k0", "k1"];
    let items = keys.map(|key| tensor_item(key, if key == "k0" { 30 * KIB } else { 40 }));
    let read = rig
        .read_items(items.to_vec(), Delivery::Auto, Patience::default())
        .unwrap();
    let expected: Vec<Vec<u8>> = [0, 1, 0, 0, 1].iter().map(|at: &usize| values[*at].clone()).collect();
    assert_read(&read, &expected);
    assert_eq!(rig.calls.reads().concat().len(), 2);
    assert_eq!(stat(&rig.store, "loans"), 1);
    assert_given_back(&rig, &lending);
}

#[test]
fn what_is_asked_for_as_leased_takes_no_loan() {
    let lens = [20 * KIB, 5, 100 * KIB];
    let (rig, lending, values) = lent(TERMS, &lens);
    let read = rig.read(&lens, Delivery::Leased).unwrap();
    assert_read(&read, &values);
    assert_eq!(stat(&rig.store, "leased_reads"), 3);
    assert_eq!(stat(&rig.store, "loans"), 0);
    assert!(120 * KIB <= stat(&rig.store, "leased_bytes"));
    drop(read);
    assert_given_back(&rig, &lending);
}

#[test]
fn writes_take_no_loan() {
    let (rig, lending, _) = lent(TERMS, &[]);
    rig.fill(&[100, 300 * KIB, 5 * MIB]);
    assert_eq!(stat(&rig.store, "loans"), 0);
    assert_given_back(&rig, &lending);
}

#[test]
fn a_later_read_changes_nothing_of_an_earlier_one() {
    let lens = [10 * KIB; 12];
    let (rig, lending, values) = lent(TERMS, &lens);
    let mut earlier: Vec<Vec<Buffer>> = Vec::new();
    for round in 0..4 {
        // The same places of the arena are lent again, for other bytes each time.
        let order: Vec<usize> = (0..12).map(|at| (at + 5 * round) % 12).collect();
        let items = order.iter().map(|at| tensor_item(&format!("k{at}"), lens[*at]));
        let read = rig
            .read_items(items.collect(), Delivery::Auto, Patience::default())
            .unwrap();
        earlier.push(read);
    }
    for (round, read) in earlier.iter().enumerate() {
        let expected: Vec<Vec<u8>> = (0..12).map(|at| values[(at + 5 * round) % 12].clone()).collect();
        assert_read(read, &expected);
    }
    assert_given_back(&rig, &lending);
}

#[test]
fn concurrent_reads_never_hold_more_loans_than_there_are_readers() {
    // Requirement A6: what the engine lends at a time is bounded for the store, not for each read.
    let lens = [16 * KIB; 40];
    let terms = Terms {
        arena_bytes: 128 * KIB,
        ..TERMS
    };
    let (rig, lending, values) = lent(terms, &lens);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert_read(&rig.read(&lens, Delivery::Auto).unwrap(), &values);
                }
            });
        }
    });
    assert!(lending.alive_max() <= 2, "{} loans at a time", lending.alive_max());
    assert_eq!(stat(&rig.store, "fallback_reads"), 0, "a loan is free for every reader");
    assert_eq!(stat(&rig.store, "loans"), 30 * 10);
    assert_given_back(&rig, &lending);
}

#[test]
fn only_reads_that_stand_for_other_clients_must_come_by_the_transport() {
    let lens = [10 * KIB; 20];
    let ways = |rig: &Rig| -> Vec<(Delivery, bool)> {
        [Delivery::Leased, Delivery::Copied, Delivery::RegisterPerCall]
            .into_iter()
            .map(|delivery| {
                rig.calls.take();
                rig.read(&lens, delivery).unwrap();
                let by_transport: Vec<bool> = rig.calls.reads().concat().iter().map(|it| it.by_transport).collect();
                let first = by_transport[0];
                assert!(by_transport.iter().all(|it| *it == first), "{delivery:?}");
                (delivery, first)
            })
            .collect()
    };
    let (rig, _, _) = lent(TERMS, &lens);
    let expected = [
        (Delivery::Leased, false),
        (Delivery::Copied, true),
        (Delivery::RegisterPerCall, true),
    ];
    assert_eq!(ways(&rig), expected, "with loans");
    for rig in [
        Rig::new(stored(&lens).0, &budget(16 * MIB)),
        Rig::registering(stored(&lens).0, &budget(16 * MIB)),
    ] {
        let expected = [
            (Delivery::Leased, false),
            (Delivery::Copied, false),
            (Delivery::RegisterPerCall, true),
        ];
        assert_eq!(ways(&rig), expected, "without loans");
    }
}

#[test]
fn the_line_at_open_says_whose_memory_copies_go_through() {
    let lending = || Arc::new(Lending::new(free_engine(), TERMS));
    let pool = "copies go through leases of the engine's own pool";
    assert_said(
        &said(|| over(&lending(), &budget(16 * MIB))),
        &["reads are copied (the engine lends the memory for it)", pool],
    );
    let leased = Options {
        delivery: Delivery::Leased,
        ..budget(16 * MIB)
    };
    assert_said(
        &said(|| over(&lending(), &leased)),
        &["leased from the arena (slabs registered once)", pool],
    );
}
