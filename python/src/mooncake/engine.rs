//! The engine: the contract's clauses over Mooncake's calls.
use super::{
    calls::{Calls, Placement, RangeTransfer, Transfer, attached},
    codes::{self, Way, fault},
    connect::{connect, refused_registration},
    loans::StorePool,
    own_segment::{Outcome, OwnSegment},
    settings::{Protocol, Settings},
    turns::TurnsOverTcp,
    writing::{LateSources, Replaced},
};
use pyo3::{prelude::*, types::PyWeakrefReference};
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tensorlease::{OpenError, Options};
use tensorlease_engine::{
    Capabilities, CloseError, Engine, EngineStats, Fault, FaultKind, ObjectInfo, ReadOp, RegisterError, Registration,
    Removals, Staging, Turn, WriteOp,
};
use tensorlease_memory::{Region, RegionMap};

/// Half of what one peer's queue took before it wedged, for masters and peers that don't have the longer queue.
const BATCH_KEYS_MAX: usize = 1024;
/// A call of this size ends well within the master's read lease (10 s by default) at the slowest speed seen, a quarter of a GiB per second.
const BATCH_BYTES_MAX: u64 = 1 << 30;
/// Reads into one registration above 4 GiB were measured a third slower (LMCache #4432).
const REGISTRATION_BYTES_MAX: u64 = 7 << 29;
/// More readers gain nothing: one thread of Mooncake moves the bytes.
const READERS_WORTH: usize = 4;
/// More where one call at a time is enough for the transport.
const LARGE_CALL_BYTES_MIN: u64 = 256 << 20;

/// Mooncake Store, seen from this process.
pub(super) struct Mooncake {
    capabilities: Capabilities,
    pub(super) calls: Calls,
    loans: Option<StorePool>,
    own_segment: Option<OwnSegment>,
    remark: Option<String>,
    registrations: Mutex<RegionMap>,
    /// This process's own: Mooncake's read leases don't hold them back.
    pub(super) removals: Removals,
    /// Of calls over TCP.
    turns: Option<TurnsOverTcp>,
    pub(super) late_sources: LateSources,
    pub(super) replaced: Replaced,
    /// Is it open? Held for reading by running calls, so that `close` waits for them.
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
        // Where registration costs nothing the pool would only add a copy (requirement A9).
        let loans = if registers {
            StorePool::open(&connected, settings, options)
        } else {
            None
        };
        let calls = Calls::new(connected);
        let (own_segment, remark) = match OwnSegment::find(&calls, settings) {
            Some(Ok(found)) => (
                Some(found),
                Some("objects of this process's own segment copied by its readers".to_owned()),
            ),
            Some(Err(why)) => (
                None,
                Some(format!(
                    "objects of this process's own segment copied by Mooncake ({why})"
                )),
            ),
            None => (None, None),
        };
        let unused = settings.store_pool.is_some() && !registers;
        let unused = unused
            .then(|| "pool=store not used over TCP, where registering costs nothing (force=1 uses it)".to_owned());
        let alone = settings.segment_bytes == 0;
        let turns = (settings.protocol == Protocol::Tcp).then(|| TurnsOverTcp::new(alone));
        let large_bytes_min = if turns.is_some() { LARGE_CALL_BYTES_MIN } else { 0 };
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
            turns,
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

