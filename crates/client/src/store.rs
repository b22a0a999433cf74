//! The store: everything a user calls.

use crate::{
    CallError, Expected, KeyFailure, ObjectKind, OpenError, Options, Patience, PutItem, QueryError, ReadError,
    ReadOutput, ReadRequest, RemoveError, Stats, ValueView, WriteError,
    blocking::{call_engine, on_a_reader},
    error::message,
    held::slabs::Refused,
    open,
    parts::Core,
    patience::Wait,
    read,
    write::{self, Route},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};
use tensorlease_arena::{GRANULE_BYTES, SlabKind};
use tensorlease_engine::{CloseError, Engine, Fault, FaultKind};
use tensorlease_memory::{Buffer, Landing, Region, into_whole_buffers};

/// Bound of a close that names none, and of the close of a store that is dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// An engine gets at least this long to close, whatever its calls have used up.
const CLOSE_ENGINE_MIN: Duration = Duration::from_millis(500);
/// A close looks for an interrupt this often.
const CLOSE_ENGINE_SLICE: Duration = Duration::from_millis(20);
/// The first look of a `wait` gets at least this long: a timeout of 0 looks once.
const LOOK_MIN: Duration = Duration::from_millis(400);
/// First pause of `wait` between two looks; doubles up to the longest.
const WAIT_PAUSE_FIRST: Duration = Duration::from_micros(500);
const WAIT_PAUSE_LONGEST: Duration = Duration::from_millis(20);

/// What is under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Tensor or not.
    pub kind: ObjectKind,
    /// Size of the value, bytes.
    pub bytes: u64,
}

/// A store. Clones are handles of the same store, all calls may run from any thread, and the last handle closes it.
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Store")
            .field("url", &self.url())
            .field("closed", &self.is_closed())
            .finish()
    }
}

impl Store {
    /// Opens `embedded://?capacity=4GiB&registration=none|pinned&faults=...`.
    ///
    /// # Errors
    /// [`OpenError::Config`] names the option and what is allowed; [`OpenError::Unavailable`] when the engine or the first
    /// slab can't be had (memlock too low, io_uring refused), with the fix.
    pub fn open(url: &str, options: &Options) -> Result<Self, OpenError> {
        Self::open_within(url, options, Patience::default())
    }

