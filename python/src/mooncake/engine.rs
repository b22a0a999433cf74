//! The engine: the contract's clauses over Mooncake's calls.
use super::{
    calls::{Calls, attached},
    codes::{self, asked, done},
    connect::{connect, refused_registration},
    loans::StorePool,
    own_segment::OwnSegment,
    reading::Reads,
    settings::{Protocol, Settings},
    turns::TurnsOverTcp,
    writing::{LateSources, Replaced, Writes},
};
use pyo3::{prelude::*, types::PyWeakrefReference};
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tensorlease::{OpenError, Options};
use tensorlease_engine::{
    Capabilities, CloseError, Engine, EngineStats, Fault, FaultKind, ObjectInfo, ReadOp, RegisterError, Registration,
    Removals, Staging, WriteOp,
};
use tensorlease_memory::{Region, RegionMap};

/// Half of what one peer's queue took before it wedged, for masters and peers that don't have the longer queue.
const BATCH_KEYS_MAX: usize = 1024;
/// A call of this size ends well within the master's read lease (10 s by default) at the slowest speed seen, a quarter
/// of a GiB per second.
const BATCH_BYTES_MAX: u64 = 1 << 30;
/// Reads into one registration above 4 GiB were measured a third slower (LMCache #4432).
const REGISTRATION_BYTES_MAX: u64 = 7 << 29;
/// More threads gain nothing, since one thread of Mooncake moves the bytes.
const READERS_WORTH: usize = 4;
/// Where one call at a time is enough for the transport, a call is larger.
const LARGE_CALL_BYTES_MIN: u64 = 256 << 20;

/// Mooncake Store, seen from this process.
pub(super) struct Mooncake {
    capabilities: Capabilities,
    calls: Calls,
    loans: Option<StorePool>,
    own_segment: Option<OwnSegment>,
    remark: Option<String>,
    registrations: Mutex<RegionMap>,
    /// Removals by this process. Mooncake's read leases don't hold them back.
    removals: Removals,
    late_sources: LateSources,
    replaced: Replaced,
    /// Is it open? Running calls hold it for reading, so that `close` waits for them.
    open: RwLock<bool>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    register_calls: AtomicU64,
    unregister_calls: AtomicU64,
    read_calls: AtomicU64,
    write_calls: AtomicU64,
}

impl Mooncake {
    pub(super) fn connect(settings: &Settings, options: &Options) -> Result<Self, OpenError> {
        let connected = connect(settings)?;
        let registers = settings.protocol == Protocol::Rdma || settings.force;
        // Where registration costs nothing the pool would only add a copy.
        let loans = if registers {
            StorePool::open(&connected, settings, options)
        } else {
            None
        };
        let alone = settings.segment_bytes == 0;
        let turns = (settings.protocol == Protocol::Tcp).then(|| TurnsOverTcp::new(alone));
        let large_bytes_min = if turns.is_some() { LARGE_CALL_BYTES_MIN } else { 0 };
        let calls = Calls::new(connected, turns);
        let (own_segment, remark) = match OwnSegment::find(&calls, settings) {
            Some(Ok(found)) => (Some(found), Some("its readers".to_owned())),
            Some(Err(why)) => (None, Some(format!("Mooncake ({why})"))),
            None => (None, None),
        };
        let remark = remark.map(|who| format!("objects of this process's own segment copied by {who}"));
        let unused = (settings.store_pool.is_some() && !registers)
            .then(|| "pool=store not used over TCP, where registering costs nothing (force=1 uses it)".to_owned());
        Ok(Self {
            capabilities: Capabilities {
                name: "mooncake",
                registration: if registers {
                    Registration::Required
                } else {
                    Registration::Free
                },
                registration_bytes_max: REGISTRATION_BYTES_MAX,
                batch_keys_max: BATCH_KEYS_MAX,
                batch_bytes_max: BATCH_BYTES_MAX,
                readers_worth: READERS_WORTH,
                // Objects of its own segment are copied by all readers.
                large_read_bytes_min: if alone { large_bytes_min } else { 0 },
                large_write_bytes_min: large_bytes_min,
                evicts: true,
                others_make_room: false,
                describes: false,
                late_writes: true,
                prompt: false,
            },
            calls,
            loans,
            own_segment,
            remark: [unused, remark]
                .into_iter()
                .flatten()
                .reduce(|one, other| format!("{one}, {other}")),
            registrations: Mutex::default(),
            removals: Removals::default(),
            late_sources: LateSources::default(),
            replaced: Replaced::default(),
            open: RwLock::new(true),
            counters: Counters::default(),
        })
    }

