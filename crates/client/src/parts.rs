//! What all calls of one store share.

use crate::{
    CallError, Delivery, FallbackKind, Options, ReadError, WriteError,
    costs::Costs,
    held::slabs::Refused,
    patience::lock,
    stats::{Counters, Stages, Stats},
    warnings::Warnings,
    workers::Readers,
};
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};
use tensorlease_engine::{Capabilities, Engine, Registration, Staging};
use tensorlease_memory::{Buffer, Landing, Pool, Region, fork, has_room, limits};

/// Engine calls that may hang without a caller before the store says that the engine is gone.
pub(crate) const ABANDONED_CALLS_MAX: usize = 16;

/// What a read or write keeps for each of its keys while it runs, at most.
const BOOK_BYTES_PER_KEY: usize = 1 << 10;
/// Less is not looked for: it costs more than it is worth.
const BOOK_BYTES_CHECKED: usize = 4 << 20;

/// Shared by every handle of a store and by its running jobs.
pub(crate) struct Core {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) capabilities: Capabilities,
    pub(crate) options: Options,
    pub(crate) url: String,
    /// Memory registered with the engine.
    pub(crate) arena: Pool,
    /// Recycled memory for copies, never registered.
    pub(crate) copies: Pool,
    /// The arena's memory is the engine's, and others need it too.
    pub(crate) lends_slabs: bool,
    pub(crate) readers: Readers,
    pub(crate) counters: Counters,
    pub(crate) stages: Stages,
    pub(crate) costs: Costs,
    pub(crate) warnings: Warnings,
    /// The last wait for a staging block was in vain: the next one is short, until there is one again.
    pub(crate) staging_starved: AtomicBool,
    /// Memory outside the pools that a transfer may still write, kept until the engine is closed.
    quarantine: Mutex<Vec<Landing>>,
    /// Buffers of the caller that a write may still read, kept likewise.
    quarantined_buffers: Mutex<Vec<Arc<Buffer>>>,
    /// Addresses of the slabs registered with the engine.
    pub(crate) registered: Mutex<HashSet<(usize, usize)>>,
    /// Nothing is written any more: what a call that ends now would quarantine is free at once.
    engine_closed: AtomicBool,
    fork_generation: u64,
    /// `closed` and `calls` are SeqCst throughout: a call counts itself and then looks whether the store is closed, `close` does it the other
    /// way round, and one of the two must see the other.
    closed: AtomicBool,
    /// Calls inside the store now.
    calls: AtomicUsize,
}

impl Core {
    pub(crate) fn new(engine: Arc<dyn Engine>, options: Options, url: String, arena: Pool, copies: Pool) -> Self {
        let mut capabilities = engine.capabilities().clone();
        // Memory is mapped, and so registered, in whole pages.
        let page = limits::page_bytes() as u64;
        if page <= capabilities.registration_bytes_max {
            capabilities.registration_bytes_max -= capabilities.registration_bytes_max % page;
        }
        let readers = (options.readers as usize).min(capabilities.readers_worth.max(1));
        Self {
            lends_slabs: engine.slabs().is_some(),
            engine,
            capabilities,
            options,
            url,
            arena,
            copies,
            readers: Readers::new(readers),
            counters: Counters::default(),
            stages: Stages::default(),
            costs: Costs::default(),
            warnings: Warnings::default(),
            staging_starved: AtomicBool::new(false),
            quarantine: Mutex::default(),
            quarantined_buffers: Mutex::default(),
            registered: Mutex::default(),
            engine_closed: AtomicBool::new(false),
            fork_generation: fork::generation(),
            closed: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
        }
    }

    /// Must memory be registered before the engine transfers to it?
    pub(crate) fn registers(&self) -> bool {
        self.capabilities.registration == Registration::Required
    }

    /// Memory of the engine's own that copied reads go through, where it lends any.
    pub(crate) fn lends(&self) -> Option<&dyn Staging> {
        self.engine.staging()
    }

