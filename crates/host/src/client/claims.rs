//! What the engine of a client claims about itself.
use crate::wire::{Claims, LIST_MAX};
use tensorlease_engine::{Capabilities, Registration};

/// Most bytes of one call with more than one key. It bounds how long a call keeps its objects pinned.
const BATCH_BYTES_MAX: u64 = 1 << 30;
/// Two non-temporal copies nearly fill a memory bus. More than four threads bring nothing.
const READERS_WORTH: usize = 4;

/// Where the daemon has the objects itself.
pub(super) fn own_store() -> Capabilities {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Capabilities {
        name: "host",
        registration: Registration::Free,
        registration_bytes_max: u64::MAX,
        batch_keys_max: LIST_MAX,
        batch_bytes_max: BATCH_BYTES_MAX,
        readers_worth: cores.min(READERS_WORTH),
        large_read_bytes_min: 0,
        large_write_bytes_min: 0,
        evicts: false,
        others_make_room: true,
        describes: true,
        late_writes: false,
        prompt: false,
    }
}

/// Where an engine behind the daemon has the objects. Transfers go to extents and to nothing else, so memory has to be
/// registered. A transfer whose connection broke may still run in the daemon.
pub(super) fn behind(claims: &Claims<'_>) -> Capabilities {
    let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX).max(1);
    Capabilities {
        name: "host",
        registration: Registration::Required,
        registration_bytes_max: claims.registration_bytes_max,
        batch_keys_max: count(claims.batch_keys_max).min(LIST_MAX),
        batch_bytes_max: claims.batch_bytes_max,
        readers_worth: count(claims.readers_worth),
        large_read_bytes_min: claims.large_read_bytes_min,
        large_write_bytes_min: claims.large_write_bytes_min,
        evicts: claims.evicts,
        others_make_room: claims.others_make_room,
        describes: claims.describes,
        late_writes: true,
        prompt: false,
    }
}
