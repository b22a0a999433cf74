//! The same key twice in one read: requirement B13.

use crate::support::{MIB, Rig, assert_idle, budget, every_engine, free_engine, spec, stat, tensor_item};
use tensorlease::{CallError, CallerMemory, DType, Delivery, Expected, Patience, ReadError, ReadItem, ReadRequest};

/// How often the engine was asked for a key.
fn asked(rig: &Rig, key: &str) -> usize {
    rig.calls
        .reads()
        .iter()
        .flatten()
        .filter(|read| read.key == key)
        .count()
}

#[test]
fn a_key_asked_for_twice_is_fetched_once_and_delivered_twice() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(32 * MIB));
        let values = rig.fill(&[30_000, 40]);
        for delivery in Delivery::ALL {
            rig.calls.take();
            let before = stat(&rig.store, "duplicate_keys");
            let items =
                ["k0", "k1", "k0", "k0", "k1"].map(|key| tensor_item(key, if key == "k0" { 30_000 } else { 40 }));
            let mut read = rig.read_items(items.to_vec(), delivery, Patience::default()).unwrap();
            let expected = [0, 1, 0, 0, 1];
            assert!(
                read.iter()
                    .zip(expected)
                    .all(|(read, value)| read[..] == values[value][..]),
                "{name}, {delivery:?}"
            );
            assert_eq!((asked(&rig, "k0"), asked(&rig, "k1")), (1, 1), "{name}, {delivery:?}");
            assert_eq!(stat(&rig.store, "duplicate_keys"), before + 3);
            // Two values, not one seen twice.
            read[0].fill(0);
            assert!(read[2][..] == values[0][..], "{name}, {delivery:?}");
        }
        assert_idle(&rig.store);
    }
}

#[test]
fn duplicates_in_and_across_batches_are_fetched_once() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let values = rig.fill(&[30_000, 40_001, 7]);
    let lens = [30_000, 40_001, 7];
    let order = [0, 1, 0, 2, 2, 1, 0];
    for delivery in Delivery::ALL {
        rig.calls.take();
        let request = ReadRequest {
            items: order
                .iter()
                .map(|at| tensor_item(&format!("k{at}"), lens[*at]))
                .collect(),
            batches: vec![0..3, 4..6],
            delivery: Some(delivery),
            ..ReadRequest::default()
        };
        let output = rig.store.get(request, Patience::default()).unwrap();
        let joined = |range: std::ops::Range<usize>| {
            order[range]
                .iter()
                .flat_map(|at| values[*at].clone())
                .collect::<Vec<_>>()
        };
        assert!(output.batches[0].as_deref() == Some(&joined(0..3)[..]), "{delivery:?}");
        assert!(output.batches[1].as_deref() == Some(&joined(4..6)[..]), "{delivery:?}");
        assert_eq!(output.values[3].buffer.as_deref(), Some(&values[2][..]));
        assert!(
            output.values[6].buffer.as_deref() == Some(&values[0][..]),
            "{delivery:?}"
        );
        for key in ["k0", "k1", "k2"] {
            assert_eq!(asked(&rig, key), 1, "{delivery:?}");
        }
    }
}

#[test]
fn duplicates_larger_than_a_round_and_duplicates_of_nothing_are_right() {
    let rig = Rig::registering(free_engine(), &budget(64 * MIB));
    let len = 9 * MIB + 1;
    let values = rig.fill(&[len, 0]);
    for delivery in Delivery::ALL {
        let items = vec![
            tensor_item("k0", len),
            tensor_item("k1", 0),
            tensor_item("k0", len),
            tensor_item("k1", 0),
        ];
        let request = ReadRequest {
            items,
            delivery: Some(delivery),
            ..ReadRequest::default()
        };
        let output = rig.store.get(request, Patience::default()).unwrap();
        for at in [0, 2] {
            assert!(
                output.values[at].buffer.as_deref() == Some(&values[0][..]),
                "{delivery:?}"
            );
        }
        assert!(output.values[1].buffer.is_none() && output.values[3].buffer.is_none());
    }
}

#[test]
fn duplicates_into_callers_memory_are_copied_to_both() {
    for direct in [false, true] {
        let rig = Rig::registering(free_engine(), &budget(32 * MIB));
        let values = rig.fill(&[50_000]);
        let memory = || crate::deliveries::shared(CallerMemory::from_vec(vec![0; 50_000]));
        let (first, seen_first) = memory();
        let (second, seen_second) = memory();
        let request = ReadRequest {
            items: vec![tensor_item("k0", 50_000), tensor_item("k0", 50_000)],
            into: vec![first, second],
            direct,
            ..ReadRequest::default()
        };
        rig.store.get(request, Patience::default()).unwrap();
        for seen in [seen_first, seen_second] {
            assert!(seen.source(0..50_000).to_vec() == values[0], "direct={direct}");
        }
        assert_eq!(asked(&rig, "k0"), 1);
    }
}

#[test]
fn one_key_as_two_different_things_is_refused() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    rig.fill(&[48]);
    let wanted = [
        Expected::Tensor(spec(DType::U8, &[6, 8])),
        Expected::Tensor(spec(DType::F32, &[12])),
        Expected::Tensor(spec(DType::U8, &[47])),
        Expected::Packed(48),
    ];
    for other in wanted {
        let second = ReadItem {
            key: "k0".to_owned(),
            expected: other.clone(),
        };
        let request = ReadRequest {
            items: vec![tensor_item("k0", 48), second],
            ..ReadRequest::default()
        };
        rig.calls.take();
        let error = rig.store.get(request, Patience::default()).unwrap_err();
        let ReadError::Call(CallError::Invalid { message }) = error else {
            panic!("{other:?}: {error:?}")
        };
        assert!(message.contains("\"k0\"") && message.contains("twice"), "{message}");
        assert!(rig.calls.reads().is_empty());
    }
}
