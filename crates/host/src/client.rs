//! The client's side: an engine like any other, whose bytes lie in the daemon's memory.
//!
//! What crosses the socket is where objects lie; the bytes are copied by the client's own threads, between the daemon's memory and the client's. Where
//! an engine holds the objects, behind the daemon, it moves them in and out of memory that the daemon lent to the client.
mod extents;
mod lanes;
mod read;
mod registered;
mod relay;
mod returns;
mod session;
mod shown;
mod views;
mod window;
mod write;

pub use session::{ConnectError, HostReport, WELCOME_MAX};

use crate::place::SocketPath;
use crate::wire::{Answer, KEY_BYTES_MAX, LIST_MAX, Request};
use extents::Extents;
use lanes::Lanes;
use registered::Registered;
use relay::Relay;
use session::Session;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};
use tensorlease_engine::{
    Capabilities, CloseError, Engine, EngineStats, Fault, FaultKind, ObjectInfo, ReadOp, RegisterError, Registration,
    Tag, Views, WriteOp,
};
use tensorlease_memory::{Region, SlabSource};
use window::Window;

/// Most bytes of one call with more than one key: bounds how long a call keeps its objects pinned.
const BATCH_BYTES_MAX: u64 = 1 << 30;
/// Two non-temporal copies nearly fill a memory bus; more than four threads bring nothing.
const READERS_WORTH: usize = 4;
/// Key bytes of one message.
const MESSAGE_KEY_BYTES_MAX: usize = 1 << 20;
/// A close waits so long for running calls before it takes the lanes from them, and twice as long before it takes the socket.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// Objects in the arena of this host's daemon, shared with all its clients.
pub struct HostEngine {
    capabilities: Capabilities,
    /// Every call holds it for reading; `close` takes what is inside, and so waits for running calls.
    open: RwLock<Option<Open>>,
    closing: AtomicBool,
    /// Beside the lock, so that a close can end calls that wait for a silent daemon.
    session: Arc<Session>,
    /// Where the objects lie behind an engine of the daemon's.
    relay: Option<Relay>,
    counters: Counters,
}

struct Open {
    session: Arc<Session>,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Counters {
    register_calls: AtomicU64,
    unregister_calls: AtomicU64,
    registered_bytes: AtomicU64,
    read_calls: AtomicU64,
    write_calls: AtomicU64,
}

impl HostEngine {
    /// Connects to the daemon at `socket`. Never starts one.
    ///
    /// # Errors
    /// [`ConnectError`]: there is none, or it is not this user's, or speaks another protocol.
    pub fn connect(socket: &SocketPath) -> Result<Self, ConnectError> {
        let (session, engine) = Session::connect(socket)?;
        let (relay, capabilities) = match engine {
            Some(engine) => (
                Some(Relay {
                    lanes: Lanes::default(),
                    registered: Registered::default(),
                    name: engine.name,
                }),
                engine.capabilities,
            ),
            None => (None, own_store()),
        };
        Ok(Self {
            capabilities,
            open: RwLock::new(Some(Open {
                session: Arc::clone(&session),
                window: Mutex::default(),
            })),
            closing: AtomicBool::new(false),
            session,
            relay,
            counters: Counters::default(),
        })
    }

    /// The daemon's bound of everything, bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.session.capacity_bytes()
    }

    /// What the daemon calls this connection, also in its report.
    pub fn session(&self) -> u64 {
        self.session.number()
    }

    /// Who holds what on this host, this connection too.
    ///
    /// # Errors
    /// [`Fault`] `Unavailable` where the daemon is gone.
    pub fn report(&self) -> Result<HostReport, Fault> {
        self.with(|open| open.session.report())
    }

    /// Ends the connection at once, as the daemon's death would: calls that run and later ones are `Unavailable`. What this process holds there stays
    /// its own until the process ends, for the daemon can't tell any more what of it is still in use.
    pub fn disconnect(&self) {
        if self.session.is_own() {
            self.session.break_off();
        }
    }

    fn enter(&self) -> RwLockReadGuard<'_, Option<Open>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Unavailable` once closed, and in a forked child, whose socket is its parent's.
    fn with<T>(&self, call: impl FnOnce(&Open) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.closing.load(Relaxed) {
            return Err(Fault::closed());
        }
        if !self.session.is_own() {
            return Err(Fault::new(
                FaultKind::Unavailable,
                0,
                "this process was forked from the one that opened the store; open one here",
            ));
        }
        match &*self.enter() {
            Some(open) => call(open),
            None => Err(Fault::closed()),
        }
    }

