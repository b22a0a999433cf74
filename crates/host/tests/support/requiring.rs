//! An engine that wants memory registered, as one with a network card does, and takes note of who registers what.
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorlease_engine::{Capabilities, CloseError, Embedded, EmbeddedOptions, Engine, EngineStats, Fault, FaultKind};
use tensorlease_engine::{ReadOp, RegisterError, Registration, WriteOp};
use tensorlease_memory::{Region, RegionMap};

pub(crate) const STORE_BYTES: u64 = 48 << 20;

pub(crate) struct Requiring {
    inner: Embedded,
    capabilities: Capabilities,
    regions: Mutex<RegionMap>,
    /// Every region that was ever registered.
    pub(crate) registered: Mutex<Vec<Region>>,
    /// Regions that were registered when it was closed.
    pub(crate) left: Mutex<Option<usize>>,
    /// `close` waits while this is set.
    pub(crate) hangs: AtomicBool,
}

impl Requiring {
    pub(crate) fn new(registration_bytes_max: u64) -> Arc<Self> {
        let options = EmbeddedOptions {
            capacity_bytes: STORE_BYTES,
            pinned: false,
        };
        let inner = Embedded::new(&options).expect("an embedded store opens");
        Arc::new(Self {
            capabilities: Capabilities {
                name: "requiring",
                registration: Registration::Required,
                registration_bytes_max,
                batch_bytes_max: 32 << 20,
                ..inner.capabilities().clone()
            },
            inner,
            regions: Mutex::default(),
            registered: Mutex::default(),
            left: Mutex::default(),
            hangs: AtomicBool::new(false),
        })
    }

    fn refuses(&self, mut regions: impl Iterator<Item = Region>) -> bool {
        let known = self.regions.lock().expect("no test panics here");
        !regions.all(|region| known.contains(region))
    }
}

fn unregistered<T>(keys: usize) -> Vec<Result<T, Fault>> {
    let fault = || Fault::new(FaultKind::Unregistered, 0, "not inside one registration");
    (0..keys).map(|_| Err(fault())).collect()
}

impl Engine for Requiring {
    tensorlease_engine::forward!(remove_batch, remove_prefix, contains_batch, describe_batch);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn register(&self, region: Region) -> Result<(), RegisterError> {
        let limit = self.capabilities.registration_bytes_max;
        if limit < region.len as u64 {
            return Err(RegisterError::TooLarge { len: region.len, limit });
        }
        self.registered.lock().expect("no test panics here").push(region);
        self.regions.lock().expect("no test panics here").insert(region, ());
        Ok(())
    }
    fn unregister(&self, region: Region) -> Result<(), RegisterError> {
        let removed = self.regions.lock().expect("no test panics here").remove(region);
        removed.ok_or(RegisterError::Unknown { addr: region.addr })
    }
    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        if self.refuses(reads.iter().map(|read| read.target.region())) {
            return unregistered(reads.len());
        }
        self.inner.read_batch(reads)
    }
    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        let segments = writes.iter().flat_map(|write| write.segments);
        if self.refuses(segments.map(tensorlease_memory::Source::region)) {
            return unregistered(writes.len());
        }
        self.inner.write_batch(writes)
    }
    fn stats(&self) -> EngineStats {
        EngineStats {
            register_calls: self.registered.lock().expect("no test panics here").len() as u64,
            ..self.inner.stats()
        }
    }
    fn close(&self) -> Result<(), CloseError> {
        while self.hangs.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        *self.left.lock().expect("no test panics here") = Some(self.regions.lock().expect("no test panics here").len());
        self.inner.close()
    }
}
