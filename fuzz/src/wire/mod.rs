//! What holds for any bytes that come over the host's socket.

use tensorlease_host::wire::{LENGTH_BYTES, Reply, Request};

/// Decodes the bytes as both kinds of message. What decodes is written as it was, or reads the same again; returns how many did.
pub fn replay(body: &[u8]) -> usize {
    let mut decoded = 0;
    if let Ok(request) = Request::decode(body) {
        let mut frame = Vec::new();
        request.encode(&mut frame);
        assert_eq!(&frame[LENGTH_BYTES..], body, "a request is written in one way");
        decoded += 1;
    }
    if let Ok(reply) = Reply::decode(body) {
        let mut frame = Vec::new();
        reply.encode(&mut frame);
        assert_eq!(
            Reply::decode(&frame[LENGTH_BYTES..]).as_ref(),
            Ok(&reply),
            "a reply reads the same again"
        );
        decoded += 1;
    }
    decoded
}
