//! What is read another way than asked: counted, collected, as cheap as it can be.

use crate::support::{Claims, MIB, Rig, assert_idle, budget, every_engine, free_engine, pattern, spec, stat, stored};
use std::{sync::Arc, time::Duration};
use tensorlease::{
    DType, Delivery, FallbackKind, Options, Patience, ReadError, ReadItem,
    engine::{WriteOp, decorators::Call},
};

/// Registering costs next to nothing here: cheaper than any copy.
fn cheap_to_register() -> Claims {
    Claims::registering()
}

/// Registering costs far more than copying 4 MiB.
fn dear_to_register() -> Claims {
    Claims {
        register_pause: Duration::from_millis(60),
        ..Claims::registering()
    }
}

/// A store of 16 MiB, of which 8 can be leased and as many recycled for copies, over an engine that holds `count` tensors of
/// 9 MiB and more of each dtype; and what to read them with. None of them went through the store.
fn oversized(claims: Claims, dtypes: &[DType], count: usize) -> (Rig, Vec<(ReadItem, Vec<u8>)>) {
    let engine = free_engine();
    let mut all = Vec::new();
    for (at, dtype) in dtypes.iter().cycle().take(dtypes.len() * count).enumerate() {
        let spec = spec(*dtype, &[9 * MIB / 4]);
        let (key, bytes) = (format!("t{at}"), pattern(at as u64, spec.bytes()));
        let write = WriteOp {
            key: &key,
            segments: &[bytes.as_slice().into()],
            tag: spec.tag(),
        };
        assert_eq!(engine.write_batch(&[write]), [Ok(())]);
        all.push((ReadItem::tensor(key, spec), bytes));
    }
    (Rig::claiming(engine, claims, &budget(16 * MIB)), all)
}

fn read_all(rig: &Rig, tensors: &[(ReadItem, Vec<u8>)]) {
    rig.calls.take();
    let items = tensors.iter().map(|(item, _)| item.clone()).collect();
    let read = rig.read_items(items, Delivery::Leased, Patience::default()).unwrap();
    let same = read
        .iter()
        .zip(tensors)
        .all(|(read, (_, bytes))| read.as_slice() == bytes.as_slice());
    assert!(same, "a fallback delivers the same bytes");
}

#[test]
fn eight_oversized_tensors_are_one_registration_and_one_transfer() {
    // Requirement A8.
    let (rig, tensors) = oversized(cheap_to_register(), &[DType::F32], 8);
    read_all(&rig, &tensors);
    assert_eq!(rig.registrations(), 1);
    let reads = rig.calls.reads();
    assert_eq!(reads.len(), 1, "one transfer");
    assert_eq!(reads[0].len(), 8);
    assert_eq!(rig.calls.count(|call| matches!(call, Call::Unregister(_))), 1);
    assert_eq!(stat(&rig.store, "hot_path_register_calls"), 1);
    assert_eq!(stat(&rig.store, "registered_reads"), 8);
    assert_eq!(stat(&rig.store, "fallback_too_large"), 8);
    assert_idle(&rig.store);
}

#[test]
fn fallbacks_of_two_dtypes_are_one_registration_each() {
    let (rig, tensors) = oversized(cheap_to_register(), &[DType::F32, DType::F64], 3);
    read_all(&rig, &tensors);
    assert_eq!(rig.registrations(), 2);
    assert_eq!(rig.calls.reads().len(), 2);
}

#[test]
fn where_copies_are_cheaper_nothing_is_registered() {
    let (rig, tensors) = oversized(dear_to_register(), &[DType::F32], 3);
    read_all(&rig, &tensors);
    // The bounce reserve becomes a slab at the first copy; nothing is registered for a read.
    assert_eq!(stat(&rig.store, "hot_path_register_calls"), 0);
    assert_eq!(stat(&rig.store, "copied_reads"), 3);
    assert_eq!(stat(&rig.store, "fallback_too_large"), 3);
    assert_eq!(stat(&rig.store, "registered_reads"), 0);
}

#[test]
fn fallbacks_stay_within_what_the_engine_takes_at_once() {
    let claims = Claims {
        batch_keys_max: Some(3),
        ..cheap_to_register()
    };
    let (rig, tensors) = oversized(claims, &[DType::F32], 8);
    read_all(&rig, &tensors);
    let keys: Vec<usize> = rig.calls.reads().iter().map(Vec::len).collect();
    assert_eq!(keys, [3, 3, 2]);
    assert_eq!(rig.registrations(), 1, "a registration takes more than one call");
}

#[test]
fn a_too_large_value_leaves_the_others_their_lease() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    let lens = [MIB, 9 * MIB, MIB];
    let values = rig.fill(&lens);
    let read = rig.read(&lens, Delivery::Leased).unwrap();
    assert!(
        read.iter()
            .zip(&values)
            .all(|(read, value)| read.as_slice() == value.as_slice())
    );
    assert_eq!(stat(&rig.store, "leased_reads"), 2);
    assert_eq!(stat(&rig.store, "fallback_too_large"), 1);
    assert_eq!(stat(&rig.store, "fallback_reads"), 1);
}