    /// The same, which waits for the store's first memory no longer than `patience`.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_within(url: &str, options: &Options, patience: Patience<'_>) -> Result<Self, OpenError> {
        options.check()?;
        Self::start(open::engine(url)?, options, url, patience)
    }

    /// Opens a store over an engine of the caller's, which the store closes.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn with_engine(engine: Arc<dyn Engine>, options: &Options) -> Result<Self, OpenError> {
        let url = format!("{}://", engine.capabilities().name);
        Self::start(engine, options, &url, Patience::default())
    }

    /// The same for an engine that was made from a URL, which [`Store::url`] then returns.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn with_engine_at(
        url: &str,
        engine: Arc<dyn Engine>,
        options: &Options,
        patience: Patience<'_>,
    ) -> Result<Self, OpenError> {
        Self::start(engine, options, url, patience)
    }

    fn start(engine: Arc<dyn Engine>, options: &Options, url: &str, patience: Patience<'_>) -> Result<Self, OpenError> {
        let core = open::core(engine, options, url, patience)?;
        if core.returns_idle_slabs() {
            let weak = Arc::downgrade(&core);
            core.readers.when_idle(Box::new(move || {
                if let Some(core) = weak.upgrade().filter(|core| !core.is_closed()) {
                    core.give_up_empty_lent_slabs();
                }
            }));
        }
        Ok(Self {
            handle: Arc::new(Handle { core }),
        })
    }

    /// Stores every item. An existing key is replaced.
    ///
    /// # Errors
    /// [`WriteError`] names every key that failed; the others are stored.
    pub fn put(&self, items: Vec<PutItem>, patience: Patience<'_>) -> Result<(), WriteError> {
        self.put_by(items, Route::default(), patience)
    }

    /// The same, by a way of the caller's choice.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_by(&self, items: Vec<PutItem>, route: Route, patience: Patience<'_>) -> Result<(), WriteError> {
        write::put(self.core(), items, route, patience)
    }

    /// Reads every item, or nothing.
    ///
    /// # Errors
    /// [`ReadError`] names every key that failed.
    pub fn get(&self, request: ReadRequest, patience: Patience<'_>) -> Result<ReadOutput, ReadError> {
        read::get(self.core(), request, patience)
    }

    /// Reads every value where the engine keeps it, or nothing: no copy, whatever its size. A viewed value stays as it is until its view is dropped,
    /// also when it is replaced or removed meanwhile; its memory is not free before that.
    ///
    /// # Errors
    /// [`ReadError`] names every key that failed; [`CallError::Invalid`] on an engine that shows nothing in place.
    pub fn view(&self, wanted: &[(String, Expected)], patience: Patience<'_>) -> Result<Vec<ValueView>, ReadError> {
        let core = self.core();
        let _entered = core.enter()?;
        for (key, _) in wanted {
            read::arguments::key(key)?;
        }
        read::views(core, wanted, &patience.bounded(core.options.call_timeout))
    }

    /// A block of the arena of `bytes` bytes, contents unspecified. A put of it needs no copy and no registration.
    ///
    /// # Errors
    /// [`ReadError::ArenaExhausted`] when the budget has no such block; it never falls back. [`CallError::Timeout`] when the arena has not grown
    /// by then.
    pub fn empty(&self, bytes: u64, patience: Patience<'_>) -> Result<Buffer, ReadError> {
        let core = self.core();
        let _entered = core.enter()?;
        if bytes == 0 {
            return Ok(Buffer::from(tensorlease_memory::HeapBytes::new(0)));
        }
        let wait = patience.bounded(core.options.call_timeout);
        let mut acquired = core.acquire(SlabKind::Lease, &[(bytes, GRANULE_BYTES)], || wait.slice())?;
        if let Some(refused) = acquired.refused.map(|refused| refused.told(core)) {
            return Err(exhausted(core, bytes, &refused));
        }
        let block = acquired.blocks.pop().expect("not refused, so there is a block");
        Ok(into_whole_buffers(vec![Landing::Block(block)]).remove(0))
    }

    /// Does this memory lie in one live block of the arena? Then a put of it needs no copy and no registration.
    #[must_use]
    pub fn owns(&self, region: Region) -> bool {
        let core = self.core();
        // In a forked child a lock may be held by a thread that is not there.
        !core.forked() && core.arena.contains(region)
    }

    /// Which keys there are.
    ///
    /// # Errors
    /// [`QueryError`] when the engine can't say.
    pub fn contains(&self, keys: &[String], patience: Patience<'_>) -> Result<Vec<bool>, QueryError> {
        let core = self.core();
        let _entered = core.enter()?;
        let wait = patience.bounded(core.options.call_timeout);
        self.check_keys(keys)?;
        self.contains_now(keys, &wait)
    }

    /// Would a call about these keys begin? Asks no engine.
    ///
    /// # Errors
    /// [`CallError`]: a key that no call takes, a store that is closed, or is another process's.
    pub fn check(&self, keys: &[String]) -> Result<(), CallError> {
        let _entered = self.core().enter()?;
        self.check_keys(keys)
    }

    /// The error of a wait that is over after `waited`, for those who look for keys themselves. `looked`: the engine has answered at least once; where
    /// it has not, nothing is known of the keys.
    #[must_use]
    pub fn not_there(missing: &[String], waited: Duration, looked: bool) -> QueryError {
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        let timeout = CallError::Timeout { waited_ms };
        if looked {
            not_there(timeout, missing)
        } else {
            timeout.into()
        }
    }

    /// Returns once every key is there.
    ///
    /// # Errors
    /// [`QueryError::NotThere`] past the deadline, with the keys; another [`QueryError`] when the engine can't say.
    pub fn wait(&self, keys: &[String], patience: Patience<'_>) -> Result<(), QueryError> {
        let core = self.core();
        let _entered = core.enter()?;
        let wait = patience.bounded(core.options.call_timeout);
        self.check_keys(keys)?;
        let mut missing = keys.to_vec();
        let mut pause = WAIT_PAUSE_FIRST;
        // An engine that does not answer the first look has said nothing about the keys.
        let mut found = self.contains_now(&missing, &wait.at_least(LOOK_MIN))?;
        loop {
            let mut there = found.into_iter();
            missing.retain(|_| !there.next().unwrap_or(false));
            if missing.is_empty() {
                return Ok(());
            }
            if core.is_closed() {
                return Err(CallError::Closed.into());
            }
            wait.sleep(pause).map_err(|error| not_there(error, &missing))?;
            pause = (pause * 2).min(WAIT_PAUSE_LONGEST);
            found = match self.contains_now(&missing, &wait) {
                Err(QueryError::Call(error @ CallError::Timeout { .. })) => return Err(not_there(error, &missing)),
                found => found?,
            };
        }
    }

    /// What is under each key, `None` where there is nothing.
    ///
    /// # Errors
    /// [`CallError::Invalid`] on an engine that does not know shapes and dtypes.
    pub fn describe(&self, keys: &[String], patience: Patience<'_>) -> Result<Vec<Option<Described>>, QueryError> {
        let core = self.core();
        let _entered = core.enter()?;
        self.check_keys(keys)?;
        read::describe(core, keys, &patience.bounded(core.options.call_timeout))
    }

    /// Does the engine know shapes and dtypes, so that a read may leave them out?
    #[must_use]
    pub fn describes(&self) -> bool {
        self.core().capabilities.describes
    }

    /// Removes objects; missing keys are fine. Returns how many there were.
    ///
    /// # Errors
    /// [`RemoveError`] names the keys that the engine refused; the others are gone.
    pub fn remove(&self, keys: &[String], patience: Patience<'_>) -> Result<u64, RemoveError> {
        let core = self.core();
        let _entered = core.enter()?;
        self.check_keys(keys)?;
        let wait = patience.bounded(core.options.call_timeout);
        let (removed, failures) = write::remove(core, &self.full(keys), &wait)?;
        if failures.is_empty() {
            return Ok(removed);
        }
        reachable("can't remove", &failures)?;
        Err(RemoveError::Transfer {
            message: message("can't remove", &failures),
            failures,
        })
    }

    /// Removes every object of the namespace. Returns how many there were.
    ///
    /// # Errors
    /// [`RemoveError`] when the engine refused.
    pub fn clear(&self, patience: Patience<'_>) -> Result<u64, RemoveError> {
        let core = self.core();
        let _entered = core.enter()?;
        let wait = patience.bounded(core.options.call_timeout);
        let cleared = on_a_reader(core, &wait, |core| {
            let namespace = core.options.namespace.clone();
            let clear = AssertUnwindSafe(|| core.engine.remove_prefix(&namespace));
            let cleared = catch_unwind(clear);
            let panicked = cleared.is_err();
            let broken = || core.broken(format!("the {} engine panicked", core.capabilities.name));
            (cleared.unwrap_or_else(|_| Err(broken())), panicked)
        })?;
        let (cleared, panicked) = cleared;
        cleared.map_err(|fault: Fault| {
            if fault.kind == FaultKind::Refused && !panicked {
                // What was asked is wrong, for instance that everything of everybody goes.
                let message = format!("can't clear the namespace: {}", fault.message);
                return CallError::Invalid { message }.into();
            }
            let failures = vec![KeyFailure::new(&core.options.namespace, fault)];
            if let Err(error) = reachable("can't clear the namespace", &failures) {
                return error.into();
            }
            RemoveError::Transfer {
                message: message("can't clear the namespace", &failures),
                failures,
            }
        })
    }

    /// Counters since open, and what is held now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core().stats()
    }

    /// Adds to `wrap_seconds`: what a binding spends on making its tensors.
    pub fn count_wrap(&self, elapsed: Duration) {
        self.core().stages.wrap.add(elapsed);
    }

    /// Gives empty slabs back to the system; the next read makes new ones. Returns the bytes given back.
    #[must_use]
    pub fn trim(&self) -> u64 {
        self.core().trim()
    }

    /// Ends the store: refuses new calls, waits for running ones as long as `patience` allows (5 s by default), gives the
    /// arena back and closes the engine. Idempotent. Values still held stay valid.
    ///
    /// # Errors
    /// [`CallError::Forked`] in a child process, which must leave its parent's store alone.
    pub fn close(&self, patience: Patience<'_>) -> Result<(), CallError> {
        let core = self.core();
        if core.forked() {
            return Err(CallError::Forked);
        }
        core.close(patience.bounded(CLOSE_TIMEOUT));
        Ok(())
    }

    /// Has it been closed?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.core().is_closed()
    }

    /// Is this process a child of the one that opened it? Then every call is refused.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.core().forked()
    }

    /// As it was opened.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.core().url
    }

    /// As it was opened.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.core().options
    }

    fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    fn contains_now(&self, keys: &[String], wait: &Wait<'_>) -> Result<Vec<bool>, QueryError> {
        let results = call_engine(self.core(), self.full(keys), wait, |engine, keys| {
            engine.contains_batch(keys)
        })?;
        let (mut there, mut failures) = (Vec::with_capacity(keys.len()), Vec::new());
        for (key, result) in keys.iter().zip(results) {
            match result {
                Ok(is_there) => there.push(is_there),
                Err(fault) => failures.push(KeyFailure::new(key, fault)),
            }
        }
        if failures.is_empty() {
            return Ok(there);
        }
        reachable("can't look for keys", &failures)?;
        Err(QueryError::Transfer {
            message: message("can't look for keys", &failures),
            failures,
        })
    }

    fn check_keys(&self, keys: &[String]) -> Result<(), CallError> {
        keys.iter().try_for_each(|key| read::arguments::key(key))
    }

    fn full(&self, keys: &[String]) -> Vec<String> {
        let namespace = &self.core().options.namespace;
        keys.iter().map(|key| format!("{namespace}{key}")).collect()
    }
}

