//! Objects in this process, in recycled memory.
mod object;
mod object_memory;
mod registrations;

use crate::{Capabilities, CloseError, Engine, EngineStats, Fault, FaultKind, ObjectInfo, ReadOp, RegisterError};
use crate::{ObjectIndex, Registration, WriteOp};
use object::Object;
use object_memory::ObjectMemory;
use registrations::Registrations;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use tensorlease_memory::{CopyMode, InFlight, Region, copy, pin::PIN_BYTES_MAX};

/// How to open an [`Embedded`] engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// Most bytes of objects, counted in whole blocks; rounded to whole pages, at least one.
    pub capacity_bytes: u64,
    /// Pin registered memory in the kernel and refuse transfers outside it, as an RDMA network card does.
    pub pinned: bool,
}

/// Objects in this process: what is written is copied into recycled memory, what is read is copied out of it.
///
/// A replaced or removed object that is being read stays alive until that read ends. Capacity is made on demand, in
/// slabs, and kept until `close`.
pub struct Embedded {
    capabilities: Capabilities,
    /// Every call holds it for reading; `close` takes what is inside, and so waits for running calls.
    open: RwLock<Option<Open>>,
    counters: Counters,
}

struct Open {
    index: ObjectIndex<Object>,
    memory: ObjectMemory,
    registrations: Registrations,
}

#[derive(Debug, Default)]
struct Counters {
    register_calls: AtomicU64,
    unregister_calls: AtomicU64,
    read_calls: AtomicU64,
    write_calls: AtomicU64,
}

impl Embedded {
    /// Most keys of one call.
    const BATCH_KEYS_MAX: usize = 1024;
    /// Most bytes of one call with more than one key: bounds how long a call holds on to its objects.
    const BATCH_BYTES_MAX: u64 = 1 << 30;
    /// Two non-temporal copies nearly fill a memory bus; more than four threads bring nothing.
    const READERS_WORTH: usize = 4;

    /// Opens an empty store. Takes no memory yet.
    ///
    /// # Errors
    /// [`RegisterError::Unsupported`] where `pinned` is asked for and the kernel allows no `io_uring`.
    pub fn new(options: &EmbeddedOptions) -> Result<Self, RegisterError> {
        let registrations = if options.pinned {
            Registrations::pinned()?
        } else {
            Registrations::counted()
        };
        Ok(Self {
            capabilities: Self::claims(options.pinned),
            open: RwLock::new(Some(Open {
                index: ObjectIndex::default(),
                memory: ObjectMemory::new(options.capacity_bytes),
                registrations,
            })),
            counters: Counters::default(),
        })
    }

    fn claims(pinned: bool) -> Capabilities {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Capabilities {
            name: "embedded",
            registration: if pinned {
                Registration::Required
            } else {
                Registration::Free
            },
            registration_bytes_max: if pinned { PIN_BYTES_MAX as u64 } else { u64::MAX },
            batch_keys_max: Self::BATCH_KEYS_MAX,
            batch_bytes_max: Self::BATCH_BYTES_MAX,
            readers_worth: cores.min(Self::READERS_WORTH),
            large_read_bytes_min: 0,
            large_write_bytes_min: 0,
            evicts: false,
            others_make_room: false,
            describes: true,
            late_writes: false,
            prompt: true,
        }
    }

    /// No call panics while it changes what the lock protects, so a poisoned lock still protects a sound state.
    fn enter(&self) -> RwLockReadGuard<'_, Option<Open>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// One result per key from `each`, or `Unavailable` for every key once closed.
    fn for_keys<T>(&self, keys: &[&str], each: impl Fn(&Open, &str) -> T) -> Vec<Result<T, Fault>> {
        match &*self.enter() {
            Some(open) => keys.iter().map(|key| Ok(each(open, key))).collect(),
            None => refused(keys.len()),
        }
    }
}

/// `Unavailable` for each of `keys` keys.
fn refused<T>(keys: usize) -> Vec<Result<T, Fault>> {
    (0..keys).map(|_| Err(Fault::closed())).collect()
}

