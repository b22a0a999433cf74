//! Mooncake's own buffer pool as memory on loan (`pool=store`), for comparison with clients that read through it.
use super::{calls::attached, connect::Connected, settings::Settings};
use crate::foreign;
use pyo3::{prelude::*, types::PyDict};
use std::{
    mem,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};
use tensorlease::Options;
use tensorlease_engine::{Fault, FaultKind, Loan, LoanLimits, Staging};
use tensorlease_memory::{Region, RegionMap};

/// A `BufferPool` over the client's local buffer, or why there is none.
pub(super) struct StorePool {
    /// Locked for writing to close it: Mooncake's pool crashes when it is asked for a lease after its store was closed.
    pool: RwLock<Result<Py<PyAny>, String>>,
    local_buffer: Range<usize>,
    limits: LoanLimits,
    /// What is on loan now.
    lent: Lent,
}

type Lent = Arc<Mutex<RegionMap>>;

fn lock(lent: &Lent) -> MutexGuard<'_, RegionMap> {
    lent.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StorePool {
    /// Never more than the local buffer and one lease per reader: past that the pool would allocate and register per
    /// lease, in silence.
    pub(super) fn open(connected: &Connected, settings: &Settings, options: &Options) -> Option<Self> {
        let share = settings.store_pool?;
        let limits = LoanLimits {
            bytes_max: share.of(settings.local_buffer_bytes, options.readers),
            keys_max: options.batch_keys as usize,
        };
        let made = attached(|py| make(py, connected, settings.local_buffer_bytes, options.readers));
        let (pool, local_buffer) = match made {
            Ok((pool, local_buffer)) => (Ok(pool), local_buffer),
            Err(fault) => (Err(without_pool(&fault)), 0..0),
        };
        let lent = Lent::default();
        Some(Self {
            pool: RwLock::new(pool),
            local_buffer,
            limits,
            lent,
        })
    }

    /// Is this memory on loan? What Mooncake lends lies in its local buffer, or was registered by the pool itself.
    pub(super) fn holds(&self, region: Region) -> bool {
        lock(&self.lent).contains(region)
    }

    /// Before the store's own close. A pool with a lease in quarantine refuses, and ends with the store.
    pub(super) fn close(&self) {
        let closed = Err("the engine is closed".to_owned());
        let pool = mem::replace(&mut *self.pool.write().unwrap_or_else(PoisonError::into_inner), closed);
        let Ok(pool) = pool else { return };
        if let Err(fault) = attached(|py| pool.bind(py).call_method0("close").map(drop)) {
            log::info!("Mooncake's pool did not close: {fault}");
        }
    }
}

impl Staging for StorePool {
    fn limits(&self) -> LoanLimits {
        self.limits
    }

    fn borrow_bytes(&self, bytes: usize) -> Result<Loan, Fault> {
        let pool = self.pool.read().unwrap_or_else(PoisonError::into_inner);
        let pool = pool.as_ref().map_err(|cause| no_loan(cause.clone()))?;
        let borrowed = attached(|py| {
            let keywords = PyDict::new(py);
            keywords.set_item("block", false)?;
            let lease = pool.bind(py).call_method("acquire", (bytes,), Some(&keywords))?;
            let addr: usize = lease.getattr("ptr")?.extract()?;
            let overflow = addr < self.local_buffer.start || self.local_buffer.end < addr + bytes;
            let region = Region { addr, len: bytes };
            let owner = StoreLease {
                lease: lease.unbind(),
                region,
                lent: Arc::clone(&self.lent),
            };
            lock(&self.lent).insert(region, ());
            let memory = foreign::of_lease(Box::new(owner), addr, bytes);
            Ok(Loan { memory, overflow })
        });
        borrowed.map_err(|fault| no_loan(fault.message.into_owned()))
    }
}

/// The pool, and where its local buffer lies: a first small lease starts where the buffer does.
fn make(py: Python<'_>, connected: &Connected, bytes: u64, readers: u32) -> PyResult<(Py<PyAny>, Range<usize>)> {
    let keywords = PyDict::new(py);
    keywords.set_item("max_bytes", bytes)?;
    keywords.set_item("max_regions", readers)?;
    let pool = connected.module.bind(py).getattr("BufferPool")?;
    let pool = pool.call((connected.store.bind(py),), Some(&keywords))?;
    let lease = pool.call_method1("acquire", (1,))?;
    let start: usize = lease.getattr("ptr")?.extract()?;
    lease.call_method0("release")?;
    let len = usize::try_from(bytes).unwrap_or(usize::MAX - start);
    Ok((pool.unbind(), start..start + len))
}

fn without_pool(fault: &Fault) -> String {
    format!(
        "no BufferPool in this Mooncake, which has one from mooncake-transfer-engine 0.3.12 on: {}",
        fault.message
    )
}

fn no_loan(cause: String) -> Fault {
    Fault::new(FaultKind::NoLoan, 0, cause)
}

/// A lease of Mooncake's pool, released when it is dropped.
struct StoreLease {
    lease: Py<PyAny>,
    region: Region,
    lent: Lent,
}

impl Drop for StoreLease {
    fn drop(&mut self) {
        lock(&self.lent).remove(self.region);
        // While Python ends there is nobody left to give it back to.
        let released = Python::try_attach(|py| self.lease.bind(py).call_method0("release").map(drop));
        if let Some(Err(error)) = released {
            log::warn!("a lease of Mooncake's pool was not released: {error}");
        }
    }
}
