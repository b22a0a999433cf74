//! Messages are the same after encoding and decoding. Bytes that are no message are refused.
mod messages;

use messages::{POSITION, replies, requests};
use proptest::collection::vec;
use proptest::prelude::*;
use tensorlease_host::wire::{
    Answer, FRAME_BYTES_MAX, Fetch, LENGTH_BYTES, LIST_MAX, Pinned, Position, Reply, Request, Span, Store, WireError,
    body_len, version_of_hello,
};

fn body(frame: &[u8]) -> &[u8] {
    let length = *frame.first_chunk::<LENGTH_BYTES>().expect("a length");
    let len = body_len(length).expect("a length that is allowed");
    assert_eq!(len, frame.len() - LENGTH_BYTES, "one frame");
    &frame[LENGTH_BYTES..]
}

fn there_and_back(request: &Request<'_>) {
    let mut frame = Vec::new();
    request.encode(&mut frame);
    let bytes = body(&frame);
    assert_eq!(Request::decode(bytes).as_ref(), Ok(request));
    for cut in 0..bytes.len() {
        assert!(
            Request::decode(&bytes[..cut]).is_err(),
            "{cut} of {} bytes",
            bytes.len()
        );
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert!(Request::decode(&longer).is_err(), "a byte too many");
}

fn and_back(reply: &Reply<'_>) {
    let mut frame = Vec::new();
    reply.encode(&mut frame);
    let bytes = body(&frame);
    assert_eq!(Reply::decode(bytes).as_ref(), Ok(reply));
    for cut in 0..bytes.len() {
        assert!(Reply::decode(&bytes[..cut]).is_err(), "{cut} of {} bytes", bytes.len());
    }
}

#[test]
fn every_message_comes_back() {
    for request in requests() {
        there_and_back(&request);
    }
    for reply in replies() {
        and_back(&reply);
    }
}

/// These bytes are those of version 3, the first that was used. They never change, or two versions could not tell each
/// other that they differ.
#[test]
fn hello_and_refused_are_the_same_bytes_in_every_version() {
    let hello = [15, 0, 0, 0, 1, 0x73, 0x68, 0x6c, 0x74, 3, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    let mut frame = Vec::new();
    Request::Hello { version: 3, lane_of: 7 }.encode(&mut frame);
    assert_eq!(frame, hello);
    // A later version may say more after the part that stays.
    let later = [&hello[4..9], &[0xff, 0x7f, 1, 2, 3]].concat();
    assert_eq!(version_of_hello(&later), Some(0x7fff));
    assert_eq!(version_of_hello(&hello[4..10]), None, "half a version");
    assert_eq!(version_of_hello(&[1, 0, 0, 0, 0, 3, 0]), None, "another protocol");
    let refused = [9, 0, 0, 0, 0, 0, 0, 0, 10, 2, 0, b'n', b'o'];
    frame.clear();
    let answer = Answer::Refused { why: "no" };
    Reply {
        slabs: Vec::new(),
        answer,
    }
    .encode(&mut frame);
    assert_eq!(frame, refused);
}

#[test]
fn a_tag_is_sent_once_for_a_batch() {
    let object = Pinned {
        position: POSITION,
        version: 5,
        tag: &[7; 100],
    };
    let reply = Reply {
        slabs: Vec::new(),
        answer: Answer::Pinned {
            ticket: 1,
            objects: vec![Some(object); 1000],
        },
    };
    let mut frame = Vec::new();
    reply.encode(&mut frame);
    assert!(frame.len() < 1000 * 40, "{} bytes", frame.len());
}

#[test]
fn lists_and_bodies_have_a_longest_length() {
    let long = u32::try_from(FRAME_BYTES_MAX + 1).expect("a few MiB");
    let refused = body_len(long.to_le_bytes());
    assert!(matches!(refused, Err(WireError::TooLong { .. })), "{refused:?}");
    let mut frame = Vec::new();
    let tickets = vec![1; LIST_MAX + 1];
    Request::Unpin { tickets }.encode(&mut frame);
    let refused = Request::decode(body(&frame));
    assert!(matches!(refused, Err(WireError::BadField { .. })), "{refused:?}");
}

#[test]
fn a_count_that_the_bytes_can_not_hold_allocates_nothing() {
    // An Unpin that announces 4 billion tickets in 8 bytes.
    let lie = [3, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(Request::decode(&lie), Err(WireError::Truncated));
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_refused(bytes in vec(any::<u8>(), 0..200), kind in 0_u8..18) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(request) = Request::decode(&bytes) {
            let mut frame = Vec::new();
            request.encode(&mut frame);
            prop_assert_eq!(body(&frame), &bytes[..], "one way to write a message");
        }
        if let Ok(reply) = Reply::decode(&bytes) {
            let mut frame = Vec::new();
            reply.encode(&mut frame);
            prop_assert_eq!(Reply::decode(body(&frame)), Ok(reply));
        }
    }

    #[test]
    fn any_transfers_come_back(keys in vec(".{0,9}", 0..12), numbers in any::<[u64; 5]>(), tagged in any::<bool>()) {
        let [ticket, offset, len, object_len, from] = numbers;
        let to = Span { ticket, offset, len };
        let tag = tagged.then_some(b"f32 3".as_slice());
        let read = |key| Fetch { key, object_len, offset: from, to, tag, by_transport: tagged };
        there_and_back(&Request::Fetch { reads: keys.iter().map(|key| read(key.as_str())).collect() });
        let write = |(at, key)| Store { key, from: vec![to; at % 4], tag: b"f32 3" };
        there_and_back(&Request::Store { writes: keys.iter().map(String::as_str).enumerate().map(write).collect() });
    }

    #[test]
    fn any_pinned_objects_come_back(tags in vec(proptest::option::of(0_usize..3), 0..50), number in any::<u64>()) {
        let known: [&[u8]; 3] = [b"", b"f32", b"i64 3 4"];
        let object = |tag: usize| Pinned { position: Position { offset: number, ..POSITION }, version: number, tag: known[tag] };
        let objects = tags.into_iter().map(|tag| tag.map(object)).collect();
        and_back(&Reply { slabs: Vec::new(), answer: Answer::Pinned { ticket: number, objects } });
    }
}
