//! Memory that a transfer may still use after its call has ended.

use crate::accounts::Accounts;
use std::{
    any::Any,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};
use tensorlease_engine::{Fault, FaultKind};
use tensorlease_memory::{Buffer, Landing, Pool, lock};

/// Keeps it out of circulation until the engine is closed.
#[derive(Debug)]
pub(crate) struct Quarantine {
    arena: Pool,
    copies: Pool,
    /// Memory outside the pools, and how many bytes it has.
    kept: Mutex<Vec<(u64, Box<dyn Any + Send>)>>,
    /// The engine is closed and nothing is written any more: what a call that ends now would quarantine is free at once.
    ended: AtomicBool,
    accounts: Arc<Accounts>,
}

impl Quarantine {
    pub(crate) fn new(arena: Pool, copies: Pool, accounts: Arc<Accounts>) -> Self {
        Self {
            arena,
            copies,
            kept: Mutex::default(),
            ended: AtomicBool::new(false),
            accounts,
        }
    }

    /// Takes memory that a transfer may still write out of circulation.
    pub(crate) fn keep(&self, landing: Landing) {
        self.accounts.counters().quarantines.add(1);
        match landing {
            Landing::Block(block) => {
                // Where nothing is registered, transfers write the copy cache directly.
                let of_copies = self.copies.regions().iter().any(|slab| slab.contains(block.region()));
                let pool = if of_copies { &self.copies } else { &self.arena };
                pool.quarantine(block);
            }
            other => lock(&self.kept).push((other.len() as u64, Box::new(other))),
        }
        self.free_if_ended();
    }

    /// Staging memory of a call that may still use it goes to quarantine. The values themselves lie elsewhere, so the keys may be tried again.
    pub(crate) fn keep_if_late<T>(&self, staging: Landing, results: &mut [Result<T, Fault>]) {
        let mut late = false;
        for fault in results.iter_mut().filter_map(|result| result.as_mut().err()) {
            if fault.kind == FaultKind::MayStillWrite {
                fault.kind = FaultKind::Transient;
                late = true;
            }
        }
        if late {
            self.keep(staging);
        }
    }

    /// Keeps a buffer that a write may still read.
    pub(crate) fn keep_buffer(&self, buffer: Arc<Buffer>) {
        self.accounts.counters().quarantines.add(1);
        lock(&self.kept).push((buffer.len() as u64, Box::new(buffer)));
        self.free_if_ended();
    }

    /// Bytes, those of the pools included.
    pub(crate) fn bytes(&self) -> u64 {
        let kept: u64 = lock(&self.kept).iter().map(|(bytes, _)| bytes).sum();
        kept + self.copies.usage().quarantined_bytes + self.arena.usage().quarantined_bytes
    }

    /// Was there ever anything in it?
    pub(crate) fn was_used(&self) -> bool {
        0 < self.accounts.counters().quarantines.get()
    }

    /// The engine is closed: nothing writes any more.
    pub(crate) fn end(&self) {
        // First: what comes into quarantine from here on is freed by the call that brings it.
        self.ended.store(true, Ordering::Release);
        self.arena.end_quarantine();
        self.copies.end_quarantine();
        // Invariant 8: they are dropped outside the lock, for their owners may take the GIL.
        let kept = mem::take(&mut *lock(&self.kept));
        drop(kept);
    }

    /// After something was quarantined: an end that came meanwhile may have missed it.
    fn free_if_ended(&self) {
        if self.ended.load(Ordering::Acquire) {
            self.end();
        }
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        // Empty once the engine has closed. Where it has not, a transfer may still write these: they are never given back.
        mem::forget(mem::take(&mut *lock(&self.kept)));
    }
}

/// May the memory of this key still be used after its call?
pub(crate) fn is_late<T>(result: &Result<T, Fault>) -> bool {
    matches!(result, Err(fault) if fault.kind == FaultKind::MayStillWrite)
}
