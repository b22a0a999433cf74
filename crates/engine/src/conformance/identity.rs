//! Clauses 3 and 10: which object a read may return.
use super::rig::{assert_same, expect_fault};
use super::{Factory, pattern};
use crate::{FaultKind, Tag};

/// Clause 3: an object of another size is never handed out.
pub fn another_size_is_a_mismatch(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let key = rig.key("size");
    rig.put(&key, &pattern(1, 1000));
    for wrong in [1, 999, 1001, 100_000] {
        expect_fault(
            rig.read(&key, wrong),
            FaultKind::Mismatch,
            &format!("1000 bytes read as {wrong}"),
        );
    }
    rig.expect(&key, &pattern(1, 1000));
}

/// Clause 3: where the engine describes, an object with another tag is never handed out.
pub fn another_tag_is_a_mismatch(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let key = rig.key("tag");
    let bytes = pattern(1, 1000);
    rig.write(&key, &bytes, &Tag::new(b"f32 [250]"))
        .expect("a small object is written");
    // A tag of its own memory: equality counts, not identity.
    let same = rig.read_tagged(&key, 1000, Some(&Tag::new(b"f32 [250]")));
    assert_same(&same.expect("the same tag"), &bytes);
    if !rig.engine().capabilities().describes {
        return;
    }
    for wrong in [&b"f32 [125, 2]"[..], b"i32 [250]", b""] {
        expect_fault(
            rig.read_tagged(&key, 1000, Some(&Tag::new(wrong))),
            FaultKind::Mismatch,
            &format!("tag {wrong:?}"),
        );
    }
}

/// Clause 3: who asks for no tag gets the object whatever its tag.
pub fn no_tag_asked_means_any_tag(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    for (index, tag) in [&b""[..], b"f32", &[0xff; 300]].into_iter().enumerate() {
        let key = rig.key(&format!("any/{index}"));
        rig.write(&key, &pattern(2, 77), &Tag::new(tag))
            .expect("a small object is written");
        rig.expect(&key, &pattern(2, 77));
    }
}

/// Clause 10: any string is a key of its own.
pub fn odd_keys_are_keys(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let long = "k".repeat(9000);
    let longer = format!("{long}x");
    let names = [
        " ",
        "a",
        "A",
        "a ",
        "a\0",
        "a\0b",
        "\0",
        "../a",
        "a/b",
        "a:b?c=d&e#f%20",
        "\n",
        "ключ",
        "鍵",
        "🔑",
        // The same letter as one character and as two.
        "\u{e9}",
        "e\u{301}",
        &long,
        &longer,
    ];
    let keys: Vec<String> = names.iter().map(|name| rig.key(name)).collect();
    for (index, key) in keys.iter().enumerate() {
        rig.put(key, &pattern(index as u64, 50 + index));
    }
    for (index, key) in keys.iter().enumerate() {
        rig.expect(key, &pattern(index as u64, 50 + index));
    }
    let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(
        rig.engine().contains_batch(&borrowed),
        vec![Ok(true); keys.len()],
        "every key is there"
    );
    assert_eq!(
        rig.engine().remove_batch(&borrowed),
        vec![Ok(true); keys.len()],
        "every key is a key of its own"
    );
}
