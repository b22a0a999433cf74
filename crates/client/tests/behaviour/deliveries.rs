//! Every delivery gives the right bytes, whatever the size, dtype and shape.

use crate::support::{
    Claims, KIB, MIB, Rig, assert_idle, budget, bytes_spec, every_engine, free_engine, pattern, spec, stat, tensor_item,
};
use std::{ops::Range, sync::Arc};
use tensorlease::{
    Buffer, CallerMemory, DType, Delivery, Expected, ObjectKind, Options, Patience, PutItem, ReadItem, ReadRequest,
    Store, TensorSpec,
};

/// One byte, odd, around the limit below which `auto` copies, larger than one round of the bounce reserve (4 MiB), and larger
/// than all that a 32 MiB arena may lease (24 MiB).
const SIZES: [u64; 9] = [
    1,
    3,
    1001,
    16 * KIB - 1,
    16 * KIB,
    16 * KIB + 1,
    MIB,
    9 * MIB + 3,
    26 * MIB + 1,
];

#[test]
fn every_delivery_gives_the_right_bytes_at_every_size_over_every_engine() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(32 * MIB));
        let values = rig.fill(&SIZES);
        for delivery in Delivery::ALL {
            let read = rig.read(&SIZES, delivery).unwrap();
            for (value, buffer) in values.iter().zip(&read) {
                let same = buffer.as_slice() == value.as_slice();
                assert!(same, "{name}, {delivery:?}, {} bytes", value.len());
            }
            drop(read);
            assert_idle(&rig.store);
        }
    }
}

#[test]
fn each_size_alone_is_delivered_as_asked() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(32 * MIB));
        let values = rig.fill(&SIZES);
        for (at, value) in values.iter().enumerate() {
            let item = || vec![tensor_item(&format!("k{at}"), SIZES[at])];
            for delivery in Delivery::ALL {
                let read = rig.read_items(item(), delivery, Patience::default()).unwrap();
                assert!(
                    read[0].as_slice() == value.as_slice(),
                    "{name}, {delivery:?}, {}",
                    value.len()
                );
                let fits = SIZES[at] <= 24 * MIB;
                let leased =
                    fits && (delivery == Delivery::Leased || (delivery == Delivery::Auto && 16 * KIB <= SIZES[at]));
                if leased {
                    let held = stat(&rig.store, "leased_bytes");
                    assert!(
                        SIZES[at] <= held,
                        "{name}, {delivery:?}: {held} bytes leased for {}",
                        SIZES[at]
                    );
                } else {
                    assert_eq!(
                        stat(&rig.store, "leased_bytes"),
                        0,
                        "{name}, {delivery:?}, {}",
                        SIZES[at]
                    );
                }
            }
        }
    }
}

#[test]
fn an_object_larger_than_the_first_slab_is_leased() {
    let rig = Rig::registering(free_engine(), &budget(256 * MIB));
    let values = rig.fill(&[80 * MIB + 5]);
    let read = rig.read(&[80 * MIB + 5], Delivery::Leased).unwrap();
    assert!(read[0].as_slice() == values[0].as_slice());
    assert_eq!(stat(&rig.store, "fallback_reads"), 0);
    assert_eq!(stat(&rig.store, "leased_reads"), 1);
}

#[test]
fn callers_memory_gets_the_bytes_through_the_arena_and_directly() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(32 * MIB));
        let values = rig.fill(&SIZES);
        for direct in [false, true] {
            let memory: Vec<CallerMemory> = SIZES
                .iter()
                .map(|len| CallerMemory::from_vec(vec![0; usize::try_from(*len).unwrap()]))
                .collect();
            // The store owns a destination while it reads; a second owner of the same memory sees the bytes afterwards.
            let (into, seen): (Vec<CallerMemory>, Vec<_>) = memory.into_iter().map(shared).unzip();
            let request = ReadRequest {
                items: SIZES
                    .iter()
                    .enumerate()
                    .map(|(at, len)| tensor_item(&format!("k{at}"), *len))
                    .collect(),
                into,
                direct,
                ..ReadRequest::default()
            };
            let output = rig.store.get(request, Patience::default()).unwrap();
            assert!(output.values.iter().all(|value| value.buffer.is_none()));
            for (value, memory) in values.iter().zip(&seen) {
                let bytes = memory.source(0..memory.len()).to_vec();
                assert!(&bytes == value, "{name}, direct={direct}, {} bytes", value.len());
            }
            assert_idle(&rig.store);
        }
    }
}

