//! An engine around an engine that checks what a client promises: the engine contract, seen from the other side.

use crate::deliveries::part;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tensorlease::engine::{
    Capabilities, CloseError, Engine, Fault, FaultKind, Loan, LoanLimits, ObjectInfo, ReadOp, RegisterError,
    Registration, Staging, WriteOp,
};
use tensorlease_memory::Region;

/// What the engine claims beyond, or instead of, what the inner one does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    /// Registration is required, and checked here.
    pub(crate) registering: bool,
    pub(crate) registration_bytes_max: Option<u64>,
    pub(crate) batch_keys_max: Option<usize>,
    pub(crate) batch_bytes_max: Option<u64>,
    pub(crate) not_prompt: bool,
    pub(crate) describes_not: bool,
    /// What a registration takes.
    pub(crate) register_pause: Duration,
}

impl Claims {
    pub(crate) fn registering() -> Self {
        Self {
            registering: true,
            ..Self::default()
        }
    }
}

/// Serves like the inner engine and notes every promise that the client broke.
pub(crate) struct Checking {
    inner: Arc<dyn Engine>,
    capabilities: Capabilities,
    claims: Claims,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    registered: Vec<Region>,
    /// What the inner engine has lent and not got back.
    lent: Vec<Region>,
    /// Targets of running reads.
    written: Vec<Region>,
    /// Sources of running writes.
    read: Vec<Region>,
    /// Targets that may still be written by reads that gave up.
    late: Vec<Region>,
    broken: Vec<String>,
}

impl Checking {
    pub(crate) fn new(inner: Arc<dyn Engine>, claims: Claims) -> Self {
        let mut capabilities = inner.capabilities().clone();
        if claims.registering {
            capabilities.registration = Registration::Required;
        }
        // No more than the inner engine takes: a host's is as long as its memory.
        let claimed = claims.registration_bytes_max.unwrap_or(u64::MAX);
        capabilities.registration_bytes_max = claimed.min(capabilities.registration_bytes_max);
        capabilities.batch_keys_max = claims.batch_keys_max.unwrap_or(capabilities.batch_keys_max);
        capabilities.batch_bytes_max = claims.batch_bytes_max.unwrap_or(capabilities.batch_bytes_max);
        capabilities.prompt &= !claims.not_prompt;
        capabilities.describes &= !claims.describes_not;
        Self {
            inner,
            capabilities,
            claims,
            state: Arc::default(),
        }
    }

    /// Promises broken so far, in words.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.state().broken.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn check_batch(&self, keys: &[&str], bytes: u64, state: &mut State) {
        let (most_keys, most_bytes) = (self.capabilities.batch_keys_max, self.capabilities.batch_bytes_max);
        if most_keys < keys.len() {
            state
                .broken
                .push(format!("{} keys in one call of at most {most_keys}", keys.len()));
        }
        if 1 < keys.len() && most_bytes < bytes {
            state
                .broken
                .push(format!("{bytes} bytes in one call of at most {most_bytes}"));
        }
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            state.broken.push(format!("key {:?} stands twice in one call", pair[0]));
        }
    }

    fn check_memory(&self, region: Region, state: &mut State) {
        if region.len == 0 {
            state.broken.push("a transfer of zero bytes".to_owned());
        }
        let known = || state.registered.iter().chain(&state.lent);
        if self.claims.registering && !known().any(|known| known.contains(region)) {
            state.broken.push(format!("{region:?} is not inside one registration"));
        }
    }

    fn check_target(read: &ReadOp<'_>, state: &mut State) {
        let region = read.target.region();
        let busy = state
            .written
            .iter()
            .chain(&state.late)
            .find(|busy| busy.overlaps(region));
        if let Some(busy) = busy.copied() {
            state.broken.push(format!(
                "{region:?} overlaps {busy:?}, which a transfer may still write"
            ));
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn forget(regions: &mut Vec<Region>, gone: &[Region]) {
    for region in gone {
        let at = regions.iter().position(|known| known == region);
        regions.swap_remove(at.expect("noted when its call began"));
    }
}

/// Forgets the memory of a call when it ends, however it ends.
struct Running<'a> {
    engine: &'a Checking,
    written: Vec<Region>,
    read: Vec<Region>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.engine.state();
        forget(&mut state.written, &self.written);
        forget(&mut state.read, &self.read);
    }
}

/// Notes when a loan is given back, and what might still write it then.
struct Lent {
    region: Region,
    state: Arc<Mutex<State>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let writes = |written: &Vec<Region>| written.iter().any(|busy| busy.overlaps(self.region));
        let (running, late) = (writes(&state.written), writes(&state.late));
        if running || late {
            let how = if running {
                "a running read writes"
            } else {
                "a read that gave up may write"
            };
            let region = self.region;
            state.broken.push(format!("{region:?} is given back while {how} it"));
        }
        forget(&mut state.lent, &[self.region]);
    }
}

