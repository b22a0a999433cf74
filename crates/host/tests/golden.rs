//! The bytes of each message, kept in a file for the version that has them: other bytes need another version.
mod messages;

use std::fmt::{Debug, Write};
use std::path::{Path, PathBuf};
use tensorlease_host::wire::{LENGTH_BYTES, Reply, Request, VERSION, WireError};

const HEADER: &str = "\
Each message of the host protocol, and the bytes of its frame. `cargo test -p tensorlease-host --test golden` compares
them with what is encoded. Nobody edits this file: whoever changes a message raises VERSION (crates/host/src/wire/frame.rs), and
has the file of the new version written by the same command with TENSORLEASE_WRITE_GOLDEN=1. The file of the old version goes.
";
const WRITE: &str = "TENSORLEASE_WRITE_GOLDEN";
/// Bytes of one line.
const LINE_BYTES: usize = 40;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn frames<T: Debug>(messages: &[T], encode: impl Fn(&T, &mut Vec<u8>)) -> Vec<(String, Vec<u8>)> {
    let frame = |message: &T| {
        let mut frame = Vec::new();
        encode(message, &mut frame);
        (format!("{message:?}"), frame)
    };
    messages.iter().map(frame).collect()
}

fn request_frames() -> Vec<(String, Vec<u8>)> {
    frames(&messages::requests(), Request::encode)
}

fn reply_frames() -> Vec<(String, Vec<u8>)> {
    frames(&messages::replies(), Reply::encode)
}

/// The text that the file must be.
fn text() -> String {
    let mut text = format!("{HEADER}\nversion {VERSION}\n");
    for (side, frames) in [("request", request_frames()), ("reply", reply_frames())] {
        for (message, frame) in frames {
            write!(text, "\n{side} {message}\n").expect("a string takes everything");
            for line in frame.chunks(LINE_BYTES) {
                text.push_str("   ");
                for four in line.chunks(4) {
                    text.push(' ');
                    four.iter()
                        .for_each(|byte| write!(text, "{byte:02x}").expect("a string takes everything"));
                }
                text.push('\n');
            }
        }
    }
    text
}

#[test]
fn each_message_has_the_bytes_of_its_version() {
    let path = folder().join(format!("version-{VERSION}.txt"));
    let now = text();
    // A file that is there is never written over: its bytes are that version's for good.
    if !path.exists() && std::env::var_os(WRITE).is_some() {
        std::fs::create_dir_all(folder()).unwrap();
        std::fs::write(&path, &now).unwrap();
    }
    let Ok(kept) = std::fs::read_to_string(&path) else {
        panic!("version {VERSION} has no golden bytes: run this test with {WRITE}=1");
    };
    for (kept, now) in kept.lines().zip(now.lines()) {
        assert_eq!(
            kept, now,
            "a message of version {VERSION} has other bytes now: raise VERSION, run this test with {WRITE}=1"
        );
    }
    assert_eq!(
        kept.lines().count(),
        now.lines().count(),
        "a message has come or gone: raise VERSION, run this test with {WRITE}=1"
    );
    let files = std::fs::read_dir(folder()).unwrap().count();
    assert_eq!(files, 1, "only the bytes of version {VERSION} are kept");
}

#[test]
fn no_kind_of_message_is_left_out() {
    let requests: Vec<u8> = request_frames().iter().map(|(_, frame)| frame[LENGTH_BYTES]).collect();
    // The kind of a reply stands behind the slabs that it names, of 12 bytes each.
    let kind_of = |frame: &[u8]| frame[LENGTH_BYTES + 4 + 12 * usize::from(frame[LENGTH_BYTES])];
    let replies: Vec<u8> = reply_frames().iter().map(|(_, frame)| kind_of(frame)).collect();
    for kind in 0..=u8::MAX {
        let is_request = !matches!(Request::decode(&[kind]), Err(WireError::UnknownKind { .. }));
        assert_eq!(requests.contains(&kind), is_request, "request {kind}");
        let is_reply = !matches!(Reply::decode(&[0, 0, 0, 0, kind]), Err(WireError::UnknownKind { .. }));
        assert_eq!(replies.contains(&kind), is_reply, "reply {kind}");
    }
}
