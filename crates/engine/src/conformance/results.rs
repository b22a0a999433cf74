//! Clauses 1, 4 and 11: one result per key, in order, and each on its own.
use super::rig::{any_tag, assert_same, expect_fault};
use super::{Factory, pattern};
use crate::{FaultKind, ReadOp, WriteOp};
use tensorlease_memory::Source;

/// Clause 1: every batch returns one result per key, in the order of the keys.
pub fn results_come_in_the_order_of_the_keys(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let engine = rig.engine();
    let keys: Vec<String> = (0..40).map(|index| rig.key(&format!("order/{index}"))).collect();
    // Only every third object exists, and each has a size of its own.
    let exists = |index: usize| index.is_multiple_of(3);
    (0..40)
        .filter(|&index| exists(index))
        .for_each(|index| rig.put(&keys[index], &pattern(index as u64, 100 + index)));
    let memory = rig.memory(40 * 200);
    let reads: Vec<ReadOp<'_>> = (0..40)
        .map(|index| ReadOp::whole(&keys[index], memory.target(index * 200..index * 200 + 100 + index)))
        .collect();
    let results = engine.read_batch(&reads);
    assert_eq!(results.len(), 40, "one result per key of a read");
    for (index, result) in results.iter().enumerate() {
        match result {
            Ok(read) if exists(index) => assert_eq!(*read, 100 + index as u64, "the bytes of key {index}"),
            Err(fault) if !exists(index) => assert_eq!(fault.kind, FaultKind::NotFound, "key {index} is missing"),
            other => panic!("key {index} got the result of another: {other:?}"),
        }
    }
    let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
    let expected: Vec<_> = (0..40).map(|index| Ok(exists(index))).collect();
    assert_eq!(
        engine.contains_batch(&borrowed),
        expected,
        "contains in the order of the keys"
    );
    assert_eq!(
        engine.describe_batch(&borrowed).len(),
        40,
        "one result per key of a description"
    );
    assert_eq!(
        engine.remove_batch(&borrowed),
        expected,
        "removals in the order of the keys"
    );
}

/// Clauses 1 and 15: no keys, no results, open or closed.
pub fn empty_calls_return_nothing(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    for state in ["open", "closed"] {
        assert_eq!(rig.engine().read_batch(&[]), [], "empty read, {state}");
        assert_eq!(rig.engine().write_batch(&[]), [], "empty write, {state}");
        assert_eq!(rig.engine().remove_batch(&[]), [], "empty removal, {state}");
        assert_eq!(rig.engine().contains_batch(&[]), [], "empty question, {state}");
        assert_eq!(rig.engine().describe_batch(&[]), [], "empty description, {state}");
        rig.engine().close().expect("the engine closes");
    }
}

/// Clause 4: a failed key leaves the other keys of its call unaffected.
pub fn a_missing_key_leaves_the_others_unaffected(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let (first, missing, last) = (rig.key("first"), rig.key("missing"), rig.key("last"));
    rig.put(&first, &pattern(1, 5000));
    rig.put(&last, &pattern(2, 5000));
    let memory = rig.memory(15_000);
    memory.fill(0, &[0xa5; 15_000]);
    let read = |key, at: usize| ReadOp::whole(key, memory.target(at..at + 5000));
    let results = rig
        .engine()
        .read_batch(&[read(&first, 0), read(&missing, 5000), read(&last, 10_000)]);
    assert_eq!(results[0], Ok(5000), "the key before a missing one");
    assert_eq!(results[2], Ok(5000), "the key after a missing one");
    expect_fault(results[1].clone(), FaultKind::NotFound, "the missing key");
    assert_same(&memory.bytes(0..5000), &pattern(1, 5000));
    assert_same(&memory.bytes(10_000..15_000), &pattern(2, 5000));
}

/// Clause 11: as many keys as the engine claims go in one call.
pub fn a_full_batch_is_served(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    // Engines without a real limit are not asked for a billion keys.
    let count = rig.engine().capabilities().batch_keys_max.min(4096);
    let keys: Vec<String> = (0..count).map(|index| rig.key(&format!("batch/{index}"))).collect();
    let bytes = pattern(3, count * 100);
    let (written, read_back) = (rig.memory(count * 100), rig.memory(count * 100));
    written.fill(0, &bytes);
    let segments: Vec<Source<'_>> = (0..count)
        .map(|index| written.source(index * 100..index * 100 + 100))
        .collect();
    let tag = any_tag();
    let write = |index: usize| WriteOp {
        key: &keys[index],
        segments: &segments[index..=index],
        tag: &tag,
    };
    let results = rig.engine().write_batch(&(0..count).map(write).collect::<Vec<_>>());
    assert_eq!(results, vec![Ok(()); count], "a full batch is written");
    let read = |index: usize| ReadOp::whole(&keys[index], read_back.target(index * 100..index * 100 + 100));
    let results = rig.engine().read_batch(&(0..count).map(read).collect::<Vec<_>>());
    assert_eq!(results, vec![Ok(100); count], "a full batch is read");
    assert_same(&read_back.bytes(0..count * 100), &bytes);
    let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(
        rig.engine().remove_batch(&borrowed),
        vec![Ok(true); count],
        "a full batch is removed"
    );
}
