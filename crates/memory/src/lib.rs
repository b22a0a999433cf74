//! Memory of tensorlease: mappings, leases, copies, pinning.
//!
//! Slabs are mapped, populated and cut into blocks here; which block is free is decided by the pure bookkeeping of
//! `tensorlease-arena`. This crate is where the project's `unsafe` stands; each module that has some says so below.
//!
//! # Why it is sound
//!
//! 1. **Raw while in flight.** Bytes that a transfer may touch are never seen through a Rust reference. [`Target`] and
//!    [`Source`] are an address, a length and the lifetime of the owner; only [`copy`] and engines touch the bytes.
//! 2. **References only to exclusive bytes.** `&[u8]` and `&mut [u8]` exist for [`Lease`] and [`Buffer`] alone. They are
//!    made by consuming the [`InFlight`] (or the other owner) whose targets borrowed it, so no safe target is left, and
//!    the arena hands out blocks that don't overlap, each once until it comes back.
//! 3. **Memory outlives its users.** Every block holds its slab, every slab its mapping: the pool, the store and the
//!    engine may be gone while a lease is read.
//! 4. **Quarantined memory is never unmapped** by this crate: slabs that still hold quarantined blocks when their pool
//!    goes are kept for good, because an abandoned transfer may still write them.
//!
//! Two targets may name the same bytes, like two writers of one file: with two copies at once the bytes are a mixture.
//! Nothing reads them through a reference meanwhile (rule 1). That an engine call gets disjoint targets is the client's
//! duty, and the engine contract's.
#![deny(unsafe_code)]
#![allow(clippy::len_without_is_empty, reason = "hardly any memory is made without bytes")]

#[allow(unsafe_code)]
mod span;

#[allow(unsafe_code)]
mod caller_memory;
#[allow(unsafe_code)]
mod heap;
#[allow(unsafe_code)]
mod mapping;

#[allow(unsafe_code)]
mod buffer;
#[allow(unsafe_code)]
mod copy;
mod landing;
#[allow(unsafe_code)]
mod lease;
#[allow(unsafe_code)]
mod slab;

mod books;
pub mod descriptor;
mod growing;
mod growth;
mod leased_blocks;
mod parts;
mod pool;
mod region_map;
mod return_list;
mod slab_source;
mod sync;
mod view;

#[allow(unsafe_code)]
pub mod fork;
pub mod limits;
#[allow(unsafe_code)]
pub mod pin;
#[allow(unsafe_code)]
mod poison;
#[allow(unsafe_code)]
pub mod process;

pub use buffer::Buffer;
pub use caller_memory::CallerMemory;
pub use copy::{CopyMode, NON_TEMPORAL_BYTES_MIN, copy, copy_all};
pub use fork::ForkPolicy;
pub use growing::{GrowError, Growth, lock};
pub use growth::{Grown, SlabKeeper, Ungrown, Unregistered};
pub use heap::{HeapBytes, has_room};
pub use landing::{Landing, into_buffers, into_whole_buffers};
pub use lease::{InFlight, Lease};
pub use mapping::{MEMORY_FILE, MapError, Mapping, MappingKind};
pub use parts::lay_out;
pub use pool::{Admission, Pool, SlabReservation};
pub use region_map::RegionMap;
pub use return_list::ReturnList;
pub use slab_source::{NoSlab, SealedSlabs, SlabMemory, SlabSource};
pub use span::{Region, Source, Target};
pub use view::{View, ViewKeeper};
