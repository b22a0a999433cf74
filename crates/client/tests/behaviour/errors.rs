//! What a caller is told, and that a failure costs nothing afterwards.

use crate::support::{Hooked, MIB, Rig, assert_idle, budget, every_engine, free_engine, spec, stat, tensor_item};
use std::{sync::Arc, time::Instant};
use tensorlease::{
    CallError, DType, Delivery, Expected, Patience, PutItem, ReadError, ReadItem, ReadRequest,
    engine::{
        Fault, FaultKind,
        decorators::{Choice, FailOn, Failing, KeyLosing, ShortReading},
    },
};

const DELIVERIES: [Delivery; 3] = [Delivery::Leased, Delivery::Copied, Delivery::RegisterPerCall];

#[test]
fn a_missing_key_fails_at_once_without_a_retry() {
    for delivery in DELIVERIES {
        let rig = Rig::registering(free_engine(), &budget(16 * MIB));
        rig.fill(&[100, 200]);
        let items = vec![
            tensor_item("k0", 100),
            tensor_item("no such key", 5),
            tensor_item("k1", 200),
        ];
        let start = Instant::now();
        let error = rig.read_items(items, delivery, Patience::default()).unwrap_err();
        assert!(start.elapsed().as_millis() < 2000);
        let ReadError::KeyNotFound { message, failures } = error else {
            panic!("{error:?}")
        };
        assert!(
            message.contains("\"no such key\"") && !message.contains("k0"),
            "{message}"
        );
        assert_eq!(failures.len(), 1);
        assert_eq!(
            (failures[0].key.as_str(), failures[0].kind),
            ("no such key", FaultKind::NotFound)
        );
        assert_eq!(rig.calls.reads().len(), 1, "asked once (requirement B16)");
        assert_eq!(stat(&rig.store, "retries"), 0);
        assert_idle(&rig.store);
    }
}

#[test]
fn a_missing_empty_value_is_missing_where_the_engine_can_tell() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    let request = ReadRequest {
        items: vec![tensor_item("gone", 0)],
        ..ReadRequest::default()
    };
    let error = rig.store.get(request, Patience::default()).unwrap_err();
    assert!(matches!(&error, ReadError::KeyNotFound { .. }), "{error:?}");
}

#[test]
fn a_short_object_is_an_error_that_names_key_and_sizes_and_delivers_nothing() {
    for delivery in DELIVERIES {
        for len in [1000, 40_000] {
            let engine = ShortReading::new(free_engine(), Choice::keys(["k1"]));
            let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
            let lens = [len; 3];
            rig.fill(&lens);
            let error = rig.read(&lens, delivery).unwrap_err();
            let ReadError::SizeMismatch { message, failures } = error else {
                panic!("{error:?}")
            };
            for part in ["\"k1\"", &len.to_string(), &(len / 2).to_string()] {
                assert!(message.contains(part), "{part} in {message}");
            }
            assert_eq!(failures.len(), 1);
            assert_eq!(stat(&rig.store, "read_keys"), 0, "nothing was delivered");
            assert_idle(&rig.store);
        }
    }
}

#[test]
fn another_size_dtype_or_shape_is_a_mismatch_even_of_equal_bytes() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(16 * MIB));
        let stored = spec(DType::F32, &[4, 3]);
        rig.store
            .put(vec![PutItem::tensor("t", stored, vec![7; 48])], Patience::default())
            .unwrap();
        let wrong = [
            Expected::Tensor(spec(DType::F32, &[4, 4])),
            Expected::Tensor(spec(DType::I32, &[4, 3])),
            Expected::Tensor(spec(DType::F32, &[3, 4])),
            Expected::Tensor(spec(DType::F32, &[0])),
            Expected::Packed(48),
        ];
        for expected in wrong {
            let request = ReadRequest {
                items: vec![ReadItem {
                    key: "t".to_owned(),
                    expected: expected.clone(),
                }],
                ..ReadRequest::default()
            };
            let error = rig.store.get(request, Patience::default()).unwrap_err();
            let ReadError::SizeMismatch { message, .. } = &error else {
                panic!("{name}, {expected:?}: {error:?}")
            };
            assert!(message.contains("\"t\""), "{message}");
            assert_eq!(stat(&rig.store, "retries"), 0);
            assert_idle(&rig.store);
        }
    }
}

#[test]
fn the_original_error_is_kept() {
    // Requirement A12: code and words of the engine, whatever is cleaned up on the way.
    for delivery in DELIVERIES {
        let engine = Failing::new(free_engine(), FaultKind::Refused, FailOn::READS, Choice::keys(["k0"]));
        let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
        rig.fill(&[50_000]);
        let error = rig.read(&[50_000], delivery).unwrap_err();
        let ReadError::Transfer { message, failures } = error else {
            panic!("{error:?}")
        };
        assert_eq!(
            (failures[0].code, failures[0].kind),
            (Failing::CODE, FaultKind::Refused)
        );
        assert_eq!(failures[0].message, "failed on purpose by a test");
        assert!(message.contains(&failures[0].message), "{message}");
        assert_idle(&rig.store);
    }
}

#[test]
fn a_partial_failure_names_every_key_and_only_those() {
    for delivery in DELIVERIES {
        let losing = KeyLosing::new(free_engine(), 0.3, 11);
        let lens = vec![20_000; 40];
        let lost: Vec<String> = (0..40)
            .map(|at| format!("k{at}"))
            .filter(|key| losing.loses(key))
            .collect();
        assert!(2 < lost.len() && lost.len() < 38);
        let rig = Rig::registering(Arc::new(losing), &budget(16 * MIB));
        rig.fill(&lens);
        let error = rig.read(&lens, delivery).unwrap_err();
        let ReadError::KeyNotFound { failures, .. } = error else {
            panic!("{error:?}")
        };
        let mut named: Vec<String> = failures.into_iter().map(|failure| failure.key).collect();
        named.sort_by_key(|key| key[1..].parse::<u32>().unwrap());
        assert_eq!(named, lost);
        assert_idle(&rig.store);
    }
}

