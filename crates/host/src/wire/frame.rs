//! The frame of each message, and the version of the protocol.
use super::field::WireError;

/// Version of the protocol. Both sides must speak the same. A change of any message's bytes needs another version (see
/// `tests/golden.rs`). The frame, `Hello` and `Refused` are the same in every version, so that two versions can tell
/// each other that they differ.
pub const VERSION: u16 = 6;
/// First field of the first message. Another protocol that found the socket has other bytes there.
pub(super) const MAGIC: u32 = 0x746c_6873;
/// Longest body, bytes. A client cuts its batches so that no message is longer.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// Bytes of the length in front of a body.
pub const LENGTH_BYTES: usize = 4;
/// Appends one frame: its length, and the body that `write` appends.
pub(super) fn frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    write(out);
    let len = u32::try_from(out.len() - start - LENGTH_BYTES).unwrap_or(u32::MAX);
    out[start..start + LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
}

/// Length of the body that follows these bytes.
///
/// # Errors
/// [`WireError::TooLong`] for a body that nobody may send.
pub fn body_len(length: [u8; LENGTH_BYTES]) -> Result<usize, WireError> {
    let len = u32::from_le_bytes(length) as usize;
    if FRAME_BYTES_MAX < len {
        return Err(WireError::TooLong { len });
    }
    Ok(len)
}
