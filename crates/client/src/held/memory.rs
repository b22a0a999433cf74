//! The memory of one store.

use super::{exhausted::Exhausted, quarantine::Quarantine, registrations::Registrations};
use crate::{accounts::Accounts, calls::Calls, life::Life, stats::Stats};
use std::{
    fmt::Display,
    sync::{Arc, atomic::AtomicBool},
};
use tensorlease_arena::Budget;
use tensorlease_memory::{Pool, Region, has_room};

/// What a read or write keeps for each of its keys while it runs, at most.
const BOOK_BYTES_PER_KEY: usize = 1 << 10;
/// Less is not looked for: it costs more than it is worth.
const BOOK_BYTES_CHECKED: usize = 4 << 20;

/// Its two pools, what of them is registered, and what may still be written.
pub(crate) struct Memory {
    /// Both hold the engine, which is let go before the memory is unmapped: fields are dropped in this order.
    pub(super) calls: Arc<Calls>,
    pub(super) registrations: Arc<Registrations>,
    /// Memory registered with the engine.
    pub(super) arena: Pool,
    /// Recycled memory for copies, never registered.
    pub(super) copies: Pool,
    pub(super) quarantine: Arc<Quarantine>,
    quarantine_bytes_max: u64,
    /// The arena's memory is the engine's, and others need it too.
    lends_slabs: bool,
    /// The last wait for a staging block was in vain: the next one is short, until there is one again.
    pub(super) staging_starved: AtomicBool,
    pub(super) accounts: Arc<Accounts>,
    pub(super) life: Arc<Life>,
}

impl Memory {
    pub(crate) fn new(
        (arena, copies): (Pool, Pool),
        quarantine_bytes_max: u64,
        calls: &Arc<Calls>,
        accounts: &Arc<Accounts>,
        life: &Arc<Life>,
    ) -> Self {
        let quarantine = Quarantine::new(arena.clone(), copies.clone(), Arc::clone(accounts));
        Self {
            arena,
            copies,
            registrations: Arc::new(Registrations::new(Arc::clone(calls), Arc::clone(accounts))),
            quarantine: Arc::new(quarantine),
            quarantine_bytes_max,
            lends_slabs: calls.engine().slabs().is_some(),
            staging_starved: AtomicBool::new(false),
            calls: Arc::clone(calls),
            accounts: Arc::clone(accounts),
            life: Arc::clone(life),
        }
    }

    pub(crate) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    pub(crate) fn quarantine(&self) -> &Arc<Quarantine> {
        &self.quarantine
    }

    pub(crate) fn budget(&self) -> Budget {
        self.arena.budget()
    }

    /// Does this memory lie in one live block of the arena?
    pub(crate) fn owns(&self, region: Region) -> bool {
        self.arena.contains(region)
    }

    /// Is the arena's memory the engine's, which others need too?
    pub(crate) fn lends_slabs(&self) -> bool {
        self.lends_slabs
    }

    /// Bytes that may still be written by transfers whose call is over.
    pub(crate) fn quarantined_bytes(&self) -> u64 {
        self.quarantine.bytes() + self.calls.engine().late_bytes()
    }

    /// Past its bound the quarantine ends reads and writes, with the way out.
    pub(crate) fn check_quarantine(&self) -> Result<(), Exhausted> {
        if !self.quarantine.was_used() {
            return Ok(());
        }
        let (held, max) = (self.quarantined_bytes(), self.quarantine_bytes_max);
        if held <= max {
            return Ok(());
        }
        let message = format!(
            "{held} bytes are quarantined because transfers that timed out may still use them, more than quarantine_bytes={max}; close this store and open a new one"
        );
        Err(self.exhausted(message, 0))
    }

    /// Before a call begins: the quarantine is within its bound, and there is memory for the books of so many keys.
    pub(crate) fn check_means(&self, keys: usize) -> Result<(), Exhausted> {
        self.check_quarantine()?;
        let bytes = keys.saturating_mul(BOOK_BYTES_PER_KEY);
        if bytes < BOOK_BYTES_CHECKED || has_room(bytes) {
            return Ok(());
        }
        let message = format!(
            "no memory for the books of a call with {keys} keys, about {bytes} bytes; free memory of this machine, or ask for fewer keys at once"
        );
        Err(self.exhausted(message, bytes as u64))
    }

    /// No memory, with what there is of the arena.
    pub(crate) fn exhausted(&self, message: String, asked: u64) -> Exhausted {
        Exhausted::new(&self.arena, message, asked)
    }

    /// The system gave no memory at all.
    pub(crate) fn no_memory(&self, asked: u64, error: &dyn Display) -> Exhausted {
        let message = format!(
            "no memory for {asked} bytes to land in: {error}; free memory of this machine, or read less at once"
        );
        self.exhausted(message, asked)
    }

    /// No more blocks from here on.
    pub(crate) fn close(&self) {
        self.arena.close();
        self.copies.close();
    }

    /// Is a slab being made? It is registered by a thread of its own.
    pub(crate) fn is_growing(&self) -> bool {
        self.arena.is_growing() || self.copies.is_growing()
    }

    pub(crate) fn is_arena_growing(&self) -> bool {
        self.arena.is_growing()
    }

    /// The engine has closed: nothing writes any more, and nothing is registered.
    pub(crate) fn engine_closed(&self) {
        self.quarantine.end();
        // With the engine every registration has ended, also of memory that a running call held.
        self.registrations.end();
        // Slabs without a block go now, not when the last handle of the store does: a host's are for its other processes.
        drop((self.arena.take_empty_slabs(), self.copies.take_empty_slabs()));
    }

    pub(crate) fn report(&self, stats: &mut Stats) {
        let (arena, copies) = (self.arena.usage(), self.copies.usage());
        stats.push("arena_bytes", arena.arena_bytes);
        stats.push("leased_bytes", arena.leased_bytes);
        stats.push("in_flight_bytes", arena.in_flight_bytes);
        stats.push("quarantined_bytes", self.quarantined_bytes());
        stats.push("free_bytes", arena.free_bytes);
        stats.push("pinned_bytes", self.registrations.pinned_bytes());
        stats.push("copy_cache_bytes", copies.arena_bytes);
        stats.push("copy_cache_held_bytes", copies.leased_bytes + copies.in_flight_bytes);
    }
}
