//! Objects that lie in this very process: copied by the reader that wants them, with streaming stores, past Mooncake's
//! one copying thread.
use super::{
    calls::{Calls, Found, Lying, Placement, attached},
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
    time::{Duration, Instant},
};
use tensorlease_engine::{Fault, FaultKind, ReadOp};
use tensorlease_memory::{CallerMemory, CopyMode, copy};

/// Below this, asking twice where an object lies costs what Mooncake's own read of it does.
const OBJECT_BYTES_MIN: u64 = 32 << 10;
/// A larger object takes so long to copy that it might be removed meanwhile, again and again.
const OBJECT_BYTES_MAX: u64 = 128 << 20;
/// Of what is asked about at a time, so that little time passes between the two questions.
const PART_BYTES_MAX: u64 = 64 << 20;
const PART_KEYS_MAX: usize = 1024;
/// After so many calls in a row whose objects all lay elsewhere some don't ask: first one, then twice as many each
/// time.
const CALLS_IN_VAIN: u32 = 4;
const CALLS_SKIPPED_MAX: u32 = 15;
/// A master that takes so long to answer would make the call wait a second time for the next question.
const ANSWER_SLOW: Duration = Duration::from_secs(1);
/// Mooncake's own switch for such copies, and what turns them on.
const SWITCH: &str = "MC_STORE_MEMCPY";
const ON: [&str; 5] = ["1", "true", "yes", "on", "enable"];

/// The memory that this process contributes to the cluster.
pub(super) struct OwnSegment {
    /// By which Mooncake tells it from the segments of others.
    endpoint: String,
    addresses: Range<usize>,
    memory: CallerMemory,
    /// Calls in a row that found all their objects elsewhere.
    in_vain: AtomicU32,
    /// Calls to come that don't ask.
    skip: AtomicU32,
    reads: AtomicU64,
}

/// What became of one object; `None`: it is for Mooncake.
pub(super) type Outcome = Option<Result<u64, Fault>>;

/// What became of a part of a call.
enum Part {
    /// Some of its objects lay here.
    Here(Vec<Outcome>),
    /// None of those that are anywhere lay here.
    Elsewhere,
    /// Nobody knows where they lay.
    Unknown,
}

impl OwnSegment {
    /// Finds it by an object put there and looked for in this process's memory. `None`: there is none, or RDMA reads
    /// it. Err: why Mooncake is to copy what lies there.
    pub(super) fn find(calls: &Calls, settings: &Settings) -> Option<Result<Self, String>> {
        if settings.segment_bytes == 0 || settings.protocol != Protocol::Tcp {
            return None;
        }
        if switched_on() {
            return Some(probe(calls));
        }
        Some(Err(format!("{SWITCH} turns it off")))
    }

