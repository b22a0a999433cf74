//! The daemon: owns the memory and the index of the objects, and knows what each client holds.
mod event;
mod extent;
mod holdings;
mod latch;
mod listener;
mod mapped;
mod memory;
mod namespaces;
mod object;
mod reaper;
mod relay;
mod report;
mod serve;
mod session;
mod shared;
mod start;
mod threads;
mod violation;

pub use relay::Behind;
pub use start::{DaemonOptions, StartError};

use crate::place::SocketPath;
use memory::ArenaMemory;
use relay::Relay;
use shared::Shared;
use start::system;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tensorlease_memory::lock;

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

    /// Starts one whose objects an engine has. The engine moves them in and out of the daemon's memory, which is
    /// registered with it. It is closed when the daemon stops, and when the daemon does not start.
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
        let place = options.socket.clone();
        place.make_folder()?;
        let Some(lock_file) = place.try_lock()? else {
            return Err(StartError::Running {
                holder: place.holder().unwrap_or_default(),
                socket: place,
            });
        };
        let engine = behind.as_ref().map(|behind| Arc::clone(&behind.engine));
        let memory = ArenaMemory::new(options.max_bytes, engine)?;
        let relay = behind.map(|behind| Arc::new(Relay::new(behind, memory.longest_block_bytes())));
        let shared = Arc::new(Shared::new(options, memory, relay)?);
        let listener = listener::bind(&place)?;
        let daemon = Self {
            shared: Arc::clone(&shared),
            threads: Mutex::default(),
        };
        let reaping = Arc::clone(&shared);
        daemon.spawn("tensorlease-reaper", move || reaper::run(&reaping))?;
        daemon.spawn("tensorlease-listener", move || {
            listener::run(&shared, &listener, lock_file);
        })?;
        Ok(daemon)
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
        let thread = threads::spawn(name, threads::STACK_BYTES, work).map_err(system("start a thread"))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Where it listens.
    pub fn socket(&self) -> &SocketPath {
        &self.shared.options.socket
    }

    /// Waits until the daemon has ended, by itself or because it was stopped. False: it has not within `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.shared.ended.wait(timeout).is_some()
    }

    /// Ends it. No new client is taken in, and each client's connection ends after the request that is being served.
    /// Memory that clients have mapped stays readable for them. Idempotent.
    pub fn stop(&self) {
        self.shared.stop();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // A thread that panicked has said so. The others end all the same.
            let _panicked = thread.join();
        }
    }

    /// Has the engine behind it closed? False also where it did not close in time: a call on it hangs, and may still
    /// write memory of this process. True where there is no engine.
    pub fn has_closed(&self) -> bool {
        let relay = self.shared.relay.as_ref();
        relay.is_none_or(|relay| relay.has_closed(Duration::ZERO))
    }

    /// Extents of clients that are gone, bytes, which a transfer still holds.
    pub fn quarantined_bytes(&self) -> u64 {
        let relay = self.shared.relay.as_ref();
        relay.map_or(0, |relay| relay.quarantine.bytes())
    }

    /// Takes in a client that is connected already, without asking who it is. It counts as dead once `death` is
    /// readable. For tests whose client is a part of their own process.
    pub fn attach(&self, client: OwnedFd, death: OwnedFd) {
        listener::admit(&self.shared, client, rustix::process::getpid(), death);
    }

    /// How many sessions there are. Sessions that only wait for the end of their process count too.
    pub fn sessions(&self) -> usize {
        lock(&self.shared.sessions).len()
    }

    /// Bytes of whole blocks that are handed out: objects, extents and reservations.
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