    /// Whole objects: what lies in this process is copied here, the rest comes in one call.
    fn read_whole(&self, reads: &[&ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        let Some(own_segment) = &self.own_segment else {
            return self.fetch_whole(reads);
        };
        let done = own_segment.read(&self.calls, reads);
        let missing = reads.iter().zip(&done).filter(|(_, done)| done.is_none());
        let missing: Vec<&ReadOp<'_>> = missing.map(|(read, _)| *read).collect();
        let mut fetched = self.fetch_whole(&missing).into_iter();
        let result = |done: Outcome| done.unwrap_or_else(|| fetched.next().expect("one result per object fetched"));
        done.into_iter().map(result).collect()
    }

    /// Whole objects in one call of Mooncake's.
    fn fetch_whole(&self, reads: &[&ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        if reads.is_empty() {
            return Vec::new();
        }
        let transfers: Vec<Transfer<'_>> = reads
            .iter()
            .map(|read| transfer(read.key, read.target.region()))
            .collect();
        let bytes = transfers.iter().map(|transfer| transfer.len).sum();
        let _turn = self.turn_of_read(transfers.len(), bytes);
        let started = Instant::now();
        let codes = match self.calls.get_into(&transfers) {
            Ok(codes) => codes,
            Err(fault) => return vec![Err(self.late(fault, started.elapsed())); reads.len()],
        };
        let elapsed = started.elapsed();
        let mut results: Vec<Result<u64, Fault>> = reads
            .iter()
            .zip(codes)
            .map(|(read, code)| self.read_result(read, code, elapsed))
            .collect();
        self.find_offloaded(reads, &mut results);
        results
    }

    /// A size, or the fault of a code. Mooncake gives a shorter object's size and leaves the rest of the memory as it is.
    fn read_result(&self, read: &ReadOp<'_>, code: i64, elapsed: Duration) -> Result<u64, Fault> {
        if let Ok(len) = u64::try_from(code) {
            return if len == read.object_len {
                Ok(len)
            } else {
                Err(another_size(len, read.object_len))
            };
        }
        if code == codes::INVALID_PARAMS {
            // The one code for a longer object and for anything else that is wrong with a key.
            match self.calls.size(read.key) {
                Ok(len) if len == codes::OBJECT_NOT_FOUND => return Err(fault(len, Way::Read, elapsed)),
                Ok(len) => match u64::try_from(len) {
                    Ok(len) if len != read.object_len => return Err(another_size(len, read.object_len)),
                    _ => {}
                },
                Err(fault) => return Err(fault),
            }
        }
        Err(fault(code, Way::Read, elapsed))
    }

    /// A failed read of an object that its owner has offloaded to an SSD may still be written.
    fn find_offloaded(&self, reads: &[&ReadOp<'_>], results: &mut [Result<u64, Fault>]) {
        let doubtful = |result: &Result<u64, Fault>| {
            matches!(result, Err(fault) if matches!(fault.kind, FaultKind::Transient | FaultKind::Refused)
                && !codes::ended_before_moving(i64::from(fault.code)))
        };
        let failed: Vec<usize> = (0..reads.len()).filter(|at| doubtful(&results[*at])).collect();
        if failed.is_empty() {
            return;
        }
        let keys: Vec<&str> = failed.iter().map(|at| reads[*at].key).collect();
        for (at, offloaded) in failed.into_iter().zip(self.calls.offloaded(&keys)) {
            if let (true, Err(fault)) = (offloaded, &mut results[at]) {
                fault.kind = FaultKind::MayStillWrite;
                fault.message = format!("{}; its owner may still send it from an SSD", fault.message).into();
            }
        }
    }

    /// A call that Python itself ended: nobody knows how far Mooncake got.
    pub(super) fn late(&self, mut fault: Fault, elapsed: Duration) -> Fault {
        if codes::MAY_STILL_RUN_FROM <= elapsed {
            fault.kind = FaultKind::MayStillWrite;
        }
        fault
    }

    /// Ranges of large objects, one call each.
    fn read_range(&self, read: &ReadOp<'_>) -> Result<u64, Fault> {
        let region = read.target.region();
        let before = self.placement(read)?;
        if read
            .offset
            .checked_add(region.len as u64)
            .is_none_or(|end| read.object_len < end)
        {
            let message = format!(
                "{} bytes from {} on are past the end of {} bytes",
                region.len, read.offset, read.object_len
            );
            return Err(Fault::new(FaultKind::Mismatch, 0, message));
        }
        let registered = !self.requires() && self.calls.register(region.addr, region.len)? == 0;
        let range = RangeTransfer {
            key: read.key,
            addr: region.addr,
            offset: read.offset,
            len: region.len,
        };
        let turn = self.turn_of_read(1, region.len);
        let started = Instant::now();
        let result = self.calls.get_range(&range);
        drop(turn);
        let elapsed = started.elapsed();
        let mut results = [self.range_result(result, elapsed)];
        self.find_offloaded(&[read], &mut results);
        let undone = match registered {
            true => self.calls.unregister(region.addr).map(drop),
            false => Ok(()),
        };
        let [result] = results;
        let len = Fault::of_both(result, undone)?;
        if self.placement(read)? == before {
            return Ok(len);
        }
        // The object went away or moved while its bytes were read: what came may be another's.
        Err(fault(codes::LEASE_EXPIRED, Way::Read, elapsed))
    }

    fn range_result(&self, result: Result<i64, Fault>, elapsed: Duration) -> Result<u64, Fault> {
        let code = result.map_err(|fault| self.late(fault, elapsed))?;
        u64::try_from(code).map_err(|_| fault(code, Way::Read, elapsed))
    }

    /// Where the object of a read lies now. Another size is a mismatch, none is not found.
    fn placement(&self, read: &ReadOp<'_>) -> Result<Placement, Fault> {
        let none = || fault(codes::OBJECT_NOT_FOUND, Way::Asked, Duration::ZERO);
        let placement = self.calls.placement(read.key)?.ok_or_else(none)?;
        let len = match placement.len() {
            Some(len) => len,
            None => {
                let len = self.calls.size(read.key)?;
                u64::try_from(len).map_err(|_| fault(len, Way::Asked, Duration::ZERO))?
            }
        };
        if len == read.object_len {
            Ok(placement)
        } else {
            Err(another_size(len, read.object_len))
        }
    }

    /// Waits for the turn of a call over TCP.
    fn turn_of_read(&self, objects: usize, bytes: usize) -> Option<Turn<'_>> {
        self.turns.as_ref().map(|turns| turns.read(objects, bytes))
    }

    pub(super) fn turn_of_write(&self, objects: usize, bytes: usize) -> Option<Turn<'_>> {
        self.turns.as_ref().map(|turns| turns.write(objects, bytes))
    }
}

pub(super) fn transfer(key: &str, region: Region) -> Transfer<'_> {
    Transfer {
        key,
        addr: region.addr,
        len: region.len,
    }
}