/// Where nothing was reached at all, that is the error, whatever was asked.
fn reachable(what: &str, failures: &[KeyFailure]) -> Result<(), CallError> {
    if failures.iter().any(|failure| failure.kind != FaultKind::Unavailable) {
        return Ok(());
    }
    Err(CallError::Unavailable {
        message: message(what, failures),
    })
}

/// A wait that is over names what it waited for.
fn not_there(error: CallError, missing: &[String]) -> QueryError {
    let CallError::Timeout { waited_ms } = error else {
        return error.into();
    };
    let absent = || {
        Fault::new(
            FaultKind::NotFound,
            0,
            "not put yet; see whether the writer runs, or raise timeout",
        )
    };
    let failures: Vec<KeyFailure> = missing.iter().map(|key| KeyFailure::new(key, absent())).collect();
    QueryError::NotThere {
        message: message(&format!("not there within {waited_ms} ms"), &failures),
        failures,
    }
}

fn exhausted(core: &Core, asked: u64, refused: &Refused) -> ReadError {
    let message = format!("no block of {asked} bytes: {} ({refused})", refused.kind.words());
    core.exhausted(message, asked).into()
}

impl Core {
    fn trim(&self) -> u64 {
        if self.forked() || self.is_closed() {
            return 0;
        }
        self.arena.forget_refusals();
        self.copies.forget_refusals();
        let copies: u64 = self
            .copies
            .take_empty_slabs()
            .iter()
            .map(|slab| slab.len() as u64)
            .sum();
        copies + self.give_up_empty_slabs()
    }