    /// Mooncake's client object; `None` where Python is ending.
    pub(super) fn client(&self) -> Option<Py<PyWeakrefReference>> {
        attached(|py| PyWeakrefReference::new(self.calls.connected.store.bind(py)).map(Bound::unbind)).ok()
    }

    /// `None`: closed.
    fn enter(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.then_some(open)
    }

    fn registrations(&self) -> MutexGuard<'_, RegionMap> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requires(&self) -> bool {
        self.capabilities.registration == Registration::Required
    }

    fn knows(&self, region: Region) -> bool {
        !self.requires() || self.registrations().contains(region)
    }

    fn reads(&self) -> Reads<'_> {
        Reads {
            calls: &self.calls,
            own_segment: self.own_segment.as_ref(),
            registers: self.requires(),
        }
    }

    fn writes(&self) -> Writes<'_> {
        Writes {
            calls: &self.calls,
            removals: &self.removals,
            replaced: &self.replaced,
            late_sources: &self.late_sources,
        }
    }

    fn ask<T>(
        &self,
        keys: &[&str],
        call: impl FnOnce(&Calls, &[&str]) -> Result<Vec<i64>, Fault>,
        meaning: impl Fn(i64) -> Result<T, Fault>,
    ) -> Vec<Result<T, Fault>> {
        let Some(_open) = self.enter() else {
            return keys.iter().map(|_| Err(Fault::closed())).collect();
        };
        if keys.is_empty() {
            return Vec::new();
        }
        match call(&self.calls, keys) {
            Ok(codes) => codes.into_iter().map(meaning).collect(),
            Err(fault) => keys.iter().map(|_| Err(fault.clone())).collect(),
        }
    }
}

fn failed(region: Region, source: Fault) -> RegisterError {
    RegisterError::Failed {
        len: region.len,
        source: Box::new(source),
    }
}

fn unregistered() -> Fault {
    Fault::new(FaultKind::Unregistered, 0, "the memory is not inside one registration")
}

