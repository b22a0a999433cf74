//! The daemon: owns the memory and the index of the objects, and knows what each client holds.
mod extent;
mod holdings;
mod listener;
mod mapped;
mod memory;
mod namespaces;
mod reaper;
mod relay;
mod serve;
mod session;

pub use relay::Behind;

use crate::descriptors;
use crate::place::{Holder, PlaceError, SocketPath};
use memory::ArenaMemory;
use reaper::Reaper;
use relay::Relay;
use session::Session;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tensorlease_engine::{Indexed, ObjectIndex, Tag};
use tensorlease_memory::Lease;

/// How to start a [`Daemon`].
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Where it listens.
    pub socket: SocketPath,
    /// Most bytes of everything it hands out, counted in whole blocks; at least one page.
    pub max_bytes: u64,
    /// None: it stays until it is stopped. Otherwise it ends when it has had no client and no object for so long.
    pub idle_end: Option<Duration>,
}

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is one.
    #[error("a daemon runs already at {:?} ({holder})", socket.as_path())]
    Running {
        /// Where.
        socket: SocketPath,
        /// Who that is.
        holder: Holder,
    },
    /// There is no place for its socket.
    #[error("no place for the socket")]
    Place {
        /// What is wrong with it.
        #[from]
        source: PlaceError,
    },
    /// Its memory can't be had.
    #[error("max_bytes={max_bytes} can't be had: {message}")]
    Memory {
        /// As asked.
        max_bytes: u64,
        /// In words.
        message: String,
    },
    /// The system refused something that a daemon needs.
    #[error("cannot {what}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// One object. Never changed after it was published.
#[derive(Debug)]
struct Object {
    lease: Lease,
    len: u64,
    version: u64,
    tag: Tag,
}

impl Indexed for Object {
    fn object_len(&self) -> u64 {
        self.len
    }
}

/// What all threads of a daemon share.
struct Shared {
    options: DaemonOptions,
    memory: ArenaMemory,
    /// Objects of the daemon's own.
    index: ObjectIndex<Object>,
    /// Or the engine behind it that has them.
    relay: Option<Arc<Relay>>,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    sessions_made: AtomicU64,
    versions: AtomicU64,
    reaper: Reaper,
    started: Instant,
    stopping: AtomicBool,
    /// Threads that serve a client.
    serving: AtomicUsize,
    /// Wakes the listener.
    stop: OwnedFd,
    ended: Mutex<bool>,
    ended_changed: Condvar,
}

/// A daemon that runs in threads of this process. Dropped, it stops.
pub struct Daemon {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Daemon {
    /// Takes the lock, binds the socket and serves it. A socket that a dead daemon left is replaced.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(options: DaemonOptions) -> Result<Self, StartError> {
        Self::start_with(options, None)
    }

    /// The same, with an engine that has the objects and moves them in and out of the daemon's memory, which is registered with it. The engine is
    /// closed when the daemon stops, and when it does not start.
    ///
    /// # Errors
    /// [`StartError`]; `Memory` also where the engine refuses to register it.
    pub fn start_before(options: DaemonOptions, behind: Behind) -> Result<Self, StartError> {
        let engine = Arc::clone(&behind.engine);
        Self::start_with(options, Some(behind)).inspect_err(|_| {
            if let Err(error) = engine.close() {
                log::warn!("the {} engine did not close: {error}", engine.capabilities().name);
            }
        })
    }

