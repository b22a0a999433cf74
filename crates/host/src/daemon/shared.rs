//! What all threads of a daemon share: its memory, its objects, its clients.
use super::event::Event;
use super::extent::Extent;
use super::latch::Latch;
use super::mapped;
use super::memory::ArenaMemory;
use super::object::Object;
use super::relay::Relay;
use super::session::Session;
use super::start::{DaemonOptions, StartError, system};
use rustix::process::Pid;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tensorlease_engine::ObjectIndex;
use tensorlease_memory::lock;

pub(super) struct Shared {
    pub(super) options: DaemonOptions,
    pub(super) memory: ArenaMemory,
    /// Objects of the daemon's own.
    pub(super) index: ObjectIndex<Object>,
    /// The engine behind the daemon. If there is one, it has the objects.
    pub(super) relay: Option<Arc<Relay>>,
    pub(super) sessions: Mutex<HashMap<u64, Arc<Session>>>,
    pub(super) sessions_made: AtomicU64,
    versions: AtomicU64,
    pub(super) started: Instant,
    stopping: AtomicBool,
    /// Threads that serve a client.
    pub(super) serving: AtomicUsize,
    /// Wakes the reaper when the sessions change or the daemon stops.
    pub(super) sessions_changed: Event,
    /// Wakes the listener when the daemon stops.
    pub(super) stopped: Event,
    pub(super) ended: Latch<()>,
}

impl Shared {
    pub(super) fn new(
        options: DaemonOptions,
        memory: ArenaMemory,
        relay: Option<Arc<Relay>>,
    ) -> Result<Self, StartError> {
        let event = || Event::new().map_err(system("make an event"));
        Ok(Self {
            options,
            memory,
            index: ObjectIndex::default(),
            relay,
            sessions: Mutex::default(),
            sessions_made: AtomicU64::new(0),
            versions: AtomicU64::new(1),
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            serving: AtomicUsize::new(0),
            sessions_changed: event()?,
            stopped: event()?,
            ended: Latch::default(),
        })
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stopped.wake();
        self.sessions_changed.wake();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Are there objects that would end with the daemon?
    pub(super) fn has_objects(&self) -> bool {
        match &self.relay {
            Some(relay) => 0 < relay.engine().stats().objects,
            None => 0 < self.index.objects(),
        }
    }

    pub(super) fn next_version(&self) -> u64 {
        self.versions.fetch_add(1, Ordering::Relaxed)
    }

    /// All sessions there are now.
    pub(super) fn all_sessions(&self) -> Vec<Arc<Session>> {
        lock(&self.sessions).values().cloned().collect()
    }

    pub(super) fn add_session(&self, session: &Arc<Session>) {
        lock(&self.sessions).insert(session.number, Arc::clone(session));
        self.sessions_changed.wake();
    }

    /// The socket has ended. A client that holds nothing is gone. So is one that has nothing mapped: its process has
    /// become another program. What any other client holds waits for the end of its process, which may still read and
    /// write that memory.
    pub(super) fn cut_off(&self, session: &Session) {
        if session.close() {
            self.forget(session);
        } else if !mapped::may_touch_memory(session.pid) {
            self.bury(session);
        }
    }

    /// The process is dead. Whatever it held goes back, but for extents in which a transfer runs or may still write.
    pub(super) fn bury(&self, session: &Session) {
        let (held, extents) = session.holdings().end();
        // After that no lane is added, and no transfer begins.
        session.hang_up();
        // Not under the lock of the holdings: giving back takes other locks.
        drop(held);
        self.take_back(extents);
        self.forget(session);
    }

    /// Extents whose client is done with them.
    pub(super) fn take_back(&self, extents: Vec<Arc<Extent>>) {
        match &self.relay {
            Some(relay) => relay.quarantine.take(extents),
            None => drop(extents),
        }
    }

    /// The session of this very process that a connection wants to be a lane of.
    pub(super) fn session_of(&self, number: u64, pid: Pid) -> Option<Arc<Session>> {
        let session = lock(&self.sessions).get(&number).cloned();
        session.filter(|session| session.pid == pid)
    }

    pub(super) fn forget(&self, session: &Session) {
        lock(&self.sessions).remove(&session.number);
        self.sessions_changed.wake();
    }
}