#[test]
fn an_engine_that_is_gone_is_unavailable() {
    let engine = Failing::new(free_engine(), FaultKind::Unavailable, FailOn::ALL, Choice::always());
    let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
    let error = rig.read(&[100_000, 5], Delivery::Leased).unwrap_err();
    assert!(
        matches!(error, ReadError::Call(CallError::Unavailable { .. })),
        "{error:?}"
    );
    assert_eq!(rig.calls.reads().len(), 1, "a retry would not bring it back");
    assert_idle(&rig.store);
}

#[test]
fn an_engine_that_panics_is_a_typed_error_and_the_store_goes_on() {
    for delivery in DELIVERIES {
        let engine =
            Hooked::new(free_engine()).on_read(|call, _| (call == 1).then(|| panic!("a defect of the engine")));
        let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
        let lens = [50_000, 10];
        let values = rig.fill(&lens);
        let error = rig.read(&lens, delivery).unwrap_err();
        let ReadError::Transfer { failures, .. } = error else {
            panic!("{error:?}")
        };
        assert!(
            failures.iter().all(|failure| failure.message.contains("panicked")),
            "{failures:?}"
        );
        assert_idle(&rig.store);
        let read = rig.read(&lens, delivery).unwrap();
        assert!(
            read.iter()
                .zip(&values)
                .all(|(read, value)| read.as_slice() == value.as_slice())
        );
    }
}

#[test]
fn memory_of_a_panicked_call_that_may_write_late_is_quarantined() {
    let engine = Hooked::new(free_engine())
        .claiming_late_writes()
        .on_read(|call, _| (call == 1).then(|| panic!("a defect of the engine")));
    let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
    let values = rig.fill(&[50_000]);
    let read = rig.read(&[50_000], Delivery::Leased).unwrap();
    assert_eq!(read[0].as_slice(), &values[0][..], "tried again in other memory");
    assert!(50_000 <= stat(&rig.store, "quarantined_bytes"));
}

#[test]
fn an_engine_with_too_few_results_is_a_typed_error() {
    let engine = Hooked::new(free_engine()).on_read(|call, _| (call == 1).then(Vec::new));
    let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
    rig.fill(&[30_000, 5]);
    let error = rig.read(&[30_000, 5], Delivery::Leased).unwrap_err();
    let ReadError::Transfer { message, failures } = error else {
        panic!("{error:?}")
    };
    assert_eq!(failures.len(), 2);
    assert!(message.contains("0 results for 2 keys"), "{message}");
    assert!(rig.read(&[30_000, 5], Delivery::Leased).is_ok());
}

#[test]
fn a_wrong_object_outranks_a_missing_one() {
    let engine = Hooked::new(free_engine()).on_read(|_, reads| {
        let fault = |kind| Err(Fault::new(kind, 1, "as told"));
        let kind = |key: &str| {
            if key == "k0" {
                FaultKind::NotFound
            } else {
                FaultKind::Mismatch
            }
        };
        Some(reads.iter().map(|read| fault(kind(read.key))).collect())
    });
    let rig = Rig::registering(Arc::new(engine), &budget(16 * MIB));
    let error = rig.read(&[5, 5], Delivery::Copied).unwrap_err();
    assert!(
        matches!(&error, ReadError::SizeMismatch { failures, .. } if failures.len() == 2),
        "{error:?}"
    );
}

#[test]
fn arguments_are_refused_before_anything_is_asked() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    rig.calls.take();
    let one = || vec![tensor_item("a", 4)];
    let foreign = |len| tensorlease::CallerMemory::from_vec(vec![0; len]);
    let (reversed, past) = (
        std::iter::once(1..1).chain(std::iter::once(0..1)),
        std::iter::once(0..2),
    );
    let requests = [
        ReadRequest {
            items: vec![tensor_item("", 4)],
            ..ReadRequest::default()
        },
        ReadRequest {
            items: one(),
            batches: reversed.collect(),
            ..ReadRequest::default()
        },
        ReadRequest {
            items: one(),
            batches: past.collect(),
            ..ReadRequest::default()
        },
        ReadRequest {
            items: one(),
            into: vec![foreign(5)],
            ..ReadRequest::default()
        },
        ReadRequest {
            items: one(),
            into: vec![foreign(4), foreign(4)],
            ..ReadRequest::default()
        },
        ReadRequest {
            items: one(),
            into: vec![foreign(4)],
            batches: std::iter::once(0..1).collect(),
            ..ReadRequest::default()
        },
    ];
    for request in requests {
        let shown = format!("{request:?}");
        let error = rig.store.get(request, Patience::default()).unwrap_err();
        assert!(
            matches!(error, ReadError::Call(CallError::Invalid { .. })),
            "{shown}: {error:?}"
        );
    }
    assert!(rig.calls.calls().is_empty());
}

#[test]
fn a_shape_that_no_memory_can_hold_is_named_as_the_wrong_shape() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    rig.fill(&[8]);
    let error = rig
        .read_items(vec![tensor_item("k0", 1 << 46)], Delivery::Leased, Patience::default())
        .unwrap_err();
    assert!(matches!(error, ReadError::SizeMismatch { .. }), "{error:?}");
    let missing = rig
        .read_items(
            vec![tensor_item("none", 1 << 46)],
            Delivery::Copied,
            Patience::default(),
        )
        .unwrap_err();
    assert!(matches!(missing, ReadError::KeyNotFound { .. }), "{missing:?}");
    assert_idle(&rig.store);
}
