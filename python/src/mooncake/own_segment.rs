//! Objects that lie in this very process: copied by the reader that wants them, with streaming stores, past Mooncake's one copying thread.
use super::{
    calls::{Calls, Lying, attached},
    codes::{self, Way, fault},
    connect::Connected,
    settings::{Protocol, Settings},
};
use crate::foreign;
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use std::{
    env, fs,
    ops::Range,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};
use tensorlease_engine::{Fault, ReadOp};
use tensorlease_memory::{CopyMode, Foreign, copy};

/// Below this, asking where an object lies costs what Mooncake's own read of it does.
const OBJECT_BYTES_MIN: u64 = 16 << 10;
/// Copied this long after Mooncake was asked, an object is still under the read lease that asking took (the probe has seen that leases last
/// that long). A part of a call is sized to be far quicker, and one that was not is asked for again.
const SURELY_LEASED: Duration = Duration::from_millis(100);
const PART_BYTES_MAX: u64 = 64 << 20;
const PART_KEYS_MAX: usize = 1024;
/// Calls that don't ask, after one none of whose objects lay here.
const CALLS_SKIPPED: u32 = 15;
/// Mooncake's own switch for such copies, and what turns them on.
const SWITCH: &str = "MC_STORE_MEMCPY";
const ON: [&str; 5] = ["1", "true", "yes", "on", "enable"];

/// The memory that this process contributes to the cluster.
pub(super) struct OwnSegment {
    /// By which Mooncake tells it from the segments of others.
    endpoint: String,
    addresses: Range<usize>,
    memory: Foreign,
    skip: AtomicU32,
    reads: AtomicU64,
}

impl OwnSegment {
    /// Finds it by an object put there and looked for in this process's memory; `None`, with the reason logged, where that is not to be had.
    pub(super) fn find(calls: &Calls, settings: &Settings) -> Option<Self> {
        if settings.segment_bytes == 0 || settings.protocol != Protocol::Tcp || !switched_on() {
            return None;
        }
        match probe(calls) {
            Ok(found) => Some(found),
            Err(why) => {
                log::info!("objects in this process's own segment are copied by Mooncake: {why}");
                None
            }
        }
    }

