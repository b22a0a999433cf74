//! Clause 9: what an engine says about objects without moving them.
use super::rig::{expect_fault, only};
use super::{Factory, pattern};
use crate::{Fault, FaultKind, ObjectInfo, Tag};

/// Clause 9: `contains_batch` follows writes and removals.
pub fn contains_agrees_with_writes(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let key = rig.key("asked");
    let contains = || rig.engine().contains_batch(&[&key]);
    assert_eq!(contains(), [Ok(false)], "before the write");
    rig.put(&key, &pattern(1, 10));
    assert_eq!(contains(), [Ok(true)], "after the write");
    rig.put(&key, &pattern(1, 20));
    assert_eq!(contains(), [Ok(true)], "after the replace");
    rig.engine().remove_batch(&[&key]);
    assert_eq!(contains(), [Ok(false)], "after the removal");
}

/// Clause 9: `describe_batch` knows size and tag where that is claimed, and refuses elsewhere.
pub fn describe_knows_size_and_tag(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let (key, missing) = (rig.key("described"), rig.key("missing"));
    let describe = || -> Vec<Result<Option<ObjectInfo>, Fault>> {
        let found = rig.engine().describe_batch(&[&key, &missing]).into_iter();
        // The version has a check of its own.
        let without_version = |info: ObjectInfo| ObjectInfo { version: 0, ..info };
        found.map(|info| info.map(|info| info.map(without_version))).collect()
    };
    let write = |len: usize, tag: &[u8]| {
        rig.write(&key, &pattern(1, len), &Tag::new(tag))
            .expect("a small object is written");
    };
    write(12_345, b"bf16 [5]");
    if !rig.engine().capabilities().describes {
        for result in describe() {
            expect_fault(result, FaultKind::Refused, "an engine that does not describe");
        }
        return;
    }
    let info = |len, tag: &[u8]| {
        Ok(Some(ObjectInfo {
            len,
            tag: Some(Tag::new(tag)),
            version: 0,
        }))
    };
    assert_eq!(describe(), [info(12_345, b"bf16 [5]"), Ok(None)], "after the write");
    write(7, b"");
    assert_eq!(describe(), [info(7, b""), Ok(None)], "after the replace");
    rig.engine().remove_batch(&[&key]);
    assert_eq!(describe(), [Ok(None), Ok(None)], "after the removal");
}

/// Clause 9: a reader of ranges can tell a replaced object from the one before, also where size and tag are equal.
pub fn a_replaced_object_has_another_version(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    if !rig.engine().capabilities().describes {
        return;
    }
    let key = rig.key("versioned");
    let version = || {
        let info = only(rig.engine().describe_batch(&[&key])).expect("a small object is described");
        info.expect("it was written").version
    };
    rig.put(&key, &pattern(1, 1000));
    let first = version();
    assert_eq!(version(), first, "the same object has the same version");
    rig.put(&key, &pattern(1, 1000));
    let second = version();
    assert_ne!(second, first, "replaced by one of equal size");
    rig.engine().remove_batch(&[&key]);
    rig.put(&key, &pattern(1, 1000));
    assert!(![first, second].contains(&version()), "removed and written again");
}