    /// Objects copied so far.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// What became of each read. The caller keeps the engine open meanwhile.
    pub(super) fn read(&self, calls: &Calls, reads: &[&ReadOp<'_>]) -> Vec<Outcome> {
        let mut done: Vec<Outcome> = vec![None; reads.len()];
        let wanted: Vec<usize> = (0..reads.len()).filter(|at| is_worth_it(reads[*at])).collect();
        if wanted.is_empty() || self.skips() {
            return done;
        }
        let bytes: u64 = wanted.iter().map(|at| reads[*at].object_len).sum();
        let mode = CopyMode::for_group(usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut elsewhere = false;
        for part in parts(&wanted, reads) {
            let of_part: Vec<&ReadOp<'_>> = part.iter().map(|at| reads[*at]).collect();
            match self.read_part(calls, &of_part, mode) {
                Part::Here(outcomes) => part.iter().zip(outcomes).for_each(|(at, outcome)| done[*at] = outcome),
                Part::Elsewhere => elsewhere = true,
                Part::Unknown => break,
            }
        }
        let copied = done.iter().filter(|done| matches!(done, Some(Ok(_)))).count();
        self.reads.fetch_add(copied as u64, Relaxed);
        self.learn(done.iter().any(Option::is_some), elsewhere);
        done
    }

    /// Asking is worth little to a process whose objects are all elsewhere.
    fn learn(&self, found: bool, elsewhere: bool) {
        if found {
            self.in_vain.store(0, Relaxed);
        } else if elsewhere {
            let in_vain = self.in_vain.fetch_add(1, Relaxed) + 1;
            if let Some(twice) = in_vain.checked_sub(CALLS_IN_VAIN) {
                self.skip.store((1 << twice.min(8)).min(CALLS_SKIPPED_MAX), Relaxed);
            }
        }
    }

    fn read_part(&self, calls: &Calls, reads: &[&ReadOp<'_>], mode: CopyMode) -> Part {
        let keys: Vec<&str> = reads.iter().map(|read| read.key).collect();
        let asked = Instant::now();
        let Ok(found) = calls.lying_at(&keys, &self.endpoint) else {
            return Part::Unknown;
        };
        if ANSWER_SLOW < asked.elapsed() {
            self.skip.store(CALLS_SKIPPED_MAX, Relaxed);
            return Part::Unknown;
        }
        let here = |found: &Found| matches!(found, Found::Here(_));
        if !found.iter().any(here) && found.contains(&Found::Elsewhere) {
            return Part::Elsewhere;
        }
        let copied = |at: &usize| match &found[*at] {
            Found::Here(lying) => self.copied(reads[*at], lying, mode),
            Found::Elsewhere | Found::Nowhere => false,
        };
        let copied: Vec<usize> = (0..reads.len()).filter(copied).collect();
        let keys: Vec<&str> = copied.iter().map(|at| keys[*at]).collect();
        let Ok(after) = calls.lying_at(&keys, &self.endpoint) else {
            return Part::Unknown;
        };
        let mut outcomes = vec![None; reads.len()];
        for (at, after) in copied.into_iter().zip(after) {
            outcomes[at] = Some(outcome(reads[at].object_len, &found[at], &after));
        }
        Part::Here(outcomes)
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

/// Of an object that was copied where it lay `before`. A read lease does not keep it from being removed by force, and
/// its memory from being another's at once; and a lease may end. Not left to Mooncake, whose own read is no safer.
fn outcome(len: u64, before: &Found, after: &Found) -> Result<u64, Fault> {
    let (kind, message) = match after {
        after if after == before => return Ok(len),
        Found::Nowhere => (FaultKind::NotFound, "the object was removed while it was read"),
        _ => (FaultKind::Transient, "the object was replaced while it was read"),
    };
    Err(Fault::new(kind, 0, message))
}

fn is_worth_it(read: &ReadOp<'_>) -> bool {
    !read.by_transport && (OBJECT_BYTES_MIN..=OBJECT_BYTES_MAX).contains(&read.object_len)
}

/// The reads of `wanted`, cut so that each part is copied soon after it was asked about.
fn parts<'a>(wanted: &'a [usize], reads: &[&ReadOp<'_>]) -> Vec<&'a [usize]> {
    let (mut keys, mut bytes) = (1, wanted.first().map_or(0, |at| reads[*at].object_len));
    let goes_on = |_: &usize, next: &usize| {
        keys += 1;
        bytes += reads[*next].object_len;
        let fits = keys <= PART_KEYS_MAX && bytes <= PART_BYTES_MAX;
        if !fits {
            (keys, bytes) = (1, reads[*next].object_len);
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
        let hostname: String = store.call_method0("get_hostname")?.extract()?;
        here.setattr("preferred_segment", &hostname)?;
        // One name per client: a cluster that keeps objects on disk keeps the file of a removed one.
        let key = format!("tensorlease-probe-{hostname}");
        let named = PyDict::new(py);
        named.set_item("config", here)?;
        let code: i64 = store.call_method("upsert", (&key, mark), Some(&named))?.extract()?;
        if code == 0 {
            Ok((key, mark.as_bytes().to_vec()))
        } else {
            let message = format!("an object to find it by was not stored: Mooncake's code {code}");
            Err(pyo3::exceptions::PyRuntimeError::new_err(message))
        }
    })
}

/// Where the probe lies, if that is here: the bytes are compared through the kernel, so that a wrong address is an
/// error and no crash.
fn look_for(key: &str, mark: &[u8], calls: &Calls) -> Result<OwnSegment, String> {
    let asked = calls.placement(key).map_err(|fault| fault.message.to_string())?;
    let memory = asked.and_then(Placement::into_memory);
    let (endpoint, lying) = memory.ok_or("the object to find it by is gone")?;
    let addr = usize::try_from(lying.addr).map_err(|error| error.to_string())?;
    let mut found = vec![0; mark.len()];
    match read_own_memory(&mut found, lying.addr) {
        Ok(()) if found == mark => {}
        _ => return Err(format!("{endpoint}, where a new object went, is another process")),
    }
    let maps = fs::read_to_string("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
    let addresses = mapping_of(addr, &maps).ok_or("its mapping is not in /proc/self/maps")?;
    let store = attached(|py| Ok(calls.connected.store.clone_ref(py))).map_err(|fault| fault.message.to_string())?;
    Ok(OwnSegment {
        endpoint,
        memory: foreign::of_segment(Box::new(store), addresses.start, addresses.len()),
        addresses,
        in_vain: AtomicU32::new(0),
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

/// Bytes at an address of this process, through the kernel.
#[expect(clippy::disallowed_methods, reason = "open for one read, and not for writing")]
fn read_own_memory(bytes: &mut [u8], addr: u64) -> std::io::Result<()> {
    fs::File::open("/proc/self/mem")?.read_exact_at(bytes, addr)
}
