//! An engine whose transfers write after the call gave up.
#![allow(unsafe_code)]
use super::Choice;
use super::choice::Chooser;
use super::withheld::read_withholding;
use crate::forward;
use crate::{Capabilities, CloseError, Engine, Fault, FaultKind, ReadOp};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tensorlease_memory::{CopyMode, Source, Target, copy};

/// Chosen reads end with `MayStillWrite` and leave their target as it was; after a delay a background thread fills the
/// target with [`LateWriting::GARBAGE`]. `close` lets what is still due happen at once and waits for it.
pub struct LateWriting {
    inner: Arc<dyn Engine>,
    capabilities: Capabilities,
    chooser: Chooser,
    delay: Duration,
    end: Arc<End>,
    /// Held for reading by every call that may start a writer.
    running: RwLock<()>,
    writers: Mutex<Vec<JoinHandle<()>>>,
}

/// How the background threads hear that the engine ends.
#[derive(Debug, Default)]
struct End {
    how: Mutex<Option<Ending>>,
    told: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// `close` was called: the memory is still there, what is due may be written.
    Closed,
    /// Dropped without `close`: nobody promises that the memory is still there.
    Dropped,
}

impl LateWriting {
    /// What is written late.
    pub const GARBAGE: u8 = 0xdb;
    /// Faults carry this code, so that a test can tell them from the inner engine's.
    pub const CODE: i32 = -7002;

    /// The reads that `choice` picks are written late, `delay` after the call began to fail.
    pub fn new(inner: Arc<dyn Engine>, delay: Duration, choice: Choice) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.late_writes = true;
        Self {
            inner,
            capabilities,
            chooser: Chooser::new(choice),
            delay,
            end: Arc::default(),
            running: RwLock::new(()),
            writers: Mutex::new(Vec::new()),
        }
    }

    fn write_late(&self, targets: Vec<Target<'static>>) {
        let due = Instant::now() + self.delay;
        let end = Arc::clone(&self.end);
        let writer = std::thread::spawn(move || {
            if end.wait_until(due) != Some(Ending::Dropped) {
                targets.iter().for_each(fill_with_garbage);
            }
        });
        self.writers.lock().unwrap_or_else(PoisonError::into_inner).push(writer);
    }

    fn finish(&self, ending: Ending) {
        self.end.tell(ending);
        let writers = std::mem::take(&mut *self.writers.lock().unwrap_or_else(PoisonError::into_inner));
        for writer in writers {
            // A panicked writer writes nothing more, which is all that matters here.
            let _ended = writer.join();
        }
    }
}

impl End {
    fn tell(&self, ending: Ending) {
        let mut how = self.how.lock().unwrap_or_else(PoisonError::into_inner);
        how.get_or_insert(ending);
        self.told.notify_all();
    }

    /// Waits until `due`, or until the engine ends.
    fn wait_until(&self, due: Instant) -> Option<Ending> {
        let mut how = self.how.lock().unwrap_or_else(PoisonError::into_inner);
        while how.is_none() {
            let left = due
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())?;
            how = self
                .told
                .wait_timeout(how, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *how
    }
}

fn fill_with_garbage(target: &Target<'static>) {
    let garbage = vec![LateWriting::GARBAGE; target.len()];
    copy(Source::from(garbage.as_slice()), target, CopyMode::Cached);
}

fn detached(target: &Target<'_>) -> Target<'static> {
    // SAFETY: the key ends with `MayStillWrite`, and clause 5 of the engine contract has the caller keep such memory mapped
    // and unused until `close` returned; `finish` joins every writer before that, and writes nothing without `close`.
    unsafe { target.detach() }
}

impl Engine for LateWriting {
    forward!(register, unregister, write_batch, remove_batch, remove_prefix);
    forward!(contains_batch, describe_batch, asides);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        let _running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        let chosen = self.chooser.choose(reads.iter().map(|read| read.key));
        let mut results = read_withholding(&*self.inner, reads, |index| chosen[index].then_some(0));
        let mut late = Vec::new();
        for ((read, result), chosen) in reads.iter().zip(&mut results).zip(chosen) {
            // What the inner engine refused never started, so it can't end late.
            if chosen && result.is_ok() {
                *result = Err(Fault::new(
                    FaultKind::MayStillWrite,
                    Self::CODE,
                    "gave up on purpose; writes late",
                ));
                late.push(detached(&read.target));
            }
        }
        if !late.is_empty() {
            self.write_late(late);
        }
        results
    }

    fn close(&self) -> Result<(), CloseError> {
        // The inner engine first: later reads fail there and start no writer. Those that run are waited for.
        let closed = self.inner.close();
        drop(self.running.write().unwrap_or_else(PoisonError::into_inner));
        self.finish(Ending::Closed);
        closed
    }
}

impl Drop for LateWriting {
    fn drop(&mut self) {
        self.finish(Ending::Dropped);
    }
}
