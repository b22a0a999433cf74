//! How much the embedded engine holds, and what it says when it holds no more.
use proptest::prelude::{ProptestConfig, prop, prop_oneof, proptest};
use proptest::strategy::Strategy;
use std::collections::HashMap;
use std::sync::Arc;
use tensorlease_arena::block_len;
use tensorlease_engine::conformance::{Rig, pattern};
use tensorlease_engine::{Embedded, EmbeddedOptions, FaultKind, Tag};

const MIB: usize = 1 << 20;

fn store(capacity_bytes: usize) -> Rig {
    let options = EmbeddedOptions {
        capacity_bytes: capacity_bytes as u64,
        pinned: false,
    };
    let engine = Embedded::new(&options).expect("an engine that registers nothing needs nothing");
    Rig::new(Arc::new(engine)).with_capacity(capacity_bytes as u64)
}

fn tag() -> Tag {
    Tag::new(b"u8")
}

/// Writes objects of `len` bytes until the store is full; returns how many it took.
fn fill(rig: &Rig, prefix: &str, len: usize) -> usize {
    let bytes = pattern(len as u64, len);
    for index in 0.. {
        if let Err(fault) = rig.write(&format!("{prefix}/{index}"), &bytes, &tag()) {
            assert_eq!(fault.kind, FaultKind::Full, "{fault}");
            (0..index).for_each(|index| rig.expect(&format!("{prefix}/{index}"), &bytes));
            return index;
        }
    }
    unreachable!("a store has an end");
}

#[test]
fn capacity_is_filled_to_the_last_byte_by_whole_classes() {
    // 96 MiB need a second slab of the default sizes, so that slab borders are crossed too.
    for len in [64 << 10, MIB, 3 * MIB, 12 * MIB, 32 * MIB, 96 * MIB] {
        let rig = store(96 * MIB);
        assert_eq!(
            fill(&rig, "object", len),
            96 * MIB / len,
            "objects of {len} bytes in 96 MiB"
        );
        let stats = rig.engine().stats();
        assert_eq!(stats.object_bytes, 96 * MIB as u64, "objects of {len} bytes");
    }
}

#[test]
fn classes_that_fit_no_slab_evenly_lose_no_capacity() {
    // 10 and 7 MiB leave a rest in every slab; what lies in the rests together is used.
    for len in [7 * MIB, 10 * MIB, 28 * MIB] {
        let rig = store(140 * MIB);
        assert_eq!(
            fill(&rig, "object", len),
            140 * MIB / len,
            "objects of {len} bytes in 140 MiB"
        );
    }
}

#[test]
fn an_object_larger_than_the_first_slab_gets_one_of_its_own() {
    let rig = store(80 * MIB);
    rig.put("small", &[1; 1000]);
    rig.put("large", &pattern(1, 70 * MIB));
    rig.expect("large", &pattern(1, 70 * MIB));
    rig.expect("small", &[1; 1000]);
}

#[test]
fn a_full_store_says_what_was_asked_and_what_is_there() {
    let rig = store(4 * MIB);
    rig.put("there", &pattern(1, 3 * MIB));
    let fault = rig.write("more", &pattern(2, 2 * MIB), &tag()).expect_err("no room");
    let expected = "the store is full: 2097152 bytes asked, 1048576 free of 4194304; \
                    remove objects or open it with a larger capacity (code 0)";
    assert_eq!((fault.kind, fault.to_string().as_str()), (FaultKind::Full, expected));
    let fault = rig
        .write("huge", &pattern(2, 5 * MIB), &tag())
        .expect_err("more than the capacity");
    let expected =
        "an object of 5242880 bytes is larger than the whole store of 4194304; open it with a larger capacity (code 0)";
    assert_eq!((fault.kind, fault.to_string().as_str()), (FaultKind::Full, expected));
}

#[test]
fn a_capacity_below_one_page_is_one_page() {
    let rig = store(1);
    rig.put("small", &[7; 64]);
    rig.expect("small", &[7; 64]);
}

#[test]
fn what_lies_in_pieces_is_read_whole_and_in_ranges() {
    let rig = store(4 * MIB);
    fill(&rig, "piece", 256 << 10);
    // Every second quarter of a MiB is free: 2 MiB in eight holes.
    (0..16).step_by(2).for_each(|index| {
        assert_eq!(rig.engine().remove_batch(&[&format!("piece/{index}")]), [Ok(true)]);
    });
    let bytes = pattern(3, 2 * MIB);
    rig.put("scattered", &bytes);
    rig.expect("scattered", &bytes);
    for (offset, len) in [
        (0, 1),
        (262_143, 2),
        (262_144, 262_144),
        (100_000, 1_000_000),
        (2 * MIB - 1, 1),
    ] {
        let memory = rig.memory(len);
        let read = tensorlease_engine::ReadOp {
            key: "scattered",
            offset: offset as u64,
            target: memory.target(0..len),
            object_len: 2 * MIB as u64,
            tag: None,
            by_transport: false,
        };
        assert_eq!(
            rig.engine().read_batch(&[read]),
            [Ok(len as u64)],
            "{len} bytes from {offset} on"
        );
        assert_eq!(
            memory.bytes(0..len),
            bytes[offset..offset + len],
            "{len} bytes from {offset} on"
        );
    }
    // Its pieces come back as room for others.
    assert_eq!(rig.engine().remove_batch(&["scattered"]), [Ok(true)]);
    assert_eq!(fill(&rig, "again", 256 << 10), 8);
}

