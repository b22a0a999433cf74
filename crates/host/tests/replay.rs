//! Replays the inputs of the fuzz target `wire` in an ordinary test.

#[allow(missing_docs, unreachable_pub, reason = "shared with the fuzz target")]
#[path = "../../../fuzz/src/wire/mod.rs"]
mod wire;

use std::path::Path;

#[test]
fn every_seed_of_the_fuzz_target_is_a_message_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/wire");
    let (mut seeds, mut decoded) = (0, 0);
    for entry in std::fs::read_dir(&folder).unwrap() {
        decoded += wire::replay(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 35, "{seeds} seeds in {}", folder.display());
    assert!(decoded >= 28, "{decoded} of the seeds are messages");
}
