//! The messages between a client and the daemon, as bytes.
//!
//! A frame is a length (4 bytes, little endian) and that many bytes of body; a body is a kind (1 byte) and its fields. Every count and length is
//! checked against the bytes that are left before anything is allocated for it, so that a body of n bytes never makes more than a small multiple of
//! n. What does not decode to the last byte is refused. No address ever crosses: memory is named by [`Position`].
mod field;
mod relay;
mod reply;
mod request;

pub use field::WireError;
pub use relay::{Claims, FAILURE_BYTES_MAX, Failure, Fetch, Known, Span, Store};
pub use reply::{Answer, ClientRow, Described, NamespaceRow, NewSlab, Pinned, Reply, Report, Reservation, StoreCounts};
pub use request::{Commit, Request, version_of_hello};

/// Version of the protocol; both sides must speak the same. Three things are the same in every version, so that two
/// versions can tell each other that they differ: the frame, `Hello` as it is, and `Refused` as it is.
pub const VERSION: u16 = 5;
/// First field of the first message: what speaks here is no other protocol that found the socket.
pub const MAGIC: u32 = 0x746c_6873;
/// Longest body, bytes. A client cuts its batches so that no message is longer.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// Bytes of the length in front of a body.
pub const LENGTH_BYTES: usize = 4;
/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Longest tag, bytes.
pub const TAG_BYTES_MAX: usize = 1024;
/// Most keys, tickets or blocks in one list of a request: bounds the answer too.
pub const LIST_MAX: usize = 1024;

/// Memory of the daemon's arena. The generation tells the present owner of these bytes from those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Number of the slab.
    pub slab: u32,
    /// First byte, from the slab's beginning.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// Generation of the block.
    pub generation: u32,
}

/// Appends one frame: its length, and the body that `write` appends.
fn frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
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
