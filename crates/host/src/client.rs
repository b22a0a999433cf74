//! The client's side: an engine like any other, whose bytes lie in the daemon's memory.
//!
//! The socket carries where objects lie. The client's own threads copy the bytes between the daemon's memory and the
//! client's. Where an engine behind the daemon has the objects, it moves them in and out of memory that the daemon lent
//! to the client.
mod claims;
mod connect;
mod extents;
mod lanes;
mod messages;
mod read;
mod registered;
mod relay;
mod returns;
mod session;
mod shown;
mod views;
mod window;
mod write;

pub use connect::{ConnectError, WELCOME_MAX};
pub use session::HostReport;

use crate::place::SocketPath;
use crate::wire::{Answer, KEY_BYTES_MAX, Request};
use extents::Extents;
use lanes::Unanswered;
use messages::{PerKey, descriptions, in_messages, numbers, unavailable, unexpected};
use registered::register;
use relay::Relay;
use returns::Returned;
use session::Session;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};
use tensorlease_engine::{
    Capabilities, CloseError, Engine, EngineStats, Fault, ObjectInfo, ReadOp, RegisterError, Viewed, Views, WriteOp,
};
use tensorlease_memory::{Region, SlabSource, lock};
use window::Window;

/// A close waits so long for running calls before it ends the lanes, and twice as long before it ends the socket.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// Objects in the arena of this host's daemon, shared with all its clients.
pub struct HostEngine {
    capabilities: Capabilities,
    /// Every call holds it for reading. `close` takes what is inside, and so waits for running calls.
    open: RwLock<Option<Mutex<Window>>>,
    closing: AtomicBool,
    /// It is outside the lock, so that a close can end calls that wait for a silent daemon.
    session: Arc<Session>,
    /// None: the daemon has the objects itself. Otherwise an engine behind it has them.
    relay: Option<Relay>,
    counters: Counters,
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
            Some((name, capabilities)) => (Some(Relay::to(name)), capabilities),
            None => (None, claims::own_store()),
        };
        Ok(Self {
            capabilities,
            open: RwLock::new(Some(Mutex::default())),
            closing: AtomicBool::new(false),
            session,
            relay,
            counters: Counters::default(),
        })
    }

    /// The daemon's bound of everything, bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.session.capacity_bytes
    }

    /// What the daemon calls this connection, also in its report.
    pub fn session(&self) -> u64 {
        self.session.number
    }

    /// Who holds what on this host, this connection too.
    ///
    /// # Errors
    /// [`Fault`] `Unavailable` where the daemon is gone.
    pub fn report(&self) -> Result<HostReport, Fault> {
        self.with(|_| {
            self.session.ask(&Request::Report, |answer, _| match answer {
                Answer::Report(report) => Ok(report),
                other => Err(unexpected(&other)),
            })
        })
    }

    /// Ends the connection at once, as the daemon's death would. Running and later calls are `Unavailable`. What this
    /// process holds there stays its own until the process ends, because the daemon can't tell any more what is still
    /// in use.
    pub fn disconnect(&self) {
        if self.session.is_own() {
            self.session.break_off();
        }
    }

    fn enter(&self) -> RwLockReadGuard<'_, Option<Mutex<Window>>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Unavailable` once closed, and in a forked child, whose socket is its parent's.
    fn with<T>(&self, call: impl FnOnce(&Mutex<Window>) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.closing.load(Relaxed) {
            return Err(Fault::closed());
        }
        if !self.session.is_own() {
            return Err(unavailable(
                "this process was forked from the one that opened the store; open one here",
            ));
        }
        match &*self.enter() {
            Some(open) => call(open),
            None => Err(Fault::closed()),
        }
    }

    fn close_lanes(&self) {
        if let Some(relay) = &self.relay {
            relay.lanes.close();
        }
    }

    /// One result per key. A fault of the whole call is each key's.
    fn for_keys<T>(&self, keys: usize, call: impl FnOnce(&Mutex<Window>) -> PerKey<T>) -> Vec<Result<T, Fault>> {
        match self.with(call) {
            Ok(results) => results,
            Err(fault) => (0..keys).map(|_| Err(fault.clone())).collect(),
        }
    }

    /// Asks about objects. The daemon answers, or on a lane the engine behind it.
    fn ask<T>(&self, request: &Request<'_>, read: impl FnOnce(Answer<'_>) -> Result<T, Fault>) -> Result<T, Fault> {
        match &self.relay {
            Some(relay) => relay.lanes.ask(&self.session, request, read).map_err(Unanswered::fault),
            None => self.session.ask(request, |answer, _| read(answer)),
        }
    }

    fn ask_in_messages<T>(
        &self,
        keys: &[&str],
        request: for<'a> fn(Vec<&'a str>) -> Request<'a>,
        read: fn(Answer<'_>, usize) -> PerKey<T>,
    ) -> Vec<Result<T, Fault>> {
        self.for_keys(keys.len(), |_| {
            in_messages(keys, |range| {
                let request = request(keys[range.clone()].to_vec());
                self.ask(&request, |answer| read(answer, range.len()))
            })
        })
    }

    fn flags(&self, keys: &[&str], request: for<'a> fn(Vec<&'a str>) -> Request<'a>) -> Vec<Result<bool, Fault>> {
        let numbers = self.ask_in_messages(keys, request, numbers);
        numbers
            .into_iter()
            .map(|number| number.map(|number| 0 < number))
            .collect()
    }
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
            let limit = self.capabilities.registration_bytes_max;
            return register(&mut lock(&relay.registered), region, limit);
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
            let known = lock(&relay.registered).remove(region);
            return known.ok_or(RegisterError::Unknown { addr: region.addr });
        }
        let less = |now: u64| Some(now.saturating_sub(region.len as u64));
        let _always_some = self.counters.registered_bytes.fetch_update(Relaxed, Relaxed, less);
        Ok(())
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        self.counters.read_calls.fetch_add(1, Relaxed);
        self.for_keys(reads.len(), |_| match &self.relay {
            Some(relay) => relay.read(&self.session, reads),
            None => read::batch(&self.session, reads),
        })
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        self.counters.write_calls.fetch_add(1, Relaxed);
        self.for_keys(writes.len(), |window| match &self.relay {
            Some(relay) => relay.write(&self.session, writes),
            None => write::batch(&self.session, window, writes),
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
        self.with(|_| self.ask(&request, |answer| numbers(answer, 1))?.remove(0))
    }

    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        self.flags(keys, |keys| Request::Contains { keys })
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        self.ask_in_messages(keys, |keys| Request::Describe { keys }, descriptions)
    }

    fn stats(&self) -> EngineStats {
        let counts = self.with(|_| {
            self.session.ask(&Request::Counts, |answer, _| match answer {
                Answer::Counts(counts) => Ok(counts),
                other => Err(unexpected(&other)),
            })
        });
        let counts = counts.unwrap_or_default();
        let registered = match &self.relay {
            _ if self.closing.load(Relaxed) => 0,
            Some(relay) => lock(&relay.registered).bytes(),
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

    /// Every read copies from shared memory, which is this engine's transport, or the daemon's engine writes there.
    fn remark(&self) -> Option<String> {
        let behind = match &self.relay {
            Some(relay) => format!("which the {} engine behind it reads into, ", relay.name),
            None => String::new(),
        };
        Some(format!(
            "memory of the daemon at {} ({behind}up to {} bytes for all its clients)",
            self.session.place.as_path().display(),
            self.session.capacity_bytes
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
                Err(TryLockError::WouldBlock) => {}
            }
            if 2 * CLOSE_PATIENCE < waited {
                // Calls that still wait for the daemon end with the socket. Running copies end by themselves.
                self.session.break_off();
                break self.open.write().unwrap_or_else(PoisonError::into_inner).take();
            }
            if CLOSE_PATIENCE < waited {
                // Transfers end in the daemon's own time, which keeps their memory. What else it holds for this client
                // goes back.
                self.close_lanes();
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        self.close_lanes();
        if taken.is_some() {
            // What is still lent keeps the connection.
            self.session.give_back(Returned::Rest);
        }
        Ok(())
    }
}

impl Views for HostEngine {
    fn view_batch(&self, keys: &[&str]) -> Vec<Result<Viewed, Fault>> {
        self.for_keys(keys.len(), |_| views::batch(&self.session, keys))
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
            .field("socket", &self.session.place)
            .finish_non_exhaustive()
    }
}
