//! No memory for a call.

use crate::{ReadError, WriteError};
use tensorlease_memory::Pool;

/// What is told of it: what was asked, and what there is of the arena.
pub(crate) struct Exhausted {
    message: String,
    asked: u64,
    free: u64,
    largest: u64,
    held: u64,
}

impl Exhausted {
    pub(super) fn new(arena: &Pool, message: String, asked: u64) -> Self {
        let usage = arena.usage();
        Self {
            message,
            asked,
            free: usage.free_bytes,
            largest: usage.largest_free,
            held: usage.leased_bytes + usage.in_flight_bytes + usage.quarantined_bytes,
        }
    }
}

macro_rules! from_exhausted {
    ($($error:ident),+) => {
        $(impl From<Exhausted> for $error {
            fn from(exhausted: Exhausted) -> Self {
                let Exhausted { message, asked, free, largest, held } = exhausted;
                Self::ArenaExhausted { message, asked, free, largest, held }
            }
        })+
    };
}

from_exhausted!(ReadError, WriteError);