fn another_size(found: u64, asked: u64) -> Fault {
    Fault::new(
        FaultKind::Mismatch,
        0,
        format!("holds {found} bytes, asked for {asked}; ask for what it holds"),
    )
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
        let failed = |source: Fault| RegisterError::Failed {
            len: region.len,
            source: Box::new(source),
        };
        match self.calls.register(region.addr, region.len).map_err(failed)? {
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
        let failed = |source: Fault| RegisterError::Failed {
            len: region.len,
            source: Box::new(source),
        };
        match self.calls.unregister(region.addr).map_err(failed)? {
            0 => Ok(()),
            code => Err(failed(fault(code, Way::Asked, Duration::ZERO))),
        }
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
        let mut whole = self.read_whole(&whole).into_iter();
        let result = |read: &ReadOp<'_>| match (known(read), is_whole(read)) {
            (false, _) => Err(unregistered()),
            (true, true) => whole.next().expect("one result per whole object"),
            (true, false) => self.read_range(read),
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
        let mut together = self.write_together(&together).into_iter();
        let result = |write: &WriteOp<'_>| match (known(write), is_alone(write)) {
            (false, _) => Err(unregistered()),
            (true, true) => self.write_pieces(write),
            (true, false) => together.next().expect("one result per object"),
        };
        writes.iter().map(result).collect()
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        let _removing = self.removals.removing(keys);
        self.ask(keys, Calls::remove, |code| match code {
            0 => Ok(true),
            codes::OBJECT_NOT_FOUND => Ok(false),
            code => Err(fault(code, Way::Asked, Duration::ZERO)),
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
        u64::try_from(code).map_err(|_| fault(code, Way::Asked, Duration::ZERO))
    }

    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.ask(keys, Calls::exist, |code| match code {
            0 => Ok(false),
            1 => Ok(true),
            code => Err(fault(code, Way::Asked, Duration::ZERO)),
        })
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        let open = self.enter().is_some();
        let refused = || {
            Fault::new(
                FaultKind::Refused,
                0,
                "Mooncake knows neither shapes nor dtypes; pass them to the read",
            )
        };
        keys.iter()
            .map(|_| Err(if open { refused() } else { Fault::closed() }))
            .collect()
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            register_calls: self.counters.register_calls.load(Relaxed),
            unregister_calls: self.counters.unregister_calls.load(Relaxed),
            registered_bytes: self.registrations().bytes(),
            read_calls: self.counters.read_calls.load(Relaxed),
            write_calls: self.counters.write_calls.load(Relaxed),
            // What is in the cluster is not this client's to know.
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
        let failed = |source: Fault| CloseError::Failed {
            source: Box::new(source),
        };
        match self.calls.close().map_err(failed)? {
            0 => {
                self.late_sources.free();
                Ok(())
            }
            code => Err(failed(fault(code, Way::Asked, Duration::ZERO))),
        }
    }
}

impl Mooncake {
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