impl Staging for Checking {
    fn limits(&self) -> LoanLimits {
        let staging = self.inner.staging();
        staging.expect("asked only where the inner engine lends").limits()
    }

    fn borrow_bytes(&self, bytes: usize) -> Result<Loan, Fault> {
        let staging = self.inner.staging().expect("asked only where the inner engine lends");
        let most = staging.limits().bytes_max;
        if bytes == 0 || most < bytes as u64 {
            let promise = format!("a loan of {bytes} bytes, of 1 to {most}");
            self.state().broken.push(promise);
        }
        let Loan { memory, overflow } = staging.borrow_bytes(bytes)?;
        let (region, len, memory) = (memory.region(), memory.len(), Arc::new(memory));
        self.state().lent.push(region);
        let state = Arc::clone(&self.state);
        let memory = part(&memory, 0..len, Box::new(Lent { region, state }));
        Ok(Loan { memory, overflow })
    }
}

impl Engine for Checking {
    tensorlease_engine::forward!(remove_prefix, contains_batch, stats, remark, views, slabs);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&self, region: Region) -> Result<(), RegisterError> {
        std::thread::sleep(self.claims.register_pause);
        if self.claims.registering {
            let mut state = self.state();
            if state.registered.iter().any(|known| known.overlaps(region)) {
                return Err(RegisterError::Overlap { addr: region.addr });
            }
            let limit = self.capabilities.registration_bytes_max;
            if limit < region.len as u64 {
                state
                    .broken
                    .push(format!("{region:?} is longer than one registration may be"));
                return Err(RegisterError::TooLarge { len: region.len, limit });
            }
            state.registered.push(region);
        }
        self.inner.register(region).inspect_err(|_| {
            self.state().registered.retain(|known| *known != region);
        })
    }

    fn unregister(&self, region: Region) -> Result<(), RegisterError> {
        let mut state = self.state();
        let running = state.written.iter().chain(&state.read);
        if let Some(busy) = running.copied().find(|busy| busy.overlaps(region)) {
            state
                .broken
                .push(format!("{region:?} unregistered while a transfer uses {busy:?}"));
        }
        if self.claims.registering {
            let Some(at) = state.registered.iter().position(|known| *known == region) else {
                state
                    .broken
                    .push(format!("{region:?} unregistered, but never registered"));
                return Err(RegisterError::Unknown { addr: region.addr });
            };
            state.registered.swap_remove(at);
        }
        drop(state);
        self.inner.unregister(region)
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        let regions: Vec<Region> = reads.iter().map(|read| read.target.region()).collect();
        let keys: Vec<&str> = reads.iter().map(|read| read.key).collect();
        let mut state = self.state();
        self.check_batch(&keys, regions.iter().map(|region| region.len as u64).sum(), &mut state);
        for (read, region) in reads.iter().zip(&regions) {
            self.check_memory(*region, &mut state);
            Self::check_target(read, &mut state);
            state.written.push(*region);
        }
        drop(state);
        let running = Running {
            engine: self,
            written: regions,
            read: Vec::new(),
        };
        let results = self.inner.read_batch(reads);
        let late = results.iter().zip(&running.written).filter_map(|(result, region)| {
            let may_write = matches!(result, Err(fault) if fault.kind == FaultKind::MayStillWrite);
            may_write.then_some(*region)
        });
        self.state().late.extend(late);
        results
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        let sources = writes.iter().flat_map(|write| write.segments);
        let regions: Vec<Region> = sources
            .map(|source| Region {
                addr: source.addr(),
                len: source.len(),
            })
            .collect();
        let keys: Vec<&str> = writes.iter().map(|write| write.key).collect();
        let mut state = self.state();
        self.check_batch(&keys, regions.iter().map(|region| region.len as u64).sum(), &mut state);
        for region in &regions {
            self.check_memory(*region, &mut state);
            state.read.push(*region);
        }
        drop(state);
        let _running = Running {
            engine: self,
            written: Vec::new(),
            read: regions,
        };
        self.inner.write_batch(writes)
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.check_batch(keys, 0, &mut self.state());
        self.inner.remove_batch(keys)
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        if self.claims.describes_not {
            let refused = || Err(Fault::new(FaultKind::Refused, 0, "this engine describes nothing"));
            return keys.iter().map(|_| refused()).collect();
        }
        self.inner.describe_batch(keys)
    }

    fn staging(&self) -> Option<&dyn Staging> {
        self.inner.staging().map(|_| self as &dyn Staging)
    }

    fn close(&self) -> Result<(), CloseError> {
        self.inner.close()?;
        self.state().late.clear();
        Ok(())
    }
}
