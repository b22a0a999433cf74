//! Clause 8: removal.
use super::rig::expect_fault;
use super::{Factory, Rig, pattern};
use crate::FaultKind;

fn assert_gone(rig: &Rig, key: &str, len: usize) {
    expect_fault(rig.read(key, len), FaultKind::NotFound, "a removed object");
    assert_eq!(
        rig.engine().contains_batch(&[key]),
        [Ok(false)],
        "a removed object is not contained"
    );
}

/// Clause 8: a removed object is gone, and its key is free for another.
pub fn removed_objects_are_gone(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let (key, kept) = (rig.key("removed"), rig.key("kept"));
    rig.put(&kept, &pattern(0, 500));
    for round in 1..4 {
        rig.put(&key, &pattern(round, 1000));
        rig.remove(&key);
        assert_gone(&rig, &key, 1000);
    }
    rig.expect(&kept, &pattern(0, 500));
}

/// Clause 8: removing what is not there is no failure.
pub fn removing_a_missing_key_is_false(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let (missing, there) = (rig.key("missing"), rig.key("there"));
    rig.put(&there, &pattern(0, 500));
    let results = rig.engine().remove_batch(&[&missing, &there]);
    assert_eq!(results, [Ok(false), Ok(true)], "a missing key before one that is there");
    let results = rig.engine().remove_batch(&[&missing, &there]);
    assert_eq!(results, [Ok(false), Ok(false)], "both are gone");
    assert_eq!(rig.engine().remove_prefix(&missing), Ok(0), "a prefix of no key");
}

/// Clause 8: a prefix removes the keys that start with it, and no other.
pub fn a_prefix_removes_its_keys_only(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let inside: Vec<String> = (0..30).map(|index| rig.key(&format!("job/1/{index}"))).collect();
    let outside = ["job/10", "job/2/0", "job/", "job/1", "JOB/1/0", "x/job/1/0"].map(|name| rig.key(name));
    for key in inside.iter().chain(&outside) {
        rig.put(key, &pattern(1, 100));
    }
    assert_eq!(
        rig.engine().remove_prefix(&rig.key("job/1/")),
        Ok(30),
        "thirty keys start with it"
    );
    inside.iter().for_each(|key| assert_gone(&rig, key, 100));
    outside.iter().for_each(|key| rig.expect(key, &pattern(1, 100)));
    assert_eq!(
        rig.engine().remove_prefix(&rig.key("job/1/")),
        Ok(0),
        "nothing is left to remove"
    );
}