#[test]
fn fifty_rounds_of_mixed_sizes_do_not_fragment_to_failure() {
    let rig = store(16 * MIB);
    let lens = [64, 1000, 4096, 70_000, 300_000, MIB, 2_500_000];
    let content = |round: usize| u8::try_from(round).expect("fifty rounds");
    for round in 0..50_usize {
        // Another order and another survivor in each round, so that old objects lie between the new ones.
        let mut free = 16 * MIB as u64 - rig.engine().stats().object_bytes.next_multiple_of(4096);
        for index in 0.. {
            let len = lens[(index * (round % 6 + 1) + round) % lens.len()];
            let block = block_len(len as u64).expect("no overflow");
            if block + 4096 > free {
                break;
            }
            let key = format!("{round}/{index}");
            let written = rig.write(&key, &vec![content(round); len], &tag());
            assert_eq!(written, Ok(()), "{len} bytes with {free} free in round {round}");
            free -= block + 64;
        }
        rig.expect(&format!("{round}/0"), &vec![content(round); lens[round % lens.len()]]);
        if round % 3 != 0 {
            rig.engine().remove_prefix(&format!("{round}/")).expect("an open store");
        } else {
            // One object in three stays for two more rounds.
            (0..2000).filter(|index| index % 3 != 0).for_each(|index| {
                rig.engine().remove_batch(&[&format!("{round}/{index}")]);
            });
            if round >= 6 {
                rig.engine()
                    .remove_prefix(&format!("{}/", round - 6))
                    .expect("an open store");
            }
        }
    }
    (0..50).for_each(|round| drop(rig.engine().remove_prefix(&format!("{round}/"))));
    assert_eq!(rig.engine().stats().object_bytes, 0);
    assert_eq!(fill(&rig, "after", MIB), 16, "nothing was lost");
}

#[test]
fn a_batch_of_replacements_needs_no_room_for_all_of_them_at_once() {
    let rig = store(9 * MIB);
    (0..8).for_each(|index| rig.put(&format!("{index}"), &pattern(1, MIB)));
    let bytes = pattern(2, MIB);
    let memory = rig.memory(MIB);
    memory.fill(0, &bytes);
    let keys: Vec<String> = (0..8).map(|index| index.to_string()).collect();
    let (segments, tag) = ([memory.source(0..MIB)], tag());
    let writes: Vec<_> = keys
        .iter()
        .map(|key| tensorlease_engine::WriteOp {
            key,
            segments: &segments,
            tag: &tag,
        })
        .collect();
    assert_eq!(
        rig.engine().write_batch(&writes),
        vec![Ok(()); 8],
        "one MiB of room for eight replacements"
    );
    keys.iter().for_each(|key| rig.expect(key, &bytes));
}

#[derive(Clone, Debug)]
enum Step {
    Put { key: u8, len: usize },
    Remove { key: u8 },
    RemovePrefix { prefix: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..20_u8, 1..60_000_usize).prop_map(|(key, len)| Step::Put { key, len }),
        2 => (0..20_u8).prop_map(|key| Step::Remove { key }),
        1 => (0..3_u8).prop_map(|prefix| Step::RemovePrefix { prefix }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Against a map: whatever is written, replaced, removed and refused, the store holds what the map holds, never more
    /// than its capacity, and refuses only what does not fit.
    #[test]
    fn the_store_is_a_map_of_limited_size(steps in prop::collection::vec(step(), 1..80)) {
        const CAPACITY: usize = 256 << 10;
        let rig = store(CAPACITY);
        let mut model: HashMap<String, Vec<u8>> = HashMap::new();
        let name = |key: u8| format!("{}/{key}", key % 3);
        for (index, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put { key, len } => {
                    let bytes = pattern(index as u64, len);
                    // A block is at most an eighth and a granule larger than what it holds.
                    let most: usize = model.values().map(|old| old.len() + old.len() / 8 + 64).sum();
                    match rig.write(&name(key), &bytes, &tag()) {
                        Ok(()) => { model.insert(name(key), bytes); }
                        Err(fault) => {
                            assert_eq!(fault.kind, FaultKind::Full);
                            assert!(most + len + 8192 > CAPACITY, "{len} bytes beside {most}: {fault}");
                        }
                    }
                }
                Step::Remove { key } => {
                    let expected = model.remove(&name(key)).is_some();
                    assert_eq!(rig.engine().remove_batch(&[&name(key)]), [Ok(expected)]);
                }
                Step::RemovePrefix { prefix } => {
                    let before = model.len();
                    model.retain(|key, _| !key.starts_with(&format!("{prefix}/")));
                    assert_eq!(rig.engine().remove_prefix(&format!("{prefix}/")), Ok((before - model.len()) as u64));
                }
            }
            let held: usize = model.values().map(Vec::len).sum();
            let stats = rig.engine().stats();
            assert_eq!((stats.objects, stats.object_bytes), (model.len() as u64, held as u64));
            assert!(held <= CAPACITY);
        }
        model.iter().for_each(|(key, bytes)| rig.expect(key, bytes));
    }
}
