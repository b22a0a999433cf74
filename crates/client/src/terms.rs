//! What reads and writes plan by: limits of the engine and of the store's memory, as plain numbers.

use tensorlease_arena::plan::GroupLimits;

/// Constant while a call runs.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Must memory be registered before the engine transfers to it?
    pub(crate) registers: bool,
    /// Most bytes of one registration.
    pub(crate) registration_bytes_max: u64,
    /// A slab is registered in pieces of this length, bytes; `u64::MAX` where nothing is registered.
    pub(crate) piece_bytes: u64,
    /// Most bytes of one staged transfer.
    pub(crate) staged_bytes_max: u64,
    /// Most bytes of one round through the bounce reserve.
    pub(crate) round_bytes: u64,
    /// What one engine call takes.
    pub(crate) call: GroupLimits,
    /// The least that a read call of large objects is worth cutting to, bytes.
    pub(crate) large_read_bytes_min: u64,
    /// The least that a write call of large objects is worth cutting to, bytes.
    pub(crate) large_write_bytes_min: u64,
    /// Threads that run engine calls.
    pub(crate) workers: usize,
    /// Is copying into fresh memory cheaper than registering fresh memory for one transfer?
    pub(crate) copy_is_cheaper: bool,
    /// Tries after the first, for faults that pass.
    pub(crate) retries: u32,
}

impl Terms {
    /// What one registration takes; the calls into it are cut on their own.
    pub(crate) fn registered_limits(&self) -> GroupLimits {
        GroupLimits {
            keys_max: usize::MAX,
            bytes_max: self.registration_bytes_max,
        }
    }
}

/// What tests plan by: an engine that needs registrations, rounds of 64 KiB, two workers.
#[cfg(test)]
pub(crate) fn terms() -> Terms {
    Terms {
        registers: true,
        registration_bytes_max: 1 << 40,
        piece_bytes: 1 << 40,
        staged_bytes_max: 64 << 10,
        round_bytes: 64 << 10,
        call: GroupLimits {
            keys_max: 100,
            bytes_max: 1 << 40,
        },
        large_read_bytes_min: 0,
        large_write_bytes_min: 0,
        workers: 2,
        copy_is_cheaper: true,
        retries: 3,
    }
}
