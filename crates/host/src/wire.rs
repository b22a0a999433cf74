//! The messages between a client and the daemon, as bytes.
//!
//! A frame is a length (4 bytes, little endian) and that many bytes of body; a body is a kind (1 byte) and its fields. Every count and length is
//! checked against the bytes that are left before anything is allocated for it, so that a body of n bytes never makes more than a small multiple of
//! n. What does not decode to the last byte is refused. No address ever crosses: memory is named by [`Position`].
mod field;
mod frame;
mod relay;
mod reply;
mod report;
mod request;

pub(crate) use field::beginning;
pub use field::{KEY_BYTES_MAX, LIST_MAX, Position, TAG_BYTES_MAX, WireError};
pub use frame::{FRAME_BYTES_MAX, LENGTH_BYTES, MAGIC, VERSION, body_len};
pub use relay::{Claims, Described, FAILURE_BYTES_MAX, Failure, Fetch, Span, Store};
pub use reply::{Answer, NewSlab, Pinned, Reply, Reservation};
pub use report::{ClientRow, NamespaceRow, Report, StoreCounts};
pub use request::{Commit, Request, version_of_hello};
