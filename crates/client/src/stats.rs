//! Counters of one store.

use crate::FallbackKind;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// What a store has done and holds: flat, numbers only, units in the names. `docs/stats.md` explains each.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Name and value; whole numbers except the names that end in `_seconds`.
    pub values: Vec<(&'static str, f64)>,
}

impl Stats {
    /// Value of one counter, 0 for a name there is none of.
    #[must_use]
    pub fn get(&self, name: &str) -> f64 {
        self.values
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(0.0, |(_, value)| *value)
    }

    #[allow(clippy::cast_precision_loss, reason = "bytes and calls stay below 2^53")]
    pub(crate) fn push(&mut self, name: &'static str, value: u64) {
        self.values.push((name, value as f64));
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Monotonic counts since open.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $($(#[$doc])* pub(crate) $name: Counter),+ }
        impl Counters {
            pub(crate) fn report(&self, stats: &mut Stats) {
                $(stats.push(stringify!($name), self.$name.get());)+
                // The older name stays beside it for one version.
                stats.push("register_calls_per_read", self.hot_path_register_calls.get());
            }
        }
    };
}

counters! {
    /// `register` calls made on the engine by this store.
    register_calls,
    /// Bytes of those.
    registered_bytes,
    /// Registrations of the read and write paths, not of slabs: 0 while the pooled path serves all.
    hot_path_register_calls,
    /// Values delivered in the arena.
    leased_reads,
    /// Values delivered as copies.
    copied_reads,
    /// Values read where the engine keeps them.
    viewed_reads,
    /// Values read into memory registered for the call.
    registered_reads,
    /// Values that could not be delivered the way that was asked.
    fallback_reads,
    /// Fallbacks because the budget was used up.
    fallback_budget,
    /// Fallbacks because the host's daemon had no memory for another slab.
    fallback_host_full,
    /// Fallbacks because a value can't fit into the budget at all.
    fallback_too_large,
    /// Fallbacks because the engine refused to register a slab.
    fallback_slab_not_registered,
    /// Fallbacks because a slab could not be mapped.
    fallback_slab_not_mapped,
    /// Fallbacks because no bounce block came free in time.
    fallback_bounce_busy,
    /// Copies that landed in fresh memory because the recycled memory was used up.
    fallback_copy_cache,
    /// Values larger than the engine lends for one transfer, read into memory registered for the call.
    fallback_loan_too_large,
    /// Values that the engine lent nothing for, read likewise.
    fallback_no_loan,
    /// Loans of the engine's own memory (`pool=store`).
    loans,
    /// Of those, loans that the engine allocated and registered on their own.
    overflow_loans,
    /// Writes that went from registered memory as they lay.
    in_place_writes,
    /// Writes through a staging block.
    staged_writes,
    /// Writes from memory registered for the call.
    fallback_writes,
    /// Bytes copied by the client, not by the engine.
    copied_bytes,
    /// Bytes delivered.
    read_bytes,
    /// Bytes stored.
    written_bytes,
    /// Values asked for.
    read_keys,
    /// Values stored.
    written_keys,
    /// Tries after the first, in keys.
    retries,
    /// Values fetched once for a key asked for again in the same read.
    duplicate_keys,
    /// Calls that gave up before the engine returned.
    abandoned_calls,
    /// Slabs made.
    slabs_made,
    /// Of those, slabs made in place of empty ones that were given up.
    slabs_rebuilt,
    /// Keys whose memory went to quarantine.
    quarantines,
    /// Read calls on the engine.
    engine_read_calls,
    /// Write calls on the engine.
    engine_write_calls,
    /// Log lines suppressed because the same warning had been given.
    warnings_suppressed,
}

impl Counters {
    /// The counter of one kind of fallback.
    pub(crate) fn fallback(&self, kind: FallbackKind) -> &Counter {
        match kind {
            FallbackKind::Budget => &self.fallback_budget,
            FallbackKind::HostFull => &self.fallback_host_full,
            FallbackKind::TooLarge => &self.fallback_too_large,
            FallbackKind::SlabNotRegistered => &self.fallback_slab_not_registered,
            FallbackKind::SlabNotMapped => &self.fallback_slab_not_mapped,
            FallbackKind::BounceBusy => &self.fallback_bounce_busy,
            FallbackKind::CopyCache => &self.fallback_copy_cache,
            FallbackKind::LoanTooLarge => &self.fallback_loan_too_large,
            FallbackKind::NoLoan => &self.fallback_no_loan,
            FallbackKind::LoanOverflow => &self.overflow_loans,
        }
    }
}

/// One number that several threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, value: u64) {
        self.0.fetch_add(value, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Where the time of reads goes, summed over threads.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    pub(crate) plan: Stage,
    pub(crate) register: Stage,
    pub(crate) transfer: Stage,
    pub(crate) copy: Stage,
    pub(crate) wrap: Stage,
}

/// Time of one stage.
#[derive(Debug, Default)]
pub(crate) struct Stage(AtomicU64);

impl Stage {
    pub(crate) fn add(&self, elapsed: Duration) {
        self.0
            .fetch_add(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add(start.elapsed());
        result
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "nanoseconds stay below 2^53 for a hundred days"
    )]
    fn seconds(&self) -> f64 {
        self.0.load(Relaxed) as f64 / 1e9
    }
}

impl Stages {
    pub(crate) fn report(&self, stats: &mut Stats) {
        stats.values.extend([
            ("plan_seconds", self.plan.seconds()),
            ("register_seconds", self.register.seconds()),
            ("transfer_seconds", self.transfer.seconds()),
            ("copy_seconds", self.copy.seconds()),
            ("wrap_seconds", self.wrap.seconds()),
        ]);
    }
}
