//! How a staged read lies in its bounce block: requirement A11.

use crate::support::{MIB, Rig, budget, free_engine, stat, tensor_item};
use tensorlease::{CallerMemory, Delivery, Patience, ReadRequest, engine::decorators::ObservedRead};

/// Targets lie back to back, in the order of the keys.
fn assert_tight(read: &[ObservedRead]) {
    for pair in read.windows(2) {
        assert_eq!(
            pair[0].target.end(),
            pair[1].target.addr,
            "no gap between {} and {}",
            pair[0].key,
            pair[1].key
        );
    }
}

fn keys(reads: &[Vec<ObservedRead>]) -> Vec<String> {
    reads.iter().flatten().map(|read| read.key.clone()).collect()
}

#[test]
fn a_staged_read_is_packed_tightly_in_destination_order_at_odd_addresses() {
    let rig = Rig::registering(free_engine(), &budget(64 * MIB));
    let lens: Vec<u64> = (0..200).map(|at| 1 + (at * 131) % 999).collect();
    rig.fill(&lens);
    rig.read(&lens, Delivery::Copied).unwrap();
    let reads = rig.calls.reads();
    assert_eq!(reads.len(), 1, "all of it fits one round");
    assert_tight(&reads[0]);
    assert_eq!(keys(&reads), (0..200).map(|at| format!("k{at}")).collect::<Vec<_>>());
    assert!(
        reads[0].iter().any(|read| read.target.addr % 2 == 1),
        "odd addresses are used"
    );
    for (read, len) in reads[0].iter().zip(&lens) {
        assert_eq!(read.target.len as u64, *len, "{}", read.key);
    }
}

#[test]
fn a_batch_row_is_copied_with_its_neighbours() {
    let rig = Rig::registering(free_engine(), &budget(64 * MIB));
    let lens: Vec<u64> = (0..500).map(|at| 1 + (at * 1009) % 3000).collect();
    let values = rig.fill(&lens);
    let staged = stat(&rig.store, "copied_bytes");
    let request = ReadRequest {
        items: lens
            .iter()
            .enumerate()
            .map(|(at, len)| tensor_item(&format!("k{at}"), *len))
            .collect(),
        batches: std::iter::once(0..lens.len()).collect(),
        delivery: Some(Delivery::Copied),
        ..ReadRequest::default()
    };
    let output = rig.store.get(request, Patience::default()).unwrap();
    assert!(output.batches[0].as_deref().unwrap() == values.concat());
    rig.calls.reads().iter().for_each(|read| assert_tight(read));
    let copied = stat(&rig.store, "copied_bytes") - staged;
    assert_eq!(copied, lens.iter().sum::<u64>(), "each byte is copied once");
}

#[test]
fn groups_are_cut_in_destination_order_and_fill_their_round() {
    let rig = Rig::registering(free_engine(), &budget(64 * MIB));
    let lens = vec![MIB + 1; 20];
    rig.fill(&lens);
    rig.read(&lens, Delivery::Copied).unwrap();
    let mut reads = rig.calls.reads();
    assert!(reads.len() < 20 && 1 < reads.len(), "{} rounds", reads.len());
    reads.iter().for_each(|read| assert_tight(read));
    reads.sort_by_key(|read| read[0].key[1..].parse::<u32>().unwrap());
    assert_eq!(keys(&reads), (0..20).map(|at| format!("k{at}")).collect::<Vec<_>>());
}

#[test]
fn an_object_larger_than_a_round_is_read_in_ranges_once_each() {
    let rig = Rig::registering(free_engine(), &budget(64 * MIB));
    let len = 13 * MIB + 7;
    let values = rig.fill(&[len]);
    let read = rig.read(&[len], Delivery::Copied).unwrap();
    assert!(read[0].as_slice() == values[0].as_slice());
    let mut ranges: Vec<(u64, u64)> = rig
        .calls
        .reads()
        .iter()
        .flatten()
        .map(|read| (read.offset, read.target.len as u64))
        .collect();
    ranges.sort_unstable();
    assert!(1 < ranges.len());
    let mut end = 0;
    for (offset, bytes) in ranges {
        assert_eq!(offset, end, "ranges follow one another");
        end += bytes;
    }
    assert_eq!(end, len);
    assert!(rig.calls.reads().iter().flatten().all(|read| read.object_len == len));
}

#[test]
fn reads_into_callers_memory_are_staged_the_same_way() {
    let rig = Rig::registering(free_engine(), &budget(64 * MIB));
    let lens: Vec<u64> = (1..100).collect();
    rig.fill(&lens);
    let request = ReadRequest {
        items: lens
            .iter()
            .enumerate()
            .map(|(at, len)| tensor_item(&format!("k{at}"), *len))
            .collect(),
        into: lens
            .iter()
            .map(|len| CallerMemory::from_vec(vec![0; usize::try_from(*len).unwrap()]))
            .collect(),
        ..ReadRequest::default()
    };
    rig.store.get(request, Patience::default()).unwrap();
    let reads = rig.calls.reads();
    assert_eq!(reads.len(), 1);
    assert_tight(&reads[0]);
    assert_eq!(stat(&rig.store, "hot_path_register_calls"), 0);
}
