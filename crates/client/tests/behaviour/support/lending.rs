//! An engine that lends registered memory of its own: slices of one arena, as Mooncake's pool does.

use crate::deliveries::part;
use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};
use tensorlease::{
    CallerMemory,
    engine::{Capabilities, CloseError, Engine, Fault, FaultKind, Loan, LoanLimits, Staging},
};
use tensorlease_memory::Region;

/// What a lender has and how it lends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// All that it can lend at a time.
    pub(crate) arena_bytes: u64,
    /// Most bytes of one loan.
    pub(crate) bytes_max: u64,
    /// Keys of one batch.
    pub(crate) keys_max: usize,
    /// Most loans at a time.
    pub(crate) loans_max: usize,
}

impl Terms {
    /// One reader's share of so many bytes: half of an equal split, as the reference lends.
    pub(crate) fn half_share(arena_bytes: u64, readers: u64) -> Self {
        Self {
            arena_bytes,
            bytes_max: arena_bytes / (2 * readers),
            keys_max: 400,
            loans_max: readers as usize,
        }
    }
}

/// Refuses a loan, or lets it be. Gets the number of the loan, from 1, and its bytes.
type OnBorrow = dyn Fn(u64, usize) -> Option<Fault> + Send + Sync;

/// Serves like the inner engine, and lends.
pub(crate) struct Lending {
    inner: Arc<dyn Engine>,
    capabilities: Capabilities,
    terms: Terms,
    arena: Arc<CallerMemory>,
    slices: Arc<Mutex<Slices>>,
    asked: AtomicU64,
    overflowing: AtomicBool,
    short: bool,
    on_borrow: Option<Box<OnBorrow>>,
}

/// What is on loan.
#[derive(Debug, Default)]
struct Slices {
    /// In the order of their places.
    lent: Vec<Range<usize>>,
    alive: usize,
    alive_max: usize,
    closed: bool,
}

impl Lending {
    pub(crate) fn new(inner: Arc<dyn Engine>, terms: Terms) -> Self {
        let bytes = usize::try_from(terms.arena_bytes).unwrap();
        Self {
            capabilities: inner.capabilities().clone(),
            inner,
            terms,
            arena: Arc::new(CallerMemory::from_vec(vec![0; bytes])),
            slices: Arc::default(),
            asked: AtomicU64::new(0),
            overflowing: AtomicBool::new(false),
            short: false,
            on_borrow: None,
        }
    }

    pub(crate) fn on_borrow(mut self, hook: impl Fn(u64, usize) -> Option<Fault> + Send + Sync + 'static) -> Self {
        self.on_borrow = Some(Box::new(hook));
        self
    }

    /// Lends a byte less than it is asked for.
    pub(crate) fn lending_short(mut self) -> Self {
        self.short = true;
        self
    }

    /// From now on every loan is allocated on its own.
    pub(crate) fn overflow(&self) {
        self.overflowing.store(true, Relaxed);
    }

    /// Loans not given back.
    pub(crate) fn alive(&self) -> usize {
        lock(&self.slices).alive
    }

    /// Most loans that were out at a time.
    pub(crate) fn alive_max(&self) -> usize {
        lock(&self.slices).alive_max
    }

    /// Does this memory lie in what is lent from?
    pub(crate) fn holds(&self, region: Region) -> bool {
        self.arena.region().contains(region)
    }

    fn slice(&self, bytes: usize) -> Result<CallerMemory, Fault> {
        let mut slices = lock(&self.slices);
        if slices.closed {
            return Err(Fault::closed());
        }
        if slices.alive == self.terms.loans_max {
            return Err(no_loan("buffer pool has no region left"));
        }
        if self.overflowing.load(Relaxed) {
            slices.count();
            drop(slices);
            let memory = Arc::new(CallerMemory::from_vec(vec![0; bytes]));
            return Ok(part(&memory, 0..bytes, Box::new(self.lent(None))));
        }
        let mut start = 0;
        let mut at = 0;
        while let Some(lent) = slices.lent.get(at).filter(|lent| lent.start < start + bytes) {
            (start, at) = (lent.end, at + 1);
        }
        if self.arena.len() < start + bytes {
            return Err(no_loan("buffer pool is exhausted"));
        }
        let range = start..start + bytes;
        slices.lent.insert(at, range.clone());
        slices.count();
        drop(slices);
        Ok(part(&self.arena, range.clone(), Box::new(self.lent(Some(range)))))
    }

    fn lent(&self, range: Option<Range<usize>>) -> Lent {
        Lent {
            range,
            slices: Arc::clone(&self.slices),
        }
    }
}

impl Slices {
    fn count(&mut self) {
        self.alive += 1;
        self.alive_max = self.alive_max.max(self.alive);
    }
}

fn lock(slices: &Mutex<Slices>) -> MutexGuard<'_, Slices> {
    slices.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn no_loan(cause: &str) -> Fault {
    Fault::new(FaultKind::NoLoan, 0, cause.to_owned())
}

/// Ends a loan with its memory.
struct Lent {
    /// `None`: it was allocated on its own.
    range: Option<Range<usize>>,
    slices: Arc<Mutex<Slices>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut slices = lock(&self.slices);
        slices.alive -= 1;
        if let Some(range) = &self.range {
            slices.lent.retain(|lent| lent != range);
        }
    }
}

impl Staging for Lending {
    fn limits(&self) -> LoanLimits {
        LoanLimits {
            bytes_max: self.terms.bytes_max,
            keys_max: self.terms.keys_max,
        }
    }

    fn borrow_bytes(&self, bytes: usize) -> Result<Loan, Fault> {
        let number = self.asked.fetch_add(1, Relaxed) + 1;
        if let Some(fault) = self.on_borrow.as_ref().and_then(|hook| hook(number, bytes)) {
            return Err(fault);
        }
        if self.terms.bytes_max < bytes as u64 {
            return Err(no_loan("requested buffer size exceeds pool capacity"));
        }
        let memory = self.slice(bytes - usize::from(self.short))?;
        let overflow = !self.holds(memory.region());
        Ok(Loan { memory, overflow })
    }
}

impl Engine for Lending {
    tensorlease_engine::forward!(
        register,
        unregister,
        read_batch,
        write_batch,
        remove_batch,
        remove_prefix,
        contains_batch,
        describe_batch,
        stats,
        remark
    );

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn staging(&self) -> Option<&dyn Staging> {
        Some(self)
    }

    fn close(&self) -> Result<(), CloseError> {
        lock(&self.slices).closed = true;
        self.inner.close()
    }
}