/// Memory of the arena, as `Store::empty` gives it, as a destination of the caller's.
#[allow(unsafe_code)]
fn destination(mut buffer: Buffer) -> CallerMemory {
    let (base, len) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the buffer, which keeps the memory valid, is the owner; the tests read it through raw sources only.
    unsafe { CallerMemory::new(base, len, Box::new(buffer)) }
}

/// Reads straight into memory of the store's own arena.
pub(crate) fn read_into_the_arena(store: &Store, values: &[Vec<u8>]) {
    let (mut into, mut seen) = (Vec::new(), Vec::new());
    for value in values {
        let (given, kept) = shared(destination(
            store.empty(value.len() as u64, Patience::default()).unwrap(),
        ));
        into.push(given);
        seen.push(kept);
    }
    let item = |(at, value): (usize, &Vec<u8>)| tensor_item(&format!("k{at}"), value.len() as u64);
    let request = ReadRequest {
        items: values.iter().enumerate().map(item).collect(),
        into,
        direct: true,
        ..ReadRequest::default()
    };
    store.get(request, Patience::default()).unwrap();
    for (value, memory) in values.iter().zip(&seen) {
        assert!(
            &memory.source(0..memory.len()).to_vec() == value,
            "{} bytes",
            value.len()
        );
    }
}

#[test]
fn what_lies_in_the_arena_is_read_into_directly_without_a_registration() {
    let lens = [1, 100_000, 3 * MIB + 5, 8 * MIB];
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(32 * MIB));
        let values = rig.fill(&lens);
        read_into_the_arena(&rig.store, &values);
        assert_eq!(stat(&rig.store, "hot_path_register_calls"), 0, "{name}");
        assert_idle(&rig.store);
    }
    // A slab of several registrations, which no transfer crosses: the rig checks that.
    let claims = Claims {
        registration_bytes_max: Some(MIB),
        ..Claims::registering()
    };
    let rig = Rig::claiming(free_engine(), claims, &budget(32 * MIB));
    let values = rig.fill(&lens);
    read_into_the_arena(&rig.store, &values);
    // Several blocks of one such slab: some begin in one registration and end in the next.
    let values = rig.fill(&[700 * KIB; 12]);
    read_into_the_arena(&rig.store, &values);
    assert_eq!(stat(&rig.store, "hot_path_register_calls"), 0);
}

/// Bytes that are mapped between these addresses.
fn mapped_bytes(between: Range<usize>) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let address = |hex| usize::from_str_radix(hex, 16).ok();
        Some(address(start)?.max(between.start)..address(end)?.min(between.end))
    };
    maps.lines().filter_map(range).map(|range| range.len()).sum()
}

#[test]
fn one_kept_value_past_the_copy_cache_keeps_about_its_own_size() {
    let lens = [64 * KIB; 768];
    let options = Options {
        copy_cache_bytes: Some(MIB),
        ..budget(64 * MIB)
    };
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &options);
        let values = rig.fill(&lens);
        for delivery in [Delivery::Copied, Delivery::RegisterPerCall] {
            let mut read = rig.read(&lens, delivery).unwrap();
            assert!(
                read.iter()
                    .zip(&values)
                    .all(|(read, value)| read.as_slice() == &value[..])
            );
            // The copy cache holds the first ones.
            let region = |buffer: &Buffer| buffer.region().addr..buffer.region().end();
            let fresh = read[500..].iter().map(region);
            let all = fresh
                .reduce(|one, other| one.start.min(other.start)..one.end.max(other.end))
                .unwrap();
            let kept = read.swap_remove(600);
            drop(read);
            let mapped = mapped_bytes(all);
            assert!(
                mapped <= (4 * MIB + 64 * KIB) as usize,
                "{name}, {delivery:?}: {mapped} bytes"
            );
            assert!(kept.as_slice() == &values[600][..]);
        }
    }
}

/// The same memory twice: one handle to give away, one to look at.
pub(crate) fn shared(memory: CallerMemory) -> (CallerMemory, Arc<CallerMemory>) {
    let owner = Arc::new(memory);
    let given = part(&owner, 0..owner.len(), Box::new(()));
    (given, owner)
}

/// Part of memory, to give away; `guard` is dropped with it.
#[allow(unsafe_code)]
pub(crate) fn part(memory: &Arc<CallerMemory>, range: Range<usize>, guard: Box<dyn Send + Sync>) -> CallerMemory {
    let base = memory.source(range.clone()).addr() as *mut u8;
    // SAFETY: the owner keeps the memory valid, and the tests read it through raw sources only.
    unsafe { CallerMemory::new(base, range.len(), Box::new((guard, Arc::clone(memory)))) }
}

