//! Reads that leave shape and dtype to the engine.

use crate::support::{
    Hooked, MIB, Rig, assert_idle, budget, bytes_spec, every_engine, free_engine, pattern, spec, stat,
};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tensorlease::{
    CallError, CallerMemory, DType, Delivery, Described, Expected, ObjectKind, Patience, PutItem, QueryError,
    ReadError, ReadItem, ReadOutput, ReadRequest, ReadValue, Store,
    engine::{
        Engine, Tag, WriteOp,
        decorators::{Call, from_spec},
    },
};
use tensorlease_host::{Daemon, DaemonOptions, HostEngine, SocketPath};

fn described(key: &str) -> ReadItem {
    ReadItem {
        key: key.to_owned(),
        expected: Expected::Described,
    }
}

fn get(rig: &Rig, items: Vec<ReadItem>) -> Result<ReadOutput, ReadError> {
    let request = ReadRequest {
        items,
        ..ReadRequest::default()
    };
    rig.store.get(request, Patience::default())
}

#[test]
fn a_read_without_shapes_gives_what_is_there() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(16 * MIB));
        let tensor = spec(DType::F32, &[25, 1000]);
        let bytes = pattern(1, tensor.bytes());
        let items = vec![
            PutItem::tensor("tensor", Arc::clone(&tensor), bytes.clone()),
            PutItem::tensor("scalar", spec(DType::I64, &[]), pattern(2, 8)),
            PutItem::tensor("empty", spec(DType::F64, &[3, 0]), Vec::new()),
            PutItem::packed("packed", pattern(3, 77)),
            PutItem::packed("nothing", Vec::new()),
        ];
        rig.store.put(items, Patience::default()).unwrap();
        let keys = ["tensor", "scalar", "empty", "packed"];
        let mut wanted: Vec<ReadItem> = keys.iter().map(|key| described(key)).collect();
        wanted.push(ReadItem::tensor("scalar", spec(DType::I64, &[])));
        let output = get(&rig, wanted).unwrap();
        let kinds: Vec<&ObjectKind> = output.values.iter().map(|value| &value.kind).collect();
        assert_eq!(kinds[0], &ObjectKind::Tensor(tensor), "{name}");
        assert_eq!(kinds[1], &ObjectKind::Tensor(spec(DType::I64, &[])));
        assert_eq!(kinds[2], &ObjectKind::Tensor(spec(DType::F64, &[3, 0])));
        assert_eq!(kinds[3], &ObjectKind::Packed);
        let got: Vec<&[u8]> = output
            .values
            .iter()
            .map(|value| value.buffer.as_deref().unwrap_or(&[]))
            .collect();
        assert!(got[0] == bytes && got[1] == pattern(2, 8) && got[2].is_empty() && got[3] == pattern(3, 77));
        assert!(got[4] == pattern(2, 8));
    }
}

#[test]
fn describe_tells_kind_and_size_and_none_for_nothing() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    assert!(rig.store.describes());
    let items = vec![
        PutItem::tensor("t", spec(DType::Bf16, &[2, 3]), vec![0; 12]),
        PutItem::tensor("e", spec(DType::Bf16, &[0]), Vec::new()),
        PutItem::packed("p", vec![0; 5]),
    ];
    rig.store.put(items, Patience::default()).unwrap();
    let keys = ["t", "e", "p", "none"].map(str::to_owned);
    let found = rig.store.describe(&keys, Patience::default()).unwrap();
    let tensor = |shape: &[u64], bytes| {
        Some(Described {
            kind: ObjectKind::Tensor(spec(DType::Bf16, shape)),
            bytes,
        })
    };
    let packed = Some(Described {
        kind: ObjectKind::Packed,
        bytes: 5,
    });
    assert_eq!(found, [tensor(&[2, 3], 12), tensor(&[0], 0), packed, None]);
}

#[test]
fn an_empty_packed_value_describes_itself_as_empty() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    rig.store
        .put(vec![PutItem::packed("nothing", Vec::new())], Patience::default())
        .unwrap();
    let found = rig.store.describe(&["nothing".into()], Patience::default()).unwrap();
    let empty = Described {
        kind: ObjectKind::Packed,
        bytes: 0,
    };
    assert_eq!(found, [Some(empty)]);
    let output = get(&rig, vec![described("nothing")]).unwrap();
    assert!(output.values[0].buffer.is_none());
}

