//! An engine that stalls, panics, loses its answers and refuses registrations: what no decorator of the engine crate does.

use crate::{random::Random, tally::Tally};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::sleep,
    time::Duration,
};
use tensorlease::engine::{Capabilities, Engine, Fault, FaultKind, ObjectInfo, ReadOp, RegisterError, WriteOp};
use tensorlease_memory::Region;

/// A panic with this text is meant.
pub(crate) const PANIC: &str = "panics on purpose in a fault campaign";

/// What an [`Unruly`] engine does, each with its probability.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mood {
    pub(crate) stall: f64,
    pub(crate) stall_micros: u64,
    pub(crate) panic: f64,
    pub(crate) lose_answer: f64,
    pub(crate) refuse_registration: f64,
}

/// Serves like the inner engine when it is in the mood.
pub(crate) struct Unruly {
    inner: Arc<dyn Engine>,
    mood: Mood,
    seed: u64,
    calls: AtomicU64,
    /// Nothing is spoiled before the store is open.
    armed: Arc<AtomicBool>,
    tally: Arc<Tally>,
}

impl Unruly {
    /// Faults carry this code.
    pub(crate) const CODE: i32 = -7101;

    pub(crate) fn new(
        inner: Arc<dyn Engine>,
        mood: Mood,
        seed: u64,
        armed: Arc<AtomicBool>,
        tally: Arc<Tally>,
    ) -> Self {
        Self {
            inner,
            mood,
            seed,
            calls: AtomicU64::new(0),
            armed,
            tally,
        }
    }

    /// Runs a call on objects, with what may go wrong around it.
    fn call<T>(&self, call: impl FnOnce() -> Vec<Result<T, Fault>>, may_lose: bool) -> Vec<Result<T, Fault>> {
        if !self.armed.load(Relaxed) {
            return call();
        }
        let mut random = self.draw();
        if random.happens(self.mood.stall) {
            self.tally.add("struck/stall", 1);
            sleep(Duration::from_micros(self.mood.stall_micros));
        }
        let panics = random.happens(self.mood.panic);
        if panics && random.one_in(2) {
            self.panic();
        }
        let mut results = call();
        if panics {
            self.panic();
        }
        if may_lose {
            for result in &mut results {
                if result.is_ok() && random.happens(self.mood.lose_answer) {
                    self.tally.add("struck/lost answer", 1);
                    let message = "done, and the answer lost on purpose by a test";
                    *result = Err(Fault::new(FaultKind::Transient, Self::CODE, message));
                }
            }
        }
        results
    }

    fn panic(&self) -> ! {
        self.tally.add("struck/panic", 1);
        panic!("{PANIC}");
    }

    fn draw(&self) -> Random {
        Random::new(self.seed ^ self.calls.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9))
    }
}

impl Engine for Unruly {
    tensorlease_engine::forward!(unregister, stats, remark, staging, views, slabs, close);

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, region: Region) -> Result<(), RegisterError> {
        if self.armed.load(Relaxed) && self.draw().happens(self.mood.refuse_registration) {
            return Err(RegisterError::Failed {
                len: region.len,
                source: "refused on purpose by a test".into(),
            });
        }
        self.inner.register(region)
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        self.call(|| self.inner.read_batch(reads), false)
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        self.call(|| self.inner.write_batch(writes), true)
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.call(|| self.inner.remove_batch(keys), true)
    }

    fn remove_prefix(&self, prefix: &str) -> Result<u64, Fault> {
        let removed = || vec![self.inner.remove_prefix(prefix)];
        self.call(removed, true).remove(0)
    }

    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.call(|| self.inner.contains_batch(keys), false)
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        self.call(|| self.inner.describe_batch(keys), false)
    }
}
