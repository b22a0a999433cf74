//! What a copy and a registration cost here, measured once at open.

use crate::{parts::Core, patience::Wait};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use tensorlease_memory::{CopyMode, Mapping, MappingKind, copy};

/// Large enough that fixed costs don't dominate, small enough to cost a few milliseconds.
const PROBE_BYTES: usize = 4 << 20;
/// Probes of each kind.
const PROBES: usize = 3;

/// Time per [`PROBE_BYTES`], ns; 0 while not measured.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    copy_into_fresh: AtomicU64,
    register_fresh: AtomicU64,
}

impl Costs {
    /// Is copying into fresh memory cheaper than registering fresh memory for one transfer?
    pub(crate) fn copy_is_cheaper(&self) -> bool {
        self.copy_into_fresh.load(Relaxed) <= self.register_fresh.load(Relaxed)
    }
}

impl Core {
    /// Measures both, at open. An engine that refuses the probe leaves the copy as the way to go; so does one with slabs of its own, which reaches
    /// no other memory without a copy, whatever registering it costs.
    pub(crate) fn measure_costs(self: &Arc<Self>, wait: &Wait<'_>) {
        if self.lends_slabs {
            return;
        }
        if !self.registers() || self.capabilities.registration_bytes_max < PROBE_BYTES as u64 {
            return;
        }
        // On a thread of its own, like every registration that an open waits for: the engine may take its time, or hang.
        let (core, (sender, measured)) = (Arc::clone(self), mpsc::channel::<()>());
        let measure = move || {
            core.measure();
            drop(sender);
        };
        let thread = thread::Builder::new().name("tensorlease-costs".to_owned());
        if let Err(error) = thread.spawn(measure) {
            log::debug!("what a copy and a registration cost is not measured: {error}");
            return;
        }
        while let Ok(slice) = wait.slice() {
            if measured.recv_timeout(slice) != Err(mpsc::RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn measure(&self) {
        // The best of several: one probe that the scheduler interrupts must not decide for the store's whole life.
        let best = |probe: fn(&Self) -> Option<Duration>| (0..PROBES).filter_map(|_| probe(self)).min();
        if let (Some(copied), Some(registered)) = (best(Self::time_copy), best(Self::time_registration)) {
            let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            self.costs.copy_into_fresh.store(nanoseconds(copied), Relaxed);
            self.costs.register_fresh.store(nanoseconds(registered), Relaxed);
            log::debug!("4 MiB of fresh memory: copy {copied:?}, registration {registered:?}");
        }
    }

    fn time_copy(&self) -> Option<Duration> {
        let source = Mapping::new(MappingKind::Anonymous, PROBE_BYTES).ok()?;
        source.populate().ok()?;
        let start = Instant::now();
        let fresh = Mapping::new(MappingKind::Anonymous, PROBE_BYTES).ok()?;
        fresh.prefault(0..PROBE_BYTES);
        copy(
            source.source(0..PROBE_BYTES),
            &fresh.target(0..PROBE_BYTES),
            CopyMode::Cached,
        );
        drop(fresh);
        Some(start.elapsed())
    }

    fn time_registration(&self) -> Option<Duration> {
        let start = Instant::now();
        let fresh = Mapping::new(MappingKind::Anonymous, PROBE_BYTES).ok()?;
        self.register(fresh.region()).ok()?;
        self.unregister(fresh.region());
        drop(fresh);
        Some(start.elapsed())
    }
}