#[test]
fn a_missing_key_is_named() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    rig.fill(&[5]);
    let error = get(&rig, vec![described("k0"), described("gone")]).unwrap_err();
    let ReadError::KeyNotFound { failures, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].key, "gone");
}

/// Replaces "k" with a vector one byte longer after each of the first `times` descriptions.
fn swapping(inner: Arc<dyn Engine>, times: u64) -> Arc<dyn Engine> {
    let swap = move |call: u64, engine: &dyn Engine| {
        if call <= times {
            let len = 100 + call;
            let (bytes, spec) = (pattern(call, len), bytes_spec(len));
            let write = WriteOp {
                key: "k",
                segments: &[bytes.as_slice().into()],
                tag: spec.tag(),
            };
            assert_eq!(engine.write_batch(&[write]), [Ok(())]);
        }
    };
    Arc::new(Hooked::new(inner).after_describe(swap))
}

/// A store over `engine`, with a vector of 100 bytes under "k". Nothing is registered: the hook writes from memory of its own.
fn with_k(engine: Arc<dyn Engine>) -> Store {
    let store = Store::with_engine(engine, &budget(16 * MIB)).unwrap();
    let item = PutItem::tensor("k", bytes_spec(100), pattern(0, 100));
    store.put(vec![item], Patience::default()).unwrap();
    store
}

fn get_k(store: &Store, patience: Patience<'_>) -> Result<ReadValue, ReadError> {
    let request = ReadRequest {
        items: vec![described("k")],
        ..ReadRequest::default()
    };
    Ok(store.get(request, patience)?.values.remove(0))
}

#[test]
fn an_object_replaced_between_description_and_read_is_described_again() {
    let store = with_k(swapping(free_engine(), 80));
    let value = get_k(&store, Patience::default()).unwrap();
    assert_eq!(value.kind, ObjectKind::Tensor(bytes_spec(180)));
    assert_eq!(value.buffer.as_deref(), Some(&pattern(80, 180)[..]));
    drop(value);
    assert_idle(&store);
}

#[test]
fn an_object_that_never_stands_still_is_a_mismatch_in_the_end() {
    let store = with_k(swapping(free_engine(), u64::MAX));
    let error = get_k(&store, Patience::within(Duration::from_millis(200))).unwrap_err();
    assert!(matches!(error, ReadError::SizeMismatch { .. }), "{error:?}");
    assert_idle(&store);
}

#[test]
fn an_object_that_the_engine_reads_short_is_a_mismatch_long_before_the_call_is_over() {
    let store = with_k(from_spec("short:1", free_engine()).unwrap());
    let started = Instant::now();
    let error = get_k(&store, Patience::within(Duration::from_secs(60))).unwrap_err();
    assert!(matches!(error, ReadError::SizeMismatch { .. }), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_idle(&store);
}

#[test]
fn an_object_that_is_not_as_long_as_its_tag_says_is_a_mismatch_at_once() {
    let (engine, spec) = (free_engine(), bytes_spec(4));
    let write = WriteOp {
        key: "odd",
        segments: &[(&[1_u8, 2, 3][..]).into()],
        tag: spec.tag(),
    };
    assert_eq!(engine.write_batch(&[write]), [Ok(())]);
    let rig = Rig::new(engine, &budget(16 * MIB));
    let error = get(&rig, vec![described("odd")]).unwrap_err();
    assert!(
        matches!(&error, ReadError::SizeMismatch { message, .. } if message.contains("its tag says 4")),
        "{error:?}"
    );
    assert_eq!(rig.calls.count(|call| matches!(call, Call::Read(_))), 0);
}

fn host_daemon(folder: &TempDir) -> Daemon {
    let options = DaemonOptions {
        socket: SocketPath::new(folder.path().join("host.sock")).unwrap(),
        max_bytes: 64 * MIB,
        idle_end: None,
    };
    Daemon::start(options).unwrap()
}

#[test]
fn on_a_host_types_and_bytes_come_of_one_object_whoever_replaces_it_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = host_daemon(&folder);
    let engine = Arc::new(HostEngine::connect(daemon.socket()).unwrap());
    let store = with_k(swapping(engine, u64::MAX));
    for round in 0..5 {
        let value = get_k(&store, Patience::default()).unwrap();
        assert_eq!(value.kind, ObjectKind::Tensor(bytes_spec(100 + round)));
        assert_eq!(value.buffer.as_deref(), Some(&pattern(round, 100 + round)[..]));
    }
    assert_eq!(stat(&store, "retries"), 0);
    assert_idle(&store);
}