    /// Objects copied so far.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// One result per read; `None`: for Mooncake to read. The caller keeps the engine open meanwhile.
    pub(super) fn read(&self, calls: &Calls, reads: &[&ReadOp<'_>]) -> Vec<Option<Result<u64, Fault>>> {
        let mut results = vec![None; reads.len()];
        let wanted: Vec<usize> = (0..reads.len()).filter(|at| is_worth_it(reads[*at])).collect();
        if wanted.is_empty() || self.skips() {
            return results;
        }
        let bytes: u64 = wanted.iter().map(|at| reads[*at].object_len).sum();
        let mode = CopyMode::for_group(usize::try_from(bytes).unwrap_or(usize::MAX));
        for part in parts(&wanted, reads) {
            let of_part: Vec<&ReadOp<'_>> = part.iter().map(|at| reads[*at]).collect();
            for (at, result) in part.iter().zip(self.read_part(calls, &of_part, mode)) {
                results[*at] = result;
            }
        }
        let found = results.iter().flatten().count();
        self.reads.fetch_add(found as u64, Relaxed);
        self.skip.store(if found == 0 { CALLS_SKIPPED } else { 0 }, Relaxed);
        results
    }

    fn read_part(&self, calls: &Calls, reads: &[&ReadOp<'_>], mode: CopyMode) -> Vec<Option<Result<u64, Fault>>> {
        let keys: Vec<&str> = reads.iter().map(|read| read.key).collect();
        let asked = Instant::now();
        let Ok(before) = calls.lying_at(&keys, &self.endpoint) else {
            return vec![None; reads.len()];
        };
        let mut results: Vec<_> = reads
            .iter()
            .zip(&before)
            .map(|(read, lying)| self.copied(read, lying.as_ref()?, mode).then_some(Ok(read.object_len)))
            .collect();
        let elapsed = asked.elapsed();
        if SURELY_LEASED < elapsed {
            let after = calls.lying_at(&keys, &self.endpoint).unwrap_or_default();
            for (at, result) in results.iter_mut().enumerate().filter(|(_, result)| result.is_some()) {
                if after.get(at).is_none_or(|lying| *lying != before[at]) {
                    *result = Some(Err(fault(codes::LEASE_EXPIRED, Way::Asked, elapsed)));
                }
            }
        }
        results
    }

    /// False: not an object of that size, or not where this process's segment is known to be.
    fn copied(&self, read: &ReadOp<'_>, lying: &Lying, mode: CopyMode) -> bool {
        let (Ok(addr), Ok(len)) = (usize::try_from(lying.addr), usize::try_from(lying.len)) else {
            return false;
        };
        let inside = self.addresses.contains(&addr) && len <= self.addresses.end - addr;
        if !inside || len != read.target.len() {
            return false;
        }
        let start = addr - self.addresses.start;
        copy(self.memory.source(start..start + len), &read.target, mode);
        true
    }

    fn skips(&self) -> bool {
        let less = |skip: u32| skip.checked_sub(1);
        self.skip.fetch_update(Relaxed, Relaxed, less).is_ok()
    }
}

fn is_worth_it(read: &ReadOp<'_>) -> bool {
    !read.by_transport && OBJECT_BYTES_MIN <= read.object_len
}

/// The reads of `wanted`, cut so that each part is copied well within a read lease.
fn parts<'a>(wanted: &'a [usize], reads: &[&ReadOp<'_>]) -> Vec<&'a [usize]> {
    let (mut keys, mut bytes) = (0, 0);
    let goes_on = |_: &usize, next: &usize| {
        keys += 1;
        bytes += reads[*next].object_len;
        let fits = keys < PART_KEYS_MAX && bytes <= PART_BYTES_MAX;
        if !fits {
            (keys, bytes) = (0, reads[*next].object_len);
        }
        fits
    };
    wanted.chunk_by(goes_on).collect()
}

/// Mooncake copies by itself over TCP unless its switch says otherwise.
fn switched_on() -> bool {
    env::var(SWITCH).is_ok_and(|value| ON.contains(&value.to_lowercase().as_str())) || env::var_os(SWITCH).is_none()
}

fn probe(calls: &Calls) -> Result<OwnSegment, String> {
    let (key, mark) = put_probe(&calls.connected).map_err(|fault| fault.message.to_string())?;
    let found = look_for(&key, &mark, calls);
    let removed = calls.remove(&[&key]);
    if !matches!(removed.as_deref(), Ok([0])) {
        log::warn!("the object {key}, put to find this process's own segment, was not removed: {removed:?}");
    }
    found
}

/// An object that nobody else has, in this process's segment if there is room.
fn put_probe(connected: &Connected) -> Result<(String, Vec<u8>), Fault> {
    attached(|py| {
        let mark = py.import("os")?.call_method1("urandom", (32,))?;
        let mark = mark.cast::<PyBytes>()?;
        let store = connected.store.bind(py);
        let here = connected.module.bind(py).call_method0("ReplicateConfig")?;
        here.setattr("preferred_segment", store.call_method0("get_hostname")?)?;
        let name: String = mark.call_method0("hex")?.extract()?;
        let key = format!("tensorlease-probe-{name}");
        let named = PyDict::new(py);
        named.set_item("config", here)?;
        let code: i64 = store.call_method("put", (&key, mark), Some(&named))?.extract()?;
        if code == 0 {
            Ok((key, mark.as_bytes().to_vec()))
        } else {
            let message = format!("an object to find it by was not stored: Mooncake's code {code}");
            Err(pyo3::exceptions::PyRuntimeError::new_err(message))
        }
    })
}

/// Where the probe lies, if that is here: the bytes are compared through the kernel, so that a wrong address is an error and no crash.
fn look_for(key: &str, mark: &[u8], calls: &Calls) -> Result<OwnSegment, String> {
    let asked = calls.memory_of(key).map_err(|fault| fault.message.to_string())?;
    let leased_since = Instant::now();
    let (endpoint, lying) = asked.ok_or("the object to find it by is gone")?;
    let addr = usize::try_from(lying.addr).map_err(|error| error.to_string())?;
    let mut found = vec![0; mark.len()];
    let memory = fs::File::open("/proc/self/mem").map_err(|error| format!("/proc/self/mem: {error}"))?;
    match memory.read_exact_at(&mut found, lying.addr) {
        Ok(()) if found == mark => {}
        _ => return Err(format!("{endpoint}, where a new object went, is another process")),
    }
    let maps = fs::read_to_string("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
    let addresses = mapping_of(addr, &maps).ok_or("its mapping is not in /proc/self/maps")?;
    thread::sleep(SURELY_LEASED.saturating_sub(leased_since.elapsed()));
    match calls.remove_unless_leased(key) {
        Ok(codes::OBJECT_HAS_LEASE) => {}
        other => {
            return Err(format!(
                "the master's read leases (default_kv_lease_ttl) are shorter than {SURELY_LEASED:?}: a leased object was removed ({other:?})"
            ));
        }
    }
    let store = attached(|py| Ok(calls.connected.store.clone_ref(py))).map_err(|fault| fault.message.to_string())?;
    Ok(OwnSegment {
        endpoint,
        memory: foreign::of_segment(Box::new(store), addresses.start, addresses.len()),
        addresses,
        skip: AtomicU32::new(0),
        reads: AtomicU64::new(0),
    })
}

/// The mapping that holds `addr`, out of the text of `/proc/self/maps`.
fn mapping_of(addr: usize, maps: &str) -> Option<Range<usize>> {
    let range = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    maps.lines().filter_map(range).find(|range| range.contains(&addr))
}