impl Engine for Embedded {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&self, region: Region) -> Result<(), RegisterError> {
        self.counters.register_calls.fetch_add(1, Relaxed);
        match &*self.enter() {
            Some(open) => open.registrations.register(region),
            None => Err(RegisterError::Closed),
        }
    }

    fn unregister(&self, region: Region) -> Result<(), RegisterError> {
        self.counters.unregister_calls.fetch_add(1, Relaxed);
        match &*self.enter() {
            Some(open) => open.registrations.unregister(region),
            None => Err(RegisterError::Closed),
        }
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        self.counters.read_calls.fetch_add(1, Relaxed);
        let entered = self.enter();
        let Some(open) = &*entered else {
            return refused(reads.len());
        };
        let mode = CopyMode::for_group(reads.iter().map(|read| read.target.len()).sum());
        reads.iter().map(|read| open.read(read, mode)).collect()
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        self.counters.write_calls.fetch_add(1, Relaxed);
        match &*self.enter() {
            Some(open) => open.write(writes),
            None => refused(writes.len()),
        }
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.for_keys(keys, |open, key| open.index.remove(key).is_some())
    }

    fn remove_prefix(&self, prefix: &str) -> Result<u64, Fault> {
        match &*self.enter() {
            Some(open) => Ok(open.index.remove_prefix(prefix)),
            None => Err(Fault::closed()),
        }
    }

    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.for_keys(keys, |open, key| open.index.get(key).is_some())
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        self.for_keys(keys, |open, key| open.index.get(key).map(|object| object.info()))
    }

    fn stats(&self) -> EngineStats {
        let counters = EngineStats {
            register_calls: self.counters.register_calls.load(Relaxed),
            unregister_calls: self.counters.unregister_calls.load(Relaxed),
            read_calls: self.counters.read_calls.load(Relaxed),
            write_calls: self.counters.write_calls.load(Relaxed),
            ..EngineStats::default()
        };
        match &*self.enter() {
            Some(open) => EngineStats {
                registered_bytes: open.registrations.bytes(),
                objects: open.index.objects(),
                object_bytes: open.index.object_bytes(),
                ..counters
            },
            None => counters,
        }
    }

    fn close(&self) -> Result<(), CloseError> {
        let taken = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(open) = taken else {
            return Ok(());
        };
        // Objects first: only then are the slabs empty and their memory can go.
        drop(open.index);
        open.memory.close();
        open.registrations.close()
    }
}

impl Open {
    fn read(&self, read: &ReadOp<'_>, mode: CopyMode) -> Result<u64, Fault> {
        if !self.registrations.allows(read.target.region()) {
            return Err(unregistered(read.target.len()));
        }
        let object = self
            .index
            .get(read.key)
            .ok_or_else(|| Fault::new(FaultKind::NotFound, 0, "no such object"))?;
        object.read(read, mode)
    }

    fn write(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        let mut results: Vec<Result<(), Fault>> = writes.iter().map(|write| self.check_write(write)).collect();
        let accepted: Vec<usize> = (0..writes.len()).filter(|&index| results[index].is_ok()).collect();
        let lens: Vec<u64> = accepted.iter().map(|&index| object_len(&writes[index])).collect();
        let bytes: u64 = lens.iter().sum();
        let mode = CopyMode::for_group(usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut at = 0;
        while at < accepted.len() {
            // Objects are published before more memory is asked for: what they replace is free for the next ones.
            let blocks = self.memory.acquire(&lens[at..]);
            let got = blocks.len();
            for (&index, block) in accepted[at..].iter().zip(&blocks) {
                fill(&writes[index], std::slice::from_ref(block), mode);
            }
            for (&index, lease) in accepted[at..].iter().zip(self.memory.lease(blocks)) {
                self.publish(&writes[index], Object::whole(lease, writes[index].tag.clone()));
            }
            at += got;
            if got == 0 {
                results[accepted[at]] = self.write_scattered(&writes[accepted[at]], lens[at], mode);
                at += 1;
            }
        }
        results
    }

    /// The memory is there, but not in one piece.
    fn write_scattered(&self, write: &WriteOp<'_>, len: u64, mode: CopyMode) -> Result<(), Fault> {
        let pieces = self.memory.acquire_scattered(len)?;
        fill(write, &pieces, mode);
        self.publish(write, Object::scattered(self.memory.lease(pieces), write.tag.clone()));
        Ok(())
    }

    fn publish(&self, write: &WriteOp<'_>, object: Object) {
        self.index.insert(write.key, Arc::new(object));
    }

    fn check_write(&self, write: &WriteOp<'_>) -> Result<(), Fault> {
        if object_len(write) == 0 {
            return Err(Fault::new(FaultKind::Refused, 0, "an object needs at least one byte"));
        }
        for segment in write.segments {
            if !self.registrations.allows(segment.region()) {
                return Err(unregistered(segment.len()));
            }
        }
        Ok(())
    }
}

fn object_len(write: &WriteOp<'_>) -> u64 {
    write.segments.iter().map(|segment| segment.len() as u64).sum()
}

fn unregistered(len: usize) -> Fault {
    let message = format!("{len} bytes of memory are not inside one registration; register them first");
    Fault::new(FaultKind::Unregistered, 0, message)
}

/// Copies a write's segments, one after the other, over `pieces`, which together are as long.
fn fill(write: &WriteOp<'_>, pieces: &[InFlight], mode: CopyMode) {
    let mut piece = 0;
    let mut at = 0;
    for segment in write.segments {
        let mut done = 0;
        while done < segment.len() {
            if at == pieces[piece].len() {
                piece += 1;
                at = 0;
            }
            let step = (segment.len() - done).min(pieces[piece].len() - at);
            let target = pieces[piece].target(at..at + step);
            copy(segment.slice(done..done + step), &target, mode);
            done += step;
            at += step;
        }
    }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Embedded")
            .field("registration", &self.capabilities.registration)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