#[test]
fn strict_names_the_fallback_and_delivers_nothing() {
    let options = Options {
        strict: true,
        ..budget(16 * MIB)
    };
    let lens = [MIB, 9 * MIB];
    let rig = Rig::registering(stored(&lens).0, &options);
    let error = rig.read(&lens, Delivery::Leased).unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::Fallback {
                kind: FallbackKind::TooLarge,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("strict=True, key \"k1\", and") && error.to_string().contains("max_bytes"),
        "{error}"
    );
    assert_eq!(stat(&rig.store, "fallback_reads"), 0);
    assert_idle(&rig.store);

    let small: Vec<u64> = vec![MIB; 8];
    rig.fill(&small);
    let held = rig.read(&small, Delivery::Leased).unwrap();
    let error = rig.read(&small[..1], Delivery::Leased).unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::Fallback {
                kind: FallbackKind::Budget,
                ..
            }
        ),
        "{error:?}"
    );
    let message = error.to_string();
    assert!(message.contains("strict=True, key \"k0\", and"), "{message}");
    assert_eq!(
        message.matches("max_bytes").count(),
        1,
        "the advice stands once: {message}"
    );
    assert!(
        rig.read(&small[..1], Delivery::Copied).is_ok(),
        "what was asked as a copy is no fallback"
    );
    drop(held);
    assert!(rig.read(&small, Delivery::Leased).is_ok());
}

#[test]
fn a_slab_that_the_engine_refuses_is_a_counted_fallback_until_trim() {
    use crate::support::Hooked;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use tensorlease::engine::RegisterError;
    let refuse = Arc::new(AtomicBool::new(false));
    let refusing = Arc::clone(&refuse);
    let engine = Hooked::new(free_engine()).on_register(move |region| {
        let source = "memlock".into();
        refusing.load(Relaxed).then_some(RegisterError::Failed {
            len: region.len,
            source,
        })
    });
    // The first slab has 64 MiB; a second one is needed for the rest.
    let rig = Rig::claiming(Arc::new(engine), Claims::default(), &budget(160 * MIB));
    let lens = [30 * MIB, 30 * MIB, 30 * MIB];
    let values = rig.fill(&lens);
    refuse.store(true, Relaxed);
    let read = rig.read(&lens, Delivery::Leased).unwrap();
    assert!(
        read.iter()
            .zip(&values)
            .all(|(read, value)| read.as_slice() == value.as_slice())
    );
    assert_eq!(stat(&rig.store, "fallback_slab_not_registered"), 1);
    assert_eq!(stat(&rig.store, "leased_reads"), 2);
    drop(read);
    refuse.store(false, Relaxed);
    let _freed = rig.store.trim();
    let read = rig.read(&lens, Delivery::Leased).unwrap();
    assert_eq!(
        stat(&rig.store, "fallback_slab_not_registered"),
        1,
        "after trim slabs are made again"
    );
    drop(read);
    assert_idle(&rig.store);
}

#[test]
fn copies_past_their_recycled_memory_are_a_counted_fallback_and_an_error_under_strict() {
    for (name, engine) in every_engine() {
        let options = Options {
            copy_cache_bytes: Some(4 * MIB),
            ..budget(32 * MIB)
        };
        let rig = Rig::new(engine, &options);
        let lens = vec![MIB; 10];
        rig.fill(&lens);
        let read = rig.read(&lens, Delivery::Copied).unwrap();
        assert_eq!(stat(&rig.store, "fallback_copy_cache"), 6, "{name}");
        assert_eq!(stat(&rig.store, "fallback_reads"), 6, "{name}");
        drop(read);
        assert_idle(&rig.store);
    }
    let options = Options {
        copy_cache_bytes: Some(4 * MIB),
        strict: true,
        ..budget(32 * MIB)
    };
    let rig = Rig::registering(free_engine(), &options);
    let lens = vec![MIB; 10];
    rig.fill(&lens);
    let error = rig.read(&lens, Delivery::Copied).unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::Fallback {
                kind: FallbackKind::CopyCache,
                ..
            }
        ),
        "{error:?}"
    );
    let ReadError::Fallback { failures, .. } = &error else {
        panic!("{error:?}")
    };
    let failed: Vec<&str> = failures.iter().map(|failure| failure.key.as_str()).collect();
    assert_eq!(failed, ["k4", "k5", "k6", "k7", "k8", "k9"]);
    let (kept, past) = ("\"k3\"", "strict=True, keys \"k4\", \"k5\"");
    let message = error.to_string();
    assert!(message.contains(past) && !message.contains(kept), "{message}");
    assert!(rig.read(&lens[..4], Delivery::Copied).is_ok());
}