pub(crate) fn mixed() -> Vec<(Arc<TensorSpec>, Vec<u8>)> {
    [
        spec(DType::F32, &[3, 5]),
        spec(DType::I64, &[]),
        spec(DType::U8, &[0]),
        spec(DType::Bool, &[7]),
        spec(DType::F32, &[4]),
        spec(DType::Bf16, &[2, 0, 3]),
        spec(DType::C128, &[1, 2]),
        spec(DType::F64, &[100, 100]),
        spec(DType::F8E4M3Fn, &[33]),
        spec(DType::F32, &[]),
    ]
    .into_iter()
    .enumerate()
    .map(|(seed, spec)| {
        let bytes = pattern(seed as u64 + 50, spec.bytes());
        (spec, bytes)
    })
    .collect()
}

#[test]
fn dtypes_scalars_and_empty_tensors_are_read_alone_and_mixed() {
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(16 * MIB));
        let tensors = mixed();
        let items = tensors
            .iter()
            .enumerate()
            .map(|(at, (spec, bytes))| PutItem::tensor(format!("t{at}"), Arc::clone(spec), bytes.clone()));
        rig.store.put(items.collect(), Patience::default()).unwrap();
        let item = |at: usize| ReadItem::tensor(format!("t{at}"), Arc::clone(&tensors[at].0));
        let all: Vec<usize> = (0..tensors.len()).collect();
        let (empty, scalar_and_empty) = (vec![2], vec![1, 2, 5, 9]);
        for chosen in [all, empty, scalar_and_empty, vec![2, 4], vec![1]] {
            for delivery in Delivery::ALL {
                let request = ReadRequest {
                    items: chosen.iter().map(|at| item(*at)).collect(),
                    delivery: Some(delivery),
                    ..ReadRequest::default()
                };
                let output = rig.store.get(request, Patience::default()).unwrap();
                for (at, value) in chosen.iter().zip(output.values) {
                    let (spec, bytes) = &tensors[*at];
                    assert_eq!(value.kind, ObjectKind::Tensor(Arc::clone(spec)));
                    let got = value.buffer.as_deref().unwrap_or(&[]);
                    assert_eq!(got, &bytes[..], "{name}, {delivery:?}, {}", spec.words());
                    assert_eq!(value.buffer.is_none(), bytes.is_empty());
                    let align = usize::try_from(spec.dtype().item_bytes()).unwrap();
                    assert_eq!(
                        got.as_ptr().addr() % align.min(if got.is_empty() { 1 } else { align }),
                        0
                    );
                }
            }
        }
    }
}

#[test]
fn a_batch_lands_back_to_back_whatever_its_rows() {
    let stacked = [4096; 300].to_vec();
    let ragged: Vec<u64> = (0..300).map(|row| (row * 37) % 5000).collect();
    let with_empty = vec![0, 4, 0, 0, 7, 1];
    let wide = vec![7 * MIB + 1, 3, 9 * MIB];
    for (name, engine) in every_engine() {
        let rig = Rig::new(engine, &budget(64 * MIB));
        for lens in [&stacked, &ragged, &with_empty, &wide] {
            let values = rig.fill(lens);
            for delivery in Delivery::ALL {
                let request = ReadRequest {
                    items: lens
                        .iter()
                        .enumerate()
                        .map(|(at, len)| tensor_item(&format!("k{at}"), *len))
                        .collect(),
                    batches: std::iter::once(0..lens.len()).collect(),
                    delivery: Some(delivery),
                    ..ReadRequest::default()
                };
                let output = rig.store.get(request, Patience::default()).unwrap();
                let batch = output.batches[0].as_deref().unwrap();
                assert!(batch == values.concat(), "{name}, {delivery:?}, {} rows", lens.len());
                assert!(output.values.iter().all(|value| value.buffer.is_none()));
            }
        }
    }
}

#[test]
fn batches_and_single_values_share_one_read() {
    let rig = Rig::registering(free_engine(), &budget(32 * MIB));
    let lens = [100, 20_000, 30, 0, 50_000, 7, 7, 0, 9];
    let values = rig.fill(&lens);
    for delivery in Delivery::ALL {
        let request = ReadRequest {
            items: lens
                .iter()
                .enumerate()
                .map(|(at, len)| tensor_item(&format!("k{at}"), *len))
                .collect(),
            batches: vec![1..4, 4..4, 5..7, 7..8],
            delivery: Some(delivery),
            ..ReadRequest::default()
        };
        let output = rig.store.get(request, Patience::default()).unwrap();
        let bytes = |batch: usize| output.batches[batch].as_deref();
        assert_eq!(bytes(0), Some(&values[1..4].concat()[..]));
        assert_eq!(bytes(1), None);
        assert_eq!(bytes(2), Some(&values[5..7].concat()[..]));
        assert_eq!(bytes(3), None);
        for single in [0, 4, 8] {
            assert_eq!(output.values[single].buffer.as_deref(), Some(&values[single][..]));
        }
    }
}