    /// One result per key; a fault of the whole call is each key's.
    fn for_keys<T>(
        &self,
        keys: usize,
        call: impl FnOnce(&Open) -> Result<Vec<Result<T, Fault>>, Fault>,
    ) -> Vec<Result<T, Fault>> {
        match self.with(call) {
            Ok(results) => results,
            Err(fault) => (0..keys).map(|_| Err(fault.clone())).collect(),
        }
    }

    fn flags(&self, keys: &[&str], request: for<'a> fn(Vec<&'a str>) -> Request<'a>) -> Vec<Result<bool, Fault>> {
        self.for_keys(keys.len(), |open| {
            in_messages(keys, |range| {
                let keys = &keys[range];
                if let Some(relay) = &self.relay {
                    let numbers = relay.numbers(&open.session, keys.len(), &request(keys.to_vec()))?;
                    return Ok(numbers
                        .into_iter()
                        .map(|number| number.map(|number| 0 < number))
                        .collect());
                }
                open.session.ask(&request(keys.to_vec()), |answer, _| match answer {
                    Answer::Flags { flags } if flags.len() == keys.len() => Ok(flags.into_iter().map(Ok).collect()),
                    other => Err(unexpected(&other)),
                })
            })
        })
    }
}

/// What a client claims whose daemon has the objects itself.
fn own_store() -> Capabilities {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Capabilities {
        name: "host",
        registration: Registration::Free,
        registration_bytes_max: u64::MAX,
        batch_keys_max: LIST_MAX,
        batch_bytes_max: BATCH_BYTES_MAX,
        readers_worth: cores.min(READERS_WORTH),
        large_read_bytes_min: 0,
        large_write_bytes_min: 0,
        evicts: false,
        others_make_room: true,
        describes: true,
        late_writes: false,
        prompt: false,
    }
}

/// `call` for as many keys at a time as one message takes, given as a range of them. A key that no message takes is refused on its own.
fn in_messages<T>(
    keys: &[&str],
    mut call: impl FnMut(Range<usize>) -> Result<Vec<Result<T, Fault>>, Fault>,
) -> Result<Vec<Result<T, Fault>>, Fault> {
    let mut results = Vec::with_capacity(keys.len());
    let mut start = 0;
    while start < keys.len() {
        if KEY_BYTES_MAX < keys[start].len() {
            results.push(Err(key_too_long(keys[start])));
            start += 1;
            continue;
        }
        let mut bytes = 0;
        let fits = keys[start..].iter().take(LIST_MAX).take_while(|key| {
            bytes += key.len();
            bytes <= MESSAGE_KEY_BYTES_MAX && key.len() <= KEY_BYTES_MAX
        });
        let end = start + fits.count();
        results.extend(call(start..end)?);
        start = end;
    }
    Ok(results)
}

fn key_too_long(key: &str) -> Fault {
    let message = format!("a key of {} bytes is longer than {KEY_BYTES_MAX}", key.len());
    Fault::new(FaultKind::Refused, 0, message)
}

fn unexpected(answer: &Answer<'_>) -> Fault {
    let message = format!("the daemon answered out of turn ({answer:.40?}); restart it");
    Fault::new(FaultKind::Unavailable, 0, message)
}