    fn start_with(options: DaemonOptions, behind: Option<Behind>) -> Result<Self, StartError> {
        options.socket.make_folder()?;
        let Some(lock) = options.socket.try_lock()? else {
            let holder = options.socket.holder().unwrap_or_default();
            return Err(StartError::Running {
                socket: options.socket,
                holder,
            });
        };
        let memory = match &behind {
            Some(behind) => ArenaMemory::registered(options.max_bytes, &behind.engine)?,
            None => ArenaMemory::new(options.max_bytes)?,
        };
        let relay = behind.map(|behind| Arc::new(Relay::new(behind, memory.longest_block_bytes())));
        let event = || descriptors::event().map_err(system("make an event"));
        let listener = listener::bind(&options.socket)?;
        let shared = Arc::new(Shared {
            memory,
            index: ObjectIndex::default(),
            relay,
            sessions: Mutex::default(),
            sessions_made: AtomicU64::new(0),
            versions: AtomicU64::new(1),
            reaper: Reaper::new(event()?),
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            serving: AtomicUsize::new(0),
            stop: event()?,
            ended: Mutex::new(false),
            ended_changed: Condvar::new(),
            options,
        });
        let reaping = thread("tensorlease-reaper", {
            let shared = Arc::clone(&shared);
            move || reaper::run(&shared)
        })?;
        let listening = thread("tensorlease-listener", {
            let shared = Arc::clone(&shared);
            move || listener::run(&shared, &listener, lock)
        });
        let daemon = Self {
            shared,
            threads: Mutex::new(vec![reaping]),
        };
        lock_of(&daemon.threads).push(listening?);
        Ok(daemon)
    }

    /// Where it listens.
    pub fn socket(&self) -> &SocketPath {
        &self.shared.options.socket
    }

    /// Waits until it has ended, by itself or because it was stopped; false: not within `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        let ended = lock_of(&self.shared.ended);
        let (ended, _) = self
            .shared
            .ended_changed
            .wait_timeout_while(ended, timeout, |ended| !*ended)
            .unwrap_or_else(PoisonError::into_inner);
        *ended
    }

    /// Ends it: no new client, and each one's connection ends after the request that is being served. Memory that clients have mapped stays
    /// readable for them. Idempotent.
    pub fn stop(&self) {
        self.shared.stop();
        let threads = std::mem::take(&mut *lock_of(&self.threads));
        for thread in threads {
            // A thread that panicked has said so; the others end all the same.
            let _panicked = thread.join();
        }
    }

    /// Has the engine behind it closed? False also where it did not in time: a call on it hangs, and may still write memory of this process.
    /// Without an engine there is nothing to close.
    pub fn has_closed(&self) -> bool {
        let relay = self.shared.relay.as_ref();
        relay.is_none_or(|relay| relay.has_closed(Duration::ZERO))
    }

    /// Extents of clients that are gone, bytes, which a transfer still holds.
    pub fn quarantined_bytes(&self) -> u64 {
        let relay = self.shared.relay.as_ref();
        relay.map_or(0, |relay| relay.quarantine.bytes())
    }

    /// Takes in a client that is connected already, without asking who it is. It counts as dead once `death` is readable. For tests, which this way
    /// have a client die that is a part of their own process.
    pub fn attach(&self, client: OwnedFd, death: OwnedFd) {
        listener::admit(&self.shared, client, rustix::process::getpid(), death);
    }

    /// Sessions there are, those that only wait for the end of their process included.
    pub fn sessions(&self) -> usize {
        lock_of(&self.shared.sessions).len()
    }

    /// Bytes of whole blocks that are out: objects, extents and reservations.
    pub fn held_bytes(&self) -> u64 {
        self.shared.memory.held_bytes()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Daemon")
            .field("options", &self.shared.options)
            .field("sessions", &self.sessions())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        wake(&self.stop);
        self.reaper.wake();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Objects that would end with the daemon.
    fn has_objects(&self) -> bool {
        match &self.relay {
            Some(relay) => 0 < relay.engine().stats().objects,
            None => 0 < self.index.objects(),
        }
    }

    fn next_version(&self) -> u64 {
        self.versions.fetch_add(1, Ordering::Relaxed)
    }
}

/// Adds to an event, so that whoever polls it wakes up.
fn wake(event: &OwnedFd) {
    // Full only when nobody has looked for 2^64 times; then it wakes anyway.
    let _full = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// No panic leaves what a lock protects half changed: each change is one call of a map.
fn lock_of<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn system<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> StartError {
    move |source| StartError::System {
        what,
        source: source.into(),
    }
}

/// A session's thread holds a few buffers on its heap and little on its stack.
const STACK_BYTES: usize = 256 << 10;
/// One that calls an engine, whose code may need more.
const ENGINE_STACK_BYTES: usize = 4 << 20;

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .map_err(system("start a thread"))
}
