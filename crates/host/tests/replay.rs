//! Replays the inputs of the fuzz targets `wire` and `session`, and random ones of the second, in an ordinary test.

#[allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::cast_possible_truncation,
    reason = "shared with the fuzz target"
)]
#[path = "../../../fuzz/src/session/mod.rs"]
mod session;

#[allow(missing_docs, unreachable_pub, reason = "shared with the fuzz target")]
#[path = "../../../fuzz/src/wire/mod.rs"]
mod wire;

use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Panics of the daemon's threads. The daemon survives them, but they are defects.
static DAEMON_PANICS: AtomicUsize = AtomicUsize::new(0);

/// Plays one input, and looks out for such panics.
fn play(input: &[u8]) -> session::Reached {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let of_daemon = std::thread::current()
                .name()
                .is_some_and(|name| name.starts_with("tensorlease"));
            DAEMON_PANICS.fetch_add(usize::from(of_daemon), Ordering::SeqCst);
            told(info);
        }));
    });
    let reached = session::replay(input);
    assert_eq!(
        DAEMON_PANICS.load(Ordering::SeqCst),
        0,
        "the daemon stumbled over {input:?}"
    );
    reached
}

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

#[test]
fn no_seed_of_the_fuzz_target_makes_the_daemon_fail_anybody() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/session");
    let (mut seeds, mut answers, mut refused) = (0, 0, 0);
    for entry in std::fs::read_dir(&folder).unwrap() {
        let reached = play(&std::fs::read(entry.unwrap().path()).unwrap());
        answers += reached.answers;
        refused += usize::from(reached.refused);
        seeds += 1;
    }
    assert!(seeds >= 30, "{seeds} seeds in {}", folder.display());
    assert!(answers >= 2 * seeds, "{answers} messages were answered");
    assert!(0 < refused && refused < seeds, "{refused} of {seeds} were refused");
}

#[test]
fn no_random_client_makes_the_daemon_fail_anybody() {
    let mut state = 1_u64;
    for round in 0..300 {
        let bytes = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state.to_le_bytes()[7]
        });
        play(&bytes.take(16 + round % 200).collect::<Vec<u8>>());
    }
}