impl Engine for HostEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&self, region: Region) -> Result<(), RegisterError> {
        self.counters.register_calls.fetch_add(1, Relaxed);
        if self.enter().is_none() {
            return Err(RegisterError::Closed);
        }
        if let Some(relay) = &self.relay {
            return relay
                .registered
                .register(region, self.capabilities.registration_bytes_max);
        }
        self.counters.registered_bytes.fetch_add(region.len as u64, Relaxed);
        Ok(())
    }

    fn unregister(&self, region: Region) -> Result<(), RegisterError> {
        self.counters.unregister_calls.fetch_add(1, Relaxed);
        if self.enter().is_none() {
            return Err(RegisterError::Closed);
        }
        if let Some(relay) = &self.relay {
            return relay.registered.unregister(region);
        }
        let less = |now: u64| Some(now.saturating_sub(region.len as u64));
        let _always_some = self.counters.registered_bytes.fetch_update(Relaxed, Relaxed, less);
        Ok(())
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        self.counters.read_calls.fetch_add(1, Relaxed);
        self.for_keys(reads.len(), |open| match &self.relay {
            Some(relay) => relay.read(&open.session, reads),
            None => read::batch(&open.session, reads),
        })
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        self.counters.write_calls.fetch_add(1, Relaxed);
        self.for_keys(writes.len(), |open| match &self.relay {
            Some(relay) => relay.write(&open.session, writes),
            None => write::batch(&open.session, &open.window, writes),
        })
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.flags(keys, |keys| Request::Remove { keys })
    }

    fn remove_prefix(&self, prefix: &str) -> Result<u64, Fault> {
        if KEY_BYTES_MAX < prefix.len() {
            return Ok(0);
        }
        let request = Request::RemovePrefix { prefix };
        self.with(|open| {
            if let Some(relay) = &self.relay {
                return relay.numbers(&open.session, 1, &request)?.remove(0);
            }
            open.session.ask(&request, |answer, _| match answer {
                Answer::Removed { count } => Ok(count),
                other => Err(unexpected(&other)),
            })
        })
    }

    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.flags(keys, |keys| Request::Contains { keys })
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        self.for_keys(keys.len(), |open| {
            in_messages(keys, |range| {
                let keys = &keys[range];
                if let Some(relay) = &self.relay {
                    return relay.describe(&open.session, keys);
                }
                let request = Request::Describe { keys: keys.to_vec() };
                open.session.ask(&request, |answer, _| match answer {
                    Answer::Described { objects } if objects.len() == keys.len() => {
                        let info = |object: crate::wire::Described<'_>| ObjectInfo {
                            len: object.len,
                            tag: Some(Tag::new(object.tag)),
                            version: object.version,
                        };
                        Ok(objects.into_iter().map(|object| Ok(object.map(info))).collect())
                    }
                    other => Err(unexpected(&other)),
                })
            })
        })
    }

    fn stats(&self) -> EngineStats {
        let counts = self.with(|open| {
            open.session.ask(&Request::Counts, |answer, _| match answer {
                Answer::Counts(counts) => Ok(counts),
                other => Err(unexpected(&other)),
            })
        });
        let counts = counts.unwrap_or_default();
        let registered = match &self.relay {
            _ if self.closing.load(Relaxed) => 0,
            Some(relay) => relay.registered.bytes(),
            None => self.counters.registered_bytes.load(Relaxed),
        };
        EngineStats {
            register_calls: self.counters.register_calls.load(Relaxed),
            unregister_calls: self.counters.unregister_calls.load(Relaxed),
            registered_bytes: registered,
            read_calls: self.counters.read_calls.load(Relaxed),
            write_calls: self.counters.write_calls.load(Relaxed),
            objects: counts.objects,
            object_bytes: counts.object_bytes,
        }
    }

    /// Every read copies from memory that is shared, which is this engine's transport; or the daemon's engine writes there.
    fn remark(&self) -> Option<String> {
        let behind = match &self.relay {
            Some(relay) => format!("which the {} engine behind it reads into, ", relay.name),
            None => String::new(),
        };
        Some(format!(
            "memory of the daemon at {} ({behind}up to {} bytes for all its clients)",
            self.session.socket_path().display(),
            self.session.capacity_bytes()
        ))
    }

    fn views(&self) -> Option<&dyn Views> {
        self.relay.is_none().then_some(self)
    }

    fn slabs(&self) -> Option<Arc<dyn SlabSource>> {
        Some(Arc::new(Extents::of(&self.session)))
    }

    fn close(&self) -> Result<(), CloseError> {
        if self.closing.swap(true, Relaxed) && self.enter().is_none() {
            return Ok(());
        }
        if !self.session.is_own() {
            return Ok(());
        }
        let started = Instant::now();
        let taken = loop {
            let waited = started.elapsed();
            match self.open.try_write() {
                Ok(mut open) => break open.take(),
                Err(TryLockError::Poisoned(open)) => break open.into_inner().take(),
                Err(TryLockError::WouldBlock) if 2 * CLOSE_PATIENCE < waited => {
                    // Whoever still waits for the daemon waits in vain. Copies that run end by themselves.
                    self.session.break_off();
                    break self.open.write().unwrap_or_else(PoisonError::into_inner).take();
                }
                Err(TryLockError::WouldBlock) => {
                    if let Some(relay) = self.relay.as_ref().filter(|_| CLOSE_PATIENCE < waited) {
                        // Transfers end in the daemon's own time, which keeps their memory; what else it holds for this client goes back.
                        relay.lanes.close();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        };
        if let Some(relay) = &self.relay {
            relay.lanes.close();
        }
        if let Some(open) = taken {
            open.session.leave();
        }
        Ok(())
    }
}

impl Drop for HostEngine {
    fn drop(&mut self) {
        // A close of this engine can't fail.
        let _closed = self.close();
    }
}

impl std::fmt::Debug for HostEngine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("HostEngine")
            .field("socket", &self.session.socket_path())
            .finish_non_exhaustive()
    }
}
