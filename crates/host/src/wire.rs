//! The messages between a client and the daemon, as bytes.
//!
//! A frame is a length (4 bytes, little endian) and that many bytes of body. A body is a kind (1 byte) and its fields.
//! Every count and length is checked against the bytes that are left before anything is allocated for it, so a body of
//! n bytes allocates at most a small multiple of n. A body that does not decode to its last byte is refused. Addresses
//! never cross: memory is named by [`Position`]. `tests/golden` has the bytes of each message. A change of them needs
//! another [`VERSION`].
mod field;
mod frame;
mod relay;
mod reply;
mod report;
mod request;

pub(crate) use field::{KEY_BYTES_MAX, TAG_BYTES_MAX, beginning};
pub use field::{LIST_MAX, Position, WireError};
pub use frame::{FRAME_BYTES_MAX, LENGTH_BYTES, VERSION, body_len};
pub(crate) use relay::FAILURE_BYTES_MAX;
pub use relay::{Claims, Described, Failure, Fetch, Span, Store};
pub use reply::{Answer, NewSlab, Pinned, Reply, Reservation};
pub use report::{ClientRow, NamespaceRow, Report, StoreCounts};
pub use request::{Commit, Request, version_of_hello};