    /// Requirement A13: the pool first, then the engine.
    fn close(&self, wait: Wait<'_>) {
        if !self.set_closed() {
            return;
        }
        // A deadline or an interrupt ends the waiting, never the closing.
        while 0 < self.calls_running() && wait.sleep(Duration::from_millis(1)).is_ok() {}
        self.arena.close();
        self.copies.close();
        let mut ended = self.readers.close(Instant::now());
        while !ended && wait.sleep(Duration::from_millis(1)).is_ok() {
            ended = self.readers.close(Instant::now());
        }
        // A slab in the making is registered by a thread of its own.
        let growing = || self.arena.is_growing() || self.copies.is_growing();
        while growing() && wait.sleep(Duration::from_millis(1)).is_ok() {}
        // A call may also run on its caller's own thread, which closing doesn't end.
        if ended && self.calls_running() == 0 && !self.arena.is_growing() {
            let registered: Vec<(usize, usize)> = crate::patience::lock(&self.registered).iter().copied().collect();
            for (addr, len) in registered {
                self.unregister_slab(Region { addr, len });
            }
        } else {
            // Memory of a running transfer stays registered: closing the engine ends that too.
            log::warn!(
                "closing while calls on the {} engine still run; their memory is kept until they return",
                self.capabilities.name
            );
        }
        match self.close_engine(&wait) {
            Some(Ok(())) => {
                self.end_quarantine();
                // With the engine every registration has ended, also of memory that a running call held.
                crate::patience::lock(&self.registered).clear();
                // Slabs without a block go now, not when the last handle of the store does: a host's are for its other processes.
                drop((self.arena.take_empty_slabs(), self.copies.take_empty_slabs()));
            }
            // Whether transfers still write is unknown: what is quarantined stays so.
            Some(Err(error)) => log::warn!("{}", open::chain(&error)),
            None => log::warn!(
                "the {} engine has not closed in time; what is quarantined stays mapped",
                self.capabilities.name
            ),
        }
    }

    /// An engine may wait for calls that hang: its close gets a thread of its own, and this call its bound.
    fn close_engine(&self, wait: &Wait<'_>) -> Option<Result<(), CloseError>> {
        let (sender, receiver) = mpsc::channel();
        let engine = Arc::clone(&self.engine);
        let close = move || {
            let result = catch_unwind(AssertUnwindSafe(|| engine.close()));
            let panicked = || {
                Err(CloseError::Failed {
                    source: "the engine panicked".into(),
                })
            };
            // Nobody listens any more when the bound has passed.
            let _ = sender.send(result.unwrap_or_else(|_| panicked()));
        };
        thread::Builder::new()
            .name("tensorlease-close".to_owned())
            .spawn(close)
            .ok()?;
        let at_least = Instant::now() + CLOSE_ENGINE_MIN;
        loop {
            match receiver.recv_timeout(CLOSE_ENGINE_SLICE) {
                Ok(result) => return Some(result),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) if at_least < Instant::now() && wait.slice().is_err() => {
                    return None;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Closes the store when the last of its users lets go of it.
struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.core.forked() {
            // The parent's store is not ours to close: its threads and its kernel objects are not here, or are shared.
            std::mem::forget(Arc::clone(&self.core));
            return;
        }
        self.core.close(Patience::default().bounded(CLOSE_TIMEOUT));
    }
}