impl Engine for Mooncake {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&self, region: Region) -> Result<(), RegisterError> {
        self.counters.register_calls.fetch_add(1, Relaxed);
        let Some(_open) = self.enter() else {
            return Err(RegisterError::Closed);
        };
        if !self.requires() {
            self.registrations().insert(region, ());
            return Ok(());
        }
        if REGISTRATION_BYTES_MAX < region.len as u64 {
            return Err(RegisterError::TooLarge {
                len: region.len,
                limit: REGISTRATION_BYTES_MAX,
            });
        }
        if self.registrations().overlaps(region) {
            return Err(RegisterError::Overlap { addr: region.addr });
        }
        let failed = |source| failed(region, source);
        match self.calls.register(region).map_err(failed)? {
            0 => {
                self.registrations().insert(region, ());
                Ok(())
            }
            code => Err(failed(Fault::new(
                FaultKind::Refused,
                i32::try_from(code).unwrap_or(i32::MIN),
                refused_registration(self.registrations().bytes()),
            ))),
        }
    }

    fn unregister(&self, region: Region) -> Result<(), RegisterError> {
        self.counters.unregister_calls.fetch_add(1, Relaxed);
        let Some(_open) = self.enter() else {
            return Err(RegisterError::Closed);
        };
        if self.registrations().remove(region).is_none() {
            return Err(RegisterError::Unknown { addr: region.addr });
        }
        if !self.requires() {
            return Ok(());
        }
        let failed = |source| failed(region, source);
        self.calls.unregister(region).and_then(done).map_err(failed)
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        let Some(_open) = self.enter() else {
            return vec![Err(Fault::closed()); reads.len()];
        };
        self.counters.read_calls.fetch_add(1, Relaxed);
        let reading = self.removals.reading();
        let lent = |region: Region| self.loans.as_ref().is_some_and(|loans| loans.holds(region));
        let known = |read: &ReadOp<'_>| {
            let region = read.target.region();
            self.knows(region) || lent(region)
        };
        let is_whole = |read: &ReadOp<'_>| read.offset == 0 && read.object_len == read.target.len() as u64;
        let whole: Vec<&ReadOp<'_>> = reads.iter().filter(|read| is_whole(read) && known(read)).collect();
        let mut whole = self.reads().whole(&whole).into_iter();
        let result = |read: &ReadOp<'_>| match (known(read), is_whole(read)) {
            (false, _) => Err(unregistered()),
            (true, true) => whole.next().expect("one result per whole object"),
            (true, false) => self.reads().range(read),
        };
        let results = reads.iter().map(result).collect();
        reading.verified(reads, results)
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        let Some(_open) = self.enter() else {
            return vec![Err(Fault::closed()); writes.len()];
        };
        self.counters.write_calls.fetch_add(1, Relaxed);
        let known = |write: &WriteOp<'_>| write.segments.iter().all(|segment| self.knows(segment.region()));
        // Pieces of registered memory are put together by Mooncake, an object at a time.
        let is_alone = |write: &WriteOp<'_>| self.requires() && write.segments.len() != 1;
        let together = writes.iter().filter(|write| known(write) && !is_alone(write));
        let together: Vec<&WriteOp<'_>> = together.collect();
        let mut together = self.writes().together(&together).into_iter();
        let result = |write: &WriteOp<'_>| match (known(write), is_alone(write)) {
            (false, _) => Err(unregistered()),
            (true, true) => self.writes().pieces(write),
            (true, false) => together.next().expect("one result per object"),
        };
        writes.iter().map(result).collect()
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        let _removing = self.removals.removing(keys);
        self.ask(keys, Calls::remove, |code| match code {
            0 => Ok(true),
            codes::OBJECT_NOT_FOUND => Ok(false),
            code => Err(asked(code)),
        })
    }

    fn remove_prefix(&self, prefix: &str) -> Result<u64, Fault> {
        let _open = self.enter().ok_or_else(Fault::closed)?;
        if prefix.is_empty() {
            let message = "clearing without a namespace would remove every object of the cluster, also other people's; open the store with a namespace";
            return Err(Fault::new(FaultKind::Refused, 0, message));
        }
        let _removing = self.removals.removing_prefix(prefix);
        let code = self.calls.remove_matching(&starting_with(prefix))?;
        u64::try_from(code).map_err(|_| asked(code))
    }

    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.ask(keys, Calls::exist, |code| match code {
            0 => Ok(false),
            1 => Ok(true),
            code => Err(asked(code)),
        })
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        let fault = match self.enter() {
            Some(_) => {
                let message = "Mooncake knows neither shapes nor dtypes; pass them to the read";
                Fault::new(FaultKind::Refused, 0, message)
            }
            None => Fault::closed(),
        };
        keys.iter().map(|_| Err(fault.clone())).collect()
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            register_calls: self.counters.register_calls.load(Relaxed),
            unregister_calls: self.counters.unregister_calls.load(Relaxed),
            registered_bytes: self.registrations().bytes(),
            read_calls: self.counters.read_calls.load(Relaxed),
            write_calls: self.counters.write_calls.load(Relaxed),
            // A client does not know what is in the cluster.
            objects: 0,
            object_bytes: 0,
        }
    }

    fn local_reads(&self) -> u64 {
        self.own_segment.as_ref().map_or(0, OwnSegment::reads)
    }

    fn late_bytes(&self) -> u64 {
        self.late_sources.bytes()
    }

    fn remark(&self) -> Option<String> {
        self.remark.clone()
    }

    fn staging(&self) -> Option<&dyn Staging> {
        self.loans.as_ref().map(|loans| loans as &dyn Staging)
    }

    fn close(&self) -> Result<(), CloseError> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if !*open {
            return Ok(());
        }
        *open = false;
        if let Some(loans) = &self.loans {
            loans.close();
        }
        self.registrations().clear();
        self.calls.close().and_then(done).map_err(|source| CloseError::Failed {
            source: Box::new(source),
        })?;
        self.late_sources.free();
        Ok(())
    }
}

/// A regular expression for the keys that start with `prefix`.
fn starting_with(prefix: &str) -> String {
    let mut pattern = String::from("^");
    for character in prefix.chars() {
        if r"\^$.|?*+()[]{}".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}