#[test]
fn an_empty_read_is_an_empty_answer() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    let output = rig.store.get(ReadRequest::default(), Patience::default()).unwrap();
    assert!(output.values.is_empty() && output.batches.is_empty());
    rig.store.put(Vec::new(), Patience::default()).unwrap();
    assert!(
        rig.calls.reads().is_empty(),
        "nothing is asked of the engine for nothing"
    );
}

#[test]
fn no_call_exceeds_what_the_engine_takes_at_once() {
    let claims = Claims {
        registering: true,
        batch_keys_max: Some(7),
        batch_bytes_max: Some(100 * KIB),
        ..Claims::default()
    };
    let rig = Rig::claiming(free_engine(), claims, &budget(32 * MIB));
    let lens: Vec<u64> = (0..120).map(|at| 1 + (at * 977) % 40_000).collect();
    let values = rig.fill(&lens);
    for delivery in Delivery::ALL {
        let read = rig.read(&lens, delivery).unwrap();
        assert!(
            read.iter()
                .zip(&values)
                .all(|(read, value)| read.as_slice() == value.as_slice())
        );
        let request = ReadRequest {
            items: lens
                .iter()
                .enumerate()
                .map(|(at, len)| tensor_item(&format!("k{at}"), *len))
                .collect(),
            batches: std::iter::once(0..lens.len()).collect(),
            delivery: Some(delivery),
            ..ReadRequest::default()
        };
        let output = rig.store.get(request, Patience::default()).unwrap();
        assert!(output.batches[0].as_deref().unwrap() == values.concat(), "{delivery:?}");
    }
    let keys: Vec<String> = (0..lens.len()).map(|at| format!("k{at}")).collect();
    assert!(
        rig.store
            .contains(&keys, Patience::default())
            .unwrap()
            .iter()
            .all(|there| *there)
    );
    assert_eq!(rig.store.remove(&keys, Patience::default()).unwrap(), lens.len() as u64);
    // What was exceeded, if anything, the rig says as it goes.
}

#[test]
fn an_engine_that_knows_no_types_serves_typed_reads() {
    let claims = Claims {
        describes_not: true,
        ..Claims::registering()
    };
    let rig = Rig::claiming(free_engine(), claims, &budget(16 * MIB));
    let values = rig.fill(&[5, 0, 70_000]);
    let items = vec![tensor_item("k0", 5), tensor_item("k1", 0), tensor_item("k2", 70_000)];
    let request = ReadRequest {
        items,
        ..ReadRequest::default()
    };
    let output = rig.store.get(request, Patience::default()).unwrap();
    assert_eq!(output.values[0].buffer.as_deref(), Some(&values[0][..]));
    assert!(
        output.values[1].buffer.is_none(),
        "an empty value is remade from its spec"
    );
    assert_eq!(output.values[2].buffer.as_deref(), Some(&values[2][..]));
}

#[test]
fn packed_values_come_back_as_they_were_put() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    let value = pattern(3, 100_001);
    let items = vec![
        PutItem::packed("p", value.clone()),
        PutItem::packed("empty", Vec::new()),
    ];
    rig.store.put(items, Patience::default()).unwrap();
    let item = |key: &str, len| ReadItem {
        key: key.to_owned(),
        expected: Expected::Packed(len),
    };
    let request = ReadRequest {
        items: vec![item("p", 100_001), item("empty", 0)],
        ..ReadRequest::default()
    };
    let output = rig.store.get(request, Patience::default()).unwrap();
    assert_eq!(output.values[0].kind, ObjectKind::Packed);
    assert_eq!(output.values[0].buffer.as_deref(), Some(&value[..]));
    assert!(output.values[1].buffer.is_none());
}

#[test]
fn the_store_has_its_default_delivery() {
    let options = Options {
        delivery: Delivery::Copied,
        ..budget(16 * MIB)
    };
    let rig = Rig::registering(free_engine(), &options);
    rig.fill(&[100_000]);
    let request = ReadRequest {
        items: vec![ReadItem::tensor("k0", bytes_spec(100_000))],
        ..ReadRequest::default()
    };
    let _output = rig.store.get(request, Patience::default()).unwrap();
    assert_eq!(stat(&rig.store, "copied_reads"), 1);
    assert_eq!(stat(&rig.store, "leased_reads"), 0);
}