/// What a writer puts under "k" in turn: tensors and values that are none, of several sizes.
fn in_turn(round: u64) -> PutItem {
    match round % 4 {
        0 => PutItem::tensor("k", bytes_spec(1000), pattern(1, 1000)),
        1 => PutItem::packed("k", pattern(2, 70_000)),
        2 => PutItem::tensor("k", bytes_spec(200_000), pattern(3, 200_000)),
        _ => PutItem::packed("k", Vec::new()),
    }
}

#[test]
fn a_read_without_types_beside_a_writer_on_a_host_gives_whole_values_only() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = host_daemon(&folder);
    let client = || {
        let engine = Arc::new(HostEngine::connect(daemon.socket()).unwrap());
        Store::with_engine(engine, &budget(16 * MIB)).unwrap()
    };
    let (store, writer) = (client(), client());
    writer.put(vec![in_turn(0)], Patience::default()).unwrap();
    let end = Instant::now() + Duration::from_millis(1500);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                writer.put(vec![in_turn(round)], Patience::default()).unwrap();
                if end < Instant::now() {
                    return;
                }
            }
        });
        while Instant::now() < end {
            // Asked twice, a key is still one object.
            let twice = ReadRequest {
                items: vec![described("k"), described("k")],
                ..ReadRequest::default()
            };
            let mut values = store.get(twice, Patience::default()).unwrap().values;
            let value = values.remove(0);
            assert_eq!(values[0].kind, value.kind);
            assert_eq!(values[0].buffer.as_deref(), value.buffer.as_deref());
            let bytes = value.buffer.as_deref().unwrap_or(&[]);
            let expected = match (&value.kind, bytes.len()) {
                (ObjectKind::Tensor(spec), 1000) if *spec == bytes_spec(1000) => pattern(1, 1000),
                (ObjectKind::Tensor(spec), 200_000) if *spec == bytes_spec(200_000) => pattern(3, 200_000),
                (ObjectKind::Packed, 70_000) => pattern(2, 70_000),
                (ObjectKind::Packed, 0) => Vec::new(),
                other => panic!("{other:?}"),
            };
            assert!(bytes == expected);
        }
    });
    assert_idle(&store);
}

#[test]
fn an_object_of_another_client_says_that_its_tag_cannot_be_read() {
    let engine = free_engine();
    let tag = Tag::new(b"someone else's");
    let write = WriteOp {
        key: "odd",
        segments: &[(&[1_u8, 2, 3][..]).into()],
        tag: &tag,
    };
    assert_eq!(engine.write_batch(&[write]), [Ok(())]);
    let rig = Rig::new(engine, &budget(16 * MIB));
    let error = get(&rig, vec![described("odd")]).unwrap_err();
    assert!(
        matches!(&error, ReadError::SizeMismatch { message, .. } if message.contains("type tag")),
        "{error:?}"
    );
    let error = rig.store.describe(&["odd".into()], Patience::default()).unwrap_err();
    assert!(matches!(error, QueryError::Transfer { .. }), "{error:?}");
}

#[test]
fn an_engine_that_knows_no_types_says_what_to_pass() {
    let rig = Rig::describing_nothing(free_engine(), &budget(16 * MIB));
    rig.fill(&[5]);
    assert!(!rig.store.describes());
    let error = get(&rig, vec![described("k0")]).unwrap_err();
    let ReadError::Call(CallError::Invalid { message }) = error else {
        panic!("{error:?}")
    };
    assert!(message.contains("pass shapes and dtypes"), "{message}");
}

#[test]
fn callers_memory_takes_no_unknown_sizes() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    rig.fill(&[5]);
    let request = ReadRequest {
        items: vec![described("k0")],
        into: vec![CallerMemory::from_vec(vec![0; 5])],
        ..ReadRequest::default()
    };
    let error = rig.store.get(request, Patience::default()).unwrap_err();
    assert!(matches!(error, ReadError::Call(CallError::Invalid { .. })), "{error:?}");
}

#[test]
fn described_reads_are_leased_like_others() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    let values = rig.fill(&[100_000, 100_000]);
    let request = ReadRequest {
        items: vec![described("k0"), described("k1")],
        batches: std::iter::once(0..2).collect(),
        delivery: Some(Delivery::Leased),
        ..ReadRequest::default()
    };
    let output = rig.store.get(request, Patience::default()).unwrap();
    assert!(output.batches[0].as_deref() == Some(&values.concat()[..]));
    assert_eq!(stat(&rig.store, "leased_reads"), 2);
}
