//! Clause 7: what a write leaves in the store.
use super::rig::{any_tag, expect_fault};
use super::{Factory, pattern};
use crate::FaultKind;
use tensorlease_memory::Source;

/// Clause 7: an object is its segments, one after the other.
pub fn written_segments_are_gathered(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let lens = [1, 64, 4095, 1, 4097, 100_000, 13];
    let total: usize = lens.iter().sum();
    let bytes = pattern(1, total);
    // Segments lie apart from each other, and at odd addresses.
    let memory = rig.memory(total + 8 * lens.len());
    let mut segments: Vec<Source<'_>> = Vec::new();
    let mut done = 0;
    for (index, len) in lens.into_iter().enumerate() {
        let at = done + 7 * index + 1;
        memory.fill(at, &bytes[done..done + len]);
        segments.push(memory.source(at..at + len));
        done += len;
    }
    let key = rig.key("gathered");
    let written = rig.write_segments(&key, &segments, &any_tag());
    assert_eq!(written, Ok(()), "an object of seven segments");
    rig.expect(&key, &bytes);
}

/// Clause 7: a replace takes the place of the old object, whatever its size.
pub fn a_replace_may_change_the_size(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let key = rig.key("replaced");
    let mut old = None;
    for (index, len) in [1000, 1, 100_000, 99_999, 1_000_000, 1000].into_iter().enumerate() {
        let bytes = pattern(index as u64, len);
        rig.put(&key, &bytes);
        rig.expect(&key, &bytes);
        if let Some(old_len) = old.replace(len) {
            expect_fault(rig.read(&key, old_len), FaultKind::Mismatch, "the replaced object");
        }
    }
}
