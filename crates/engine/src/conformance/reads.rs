//! Clauses 2, 4 and 5: what a read writes, and what it leaves alone.
use super::rig::assert_same;
use super::{Factory, Rig, RigMemory, pattern};
use crate::{Fault, FaultKind, ReadOp};
use std::ops::Range;
use std::time::Duration;
use tensorlease_memory::limits::page_bytes;

/// Targets without a gap between them, at odd addresses.
const PACKED: [Range<usize>; 6] = [1..3, 3..13, 13..255, 255..257, 257..4097, 4097..9099];

/// Clause 2: sizes around every border that an engine may have.
pub fn objects_of_every_size_come_back(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let page = page_bytes();
    let large = [64 << 10, (1 << 20) + 7, (8 << 20) + 1];
    let sizes = [1, 2, 3, 7, 63, 64, 65, 1000, page - 1, page, page + 1]
        .into_iter()
        .chain(large);
    for len in sizes {
        let key = rig.key(&format!("size/{len}"));
        let bytes = pattern(len as u64, len);
        rig.put(&key, &bytes);
        rig.expect(&key, &bytes);
    }
}

fn read_packed(rig: &Rig, memory: &RigMemory) {
    let keys: Vec<String> = (0..PACKED.len())
        .map(|index| rig.key(&format!("packed/{index}")))
        .collect();
    for (index, range) in PACKED.iter().enumerate() {
        rig.put(&keys[index], &pattern(index as u64, range.len()));
    }
    let reads: Vec<ReadOp<'_>> = PACKED
        .iter()
        .zip(&keys)
        .map(|(range, key)| ReadOp::whole(key, memory.target(range.clone())))
        .collect();
    let expected: Vec<Result<u64, Fault>> = PACKED.iter().map(|range| Ok(range.len() as u64)).collect();
    assert_eq!(rig.engine().read_batch(&reads), expected, "reads to odd addresses");
}

/// Clause 2: targets may begin anywhere, back to back.
pub fn targets_may_be_unaligned_and_tightly_packed(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let memory = rig.memory(10_000);
    read_packed(&rig, &memory);
    for (index, range) in PACKED.iter().enumerate() {
        assert_same(&memory.bytes(range.clone()), &pattern(index as u64, range.len()));
    }
}

/// Clause 4: not one byte beside a target is touched, whatever becomes of the key.
pub fn neighbours_of_targets_stay_untouched(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let memory = rig.memory(10_000);
    memory.fill(0, &[0xa5; 10_000]);
    read_packed(&rig, &memory);
    assert_same(&memory.bytes(0..1), &[0xa5]);
    assert_same(&memory.bytes(9099..10_000), &[0xa5; 901]);
    // An object that is larger than the target must not spill over when it is refused.
    let key = rig.key("larger");
    rig.put(&key, &pattern(9, 8000));
    memory.fill(0, &[0xa5; 10_000]);
    let read = ReadOp::whole(&key, memory.target(101..3101));
    let results = rig.engine().read_batch(&[read]);
    assert!(
        results[0].as_ref().map_or(true, |read| *read != 3000),
        "8000 bytes are no object of 3000"
    );
    assert_same(&memory.bytes(0..101), &[0xa5; 101]);
    assert_same(&memory.bytes(3101..10_000), &[0xa5; 6899]);
}

/// Clause 5: when the call has ended without `MayStillWrite`, the memory is the caller's again.
pub fn targets_stay_as_they_are_after_the_call(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let key = rig.key("late");
    rig.put(&key, &pattern(1, 100_000));
    let memory = rig.memory(100_000);
    let read = ReadOp::whole(&key, memory.target(0..100_000));
    assert_eq!(
        rig.engine().read_batch(&[read]),
        [Ok(100_000)],
        "the read of a stored object"
    );
    memory.fill(0, &pattern(2, 100_000));
    rig.put(&key, &pattern(3, 100_000));
    std::thread::sleep(Duration::from_millis(20));
    assert_same(&memory.bytes(0..100_000), &pattern(2, 100_000));
}

fn read_range(rig: &Rig, key: &str, offset: u64, len: usize, object_len: usize) -> Result<Vec<u8>, Fault> {
    let memory = rig.memory(len);
    memory.fill(0, &vec![0xa5; len]);
    let read = ReadOp {
        offset,
        object_len: object_len as u64,
        ..ReadOp::whole(key, memory.target(0..len))
    };
    let result = super::rig::only(rig.engine().read_batch(&[read]));
    if result.is_err() {
        assert_same(&memory.bytes(0..len), &vec![0xa5; len]);
    }
    let read = result?;
    assert_eq!(read, len as u64, "a range is read whole");
    Ok(memory.bytes(0..len))
}

/// Clause 2: the bytes come from `offset` on.
pub fn ranges_come_from_their_offset(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let bytes = pattern(5, 20_000);
    let key = rig.key("range");
    rig.put(&key, &bytes);
    for (offset, len) in [
        (0, 20_000),
        (0, 1),
        (1, 1),
        (19_999, 1),
        (63, 65),
        (4095, 4098),
        (7, 19_993),
    ] {
        match read_range(&rig, &key, offset as u64, len, 20_000) {
            Ok(found) => assert_same(&found, &bytes[offset..offset + len]),
            Err(fault) => panic!("{len} bytes from {offset} on: {:?} {fault}", fault.kind),
        }
    }
}

/// Clause 2: a range that the object does not have is refused, also where its end overflows.
pub fn ranges_past_the_end_are_refused(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let key = rig.key("range");
    rig.put(&key, &pattern(5, 1000));
    for (offset, len) in [
        (1, 1000),
        (999, 2),
        (1000, 1),
        (1001, 1),
        (u64::MAX, 1),
        (u64::MAX - 1, 2),
    ] {
        let fault = read_range(&rig, &key, offset, len, 1000).expect_err("a range past the end");
        let refused = matches!(fault.kind, FaultKind::Mismatch | FaultKind::Refused);
        assert!(
            refused,
            "{len} bytes from {offset} on of 1000: {:?} {fault}",
            fault.kind
        );
    }
}