    /// Is this process a child of the one that opened the store?
    pub(crate) fn forked(&self) -> bool {
        fork::generation() != self.fork_generation
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Marks the store closed; `true` the first time.
    pub(crate) fn set_closed(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    /// Every call starts here; the guard ends it.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Entered, CallError> {
        if self.forked() {
            return Err(CallError::Forked);
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        let entered = Entered { core: Arc::clone(self) };
        if self.is_closed() {
            return Err(CallError::Closed);
        }
        let hanging = self.readers.abandoned();
        if ABANDONED_CALLS_MAX <= hanging {
            let name = self.capabilities.name;
            return Err(CallError::Unavailable {
                message: format!(
                    "{hanging} calls on the {name} engine hang; see whether it is alive, close this store and open a new one"
                ),
            });
        }
        Ok(entered)
    }

    pub(crate) fn calls_running(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Takes memory that a transfer may still write out of circulation until the engine is closed.
    pub(crate) fn quarantine(&self, landing: Landing) {
        self.counters.quarantines.add(1);
        match landing {
            Landing::Block(block) => self.pool_of(block.region()).quarantine(block),
            other => lock(&self.quarantine).push(other),
        }
        self.free_if_closed();
    }

    /// The pool that a block came from: where nothing is registered, transfers write the copy cache directly.
    fn pool_of(&self, block: Region) -> &Pool {
        if self.copies.regions().iter().any(|slab| slab.contains(block)) {
            &self.copies
        } else {
            &self.arena
        }
    }

    /// Keeps a buffer that a write may still read until the engine is closed.
    pub(crate) fn quarantine_buffer(&self, buffer: Arc<Buffer>) {
        self.counters.quarantines.add(1);
        lock(&self.quarantined_buffers).push(buffer);
        self.free_if_closed();
    }

    /// After something was quarantined: whoever ended the quarantine meanwhile may have missed it.
    fn free_if_closed(&self) {
        if self.engine_closed.load(Ordering::Acquire) {
            self.end_quarantine();
        }
    }

    /// Bytes that may still be written by transfers that nobody waits for.
    pub(crate) fn quarantined_bytes(&self) -> u64 {
        self.quarantined_outside_bytes() + self.arena.usage().quarantined_bytes
    }

    fn quarantined_outside_bytes(&self) -> u64 {
        let landings: u64 = lock(&self.quarantine).iter().map(|landing| landing.len() as u64).sum();
        let buffers: u64 = lock(&self.quarantined_buffers)
            .iter()
            .map(|buffer| buffer.len() as u64)
            .sum();
        landings + buffers + self.copies.usage().quarantined_bytes + self.engine.late_bytes()
    }

    pub(crate) fn quarantine_bytes_max(&self) -> u64 {
        self.options.quarantine_bytes.unwrap_or(self.options.max_bytes)
    }

    /// Past its bound the quarantine ends reads and writes, with the way out.
    pub(crate) fn check_quarantine(&self) -> Result<(), Exhausted> {
        if self.counters.quarantines.get() == 0 {
            return Ok(());
        }
        let (held, max) = (self.quarantined_bytes(), self.quarantine_bytes_max());
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
        let usage = self.arena.usage();
        Exhausted {
            message,
            asked,
            free: usage.free_bytes,
            largest: usage.largest_free,
            held: usage.leased_bytes + usage.in_flight_bytes + usage.quarantined_bytes,
        }
    }

    /// The engine is closed: nothing writes any more.
    pub(crate) fn end_quarantine(&self) {
        // First: what comes into quarantine from here on is freed by whoever brings it.
        self.engine_closed.store(true, Ordering::Release);
        self.arena.end_quarantine();
        self.copies.end_quarantine();
        // Invariant 8: they are dropped outside the locks, for their owners may take the GIL.
        let landings = std::mem::take(&mut *lock(&self.quarantine));
        let buffers = std::mem::take(&mut *lock(&self.quarantined_buffers));
        drop((landings, buffers));
    }

    /// The store's default where a read says nothing.
    pub(crate) fn delivery(&self, asked: Option<Delivery>) -> Delivery {
        asked.unwrap_or(self.options.delivery)
    }

    /// Counts a fallback of `keys` values and warns once per kind. Under `strict` it is the caller's to refuse first.
    pub(crate) fn count_fallback(&self, kind: FallbackKind, keys: u64) {
        self.counters.fallback_reads.add(keys);
        self.count_reason(kind, keys);
    }

    /// The same for values that the arena refused, with the cause in the warning where there is one.
    pub(crate) fn count_refused(&self, refused: &Refused, keys: u64) {
        self.counters.fallback_reads.add(keys);
        self.count_reason_of(refused, refused.kind, keys);
    }

    /// The reason alone, told as `kind`.
    pub(crate) fn count_reason_of(&self, refused: &Refused, kind: FallbackKind, keys: u64) {
        self.count(kind, keys, refused.cause().as_deref());
    }

    /// The reason alone, of values whose fallback is counted already.
    pub(crate) fn count_reason(&self, kind: FallbackKind, keys: u64) {
        self.count(kind, keys, None);
    }

    /// The same, with the engine's own words in the warning.
    pub(crate) fn count(&self, kind: FallbackKind, keys: u64, cause: Option<&str>) {
        let counter = match kind {
            FallbackKind::Budget => &self.counters.fallback_budget,
            FallbackKind::HostFull => &self.counters.fallback_host_full,
            FallbackKind::TooLarge => &self.counters.fallback_too_large,
            FallbackKind::SlabNotRegistered => &self.counters.fallback_slab_not_registered,
            FallbackKind::SlabNotMapped => &self.counters.fallback_slab_not_mapped,
            FallbackKind::BounceBusy => &self.counters.fallback_bounce_busy,
            FallbackKind::CopyCache => &self.counters.fallback_copy_cache,
            FallbackKind::LoanTooLarge => &self.counters.fallback_loan_too_large,
            FallbackKind::NoLoan => &self.counters.fallback_no_loan,
            FallbackKind::LoanOverflow => &self.counters.overflow_loans,
        };
        counter.add(keys);
        let text = || match cause {
            None => format!("{keys} values leave the fast path: {}", kind.words()),
            Some(cause) => format!("{keys} values leave the fast path: {} ({cause})", kind.words()),
        };
        if !self.warnings.once(kind, text) {
            self.counters.warnings_suppressed.add(1);
        }
    }

    /// Bytes of slabs that are registered now with an engine that needs it: their pages can't move, and a fork copies them.
    fn pinned_bytes(&self) -> u64 {
        if !self.registers() {
            return 0;
        }
        lock(&self.registered).iter().map(|(_, len)| *len as u64).sum()
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        if self.forked() {
            // A lock may have been held when this child was forked, by a thread that is not here to release it.
            return stats;
        }
        let (arena, copies) = (self.arena.usage(), self.copies.usage());
        stats.push("arena_bytes", arena.arena_bytes);
        stats.push("leased_bytes", arena.leased_bytes);
        stats.push("in_flight_bytes", arena.in_flight_bytes);
        stats.push(
            "quarantined_bytes",
            arena.quarantined_bytes + self.quarantined_outside_bytes(),
        );
        stats.push("free_bytes", arena.free_bytes);
        stats.push("pinned_bytes", self.pinned_bytes());
        stats.push("copy_cache_bytes", copies.arena_bytes);
        stats.push("copy_cache_held_bytes", copies.leased_bytes + copies.in_flight_bytes);
        stats.push("running_calls", self.calls_running() as u64);
        stats.push("abandoned_running_calls", self.readers.abandoned() as u64);
        stats.push("local_reads", self.engine.local_reads());
        self.counters.report(&mut stats);
        self.stages.report(&mut stats);
        stats
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Empty once the engine has closed. Where it has not, a transfer may still write these: they are never given back.
        std::mem::forget(std::mem::take(&mut *lock(&self.quarantine)));
        std::mem::forget(std::mem::take(&mut *lock(&self.quarantined_buffers)));
    }
}

/// No memory for a call.
pub(crate) struct Exhausted {
    message: String,
    asked: u64,
    free: u64,
    largest: u64,
    held: u64,
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

/// One call inside the store; `close` waits for them.
pub(crate) struct Entered {
    core: Arc<Core>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.core.calls.fetch_sub(1, Ordering::SeqCst);
    }
}
