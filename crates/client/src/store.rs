//! The store: everything a user calls.

use crate::{
    CallError, Described, Expected, KeyFailure, OpenError, Options, Patience, PutItem, PutMode, QueryError, ReadError,
    ReadOutput, ReadRequest, RemoveError, Stats, ValueView, WriteError,
    close::{self, CLOSE_TIMEOUT, Handle},
    error::{all_or_failures, message},
    keys, open,
    parts::Parts,
    patience::Wait,
    per_call, read, write,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};
use tensorlease_arena::{GRANULE_BYTES, SlabKind};
use tensorlease_engine::{Engine, Fault, FaultKind};
use tensorlease_memory::{Buffer, HeapBytes, Landing, Region, into_whole_buffers};

/// The first look of a `wait` gets at least this long: a timeout of 0 looks once.
const LOOK_MIN: Duration = Duration::from_millis(400);
/// First pause of `wait` between two looks; doubles up to the longest.
const WAIT_PAUSE_FIRST: Duration = Duration::from_micros(500);
const WAIT_PAUSE_LONGEST: Duration = Duration::from_millis(20);

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

    /// Opens a store, and waits for its first memory no longer than `patience`.
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

    /// Opens a store over an engine that was made from a URL, which [`Store::url`] then returns.
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
        let parts = open::parts(engine, options, url, patience)?;
        // Memory that others wait for goes back when this process has nothing to do, where it did not ask to have it in hand.
        if parts.memory.lends_slabs() && parts.options.prewarm_bytes == 0 {
            let weak = Arc::downgrade(&parts);
            parts.calls.workers().when_idle(Box::new(move || {
                if let Some(parts) = weak.upgrade().filter(|parts| !parts.life.is_closed()) {
                    parts.memory.give_up_empty_lent_slabs();
                }
            }));
        }
        Ok(Self {
            handle: Arc::new(Handle { parts }),
        })
    }

    /// Stores every item. An existing key is replaced.
    ///
    /// # Errors
    /// [`WriteError`] names every key that failed; the others are stored.
    pub fn put(&self, items: Vec<PutItem>, patience: Patience<'_>) -> Result<(), WriteError> {
        self.put_by(items, PutMode::default(), patience)
    }

    /// Stores every item by a way of the caller's choice.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_by(&self, items: Vec<PutItem>, mode: PutMode, patience: Patience<'_>) -> Result<(), WriteError> {
        if per_call::puts(self.parts(), mode) {
            return per_call::put(self.parts(), items, patience);
        }
        write::put(self.parts(), items, patience)
    }

    /// Reads every item, or nothing.
    ///
    /// # Errors
    /// [`ReadError`] names every key that failed.
    pub fn get(&self, request: ReadRequest, patience: Patience<'_>) -> Result<ReadOutput, ReadError> {
        match per_call::get(self.parts(), request, patience) {
            Ok(answer) => answer,
            Err(request) => read::get(self.parts(), request, patience),
        }
    }

    /// Reads every value where the engine keeps it, or nothing: no copy, whatever its size. A viewed value stays as it is until its view is dropped,
    /// also when it is replaced or removed meanwhile; its memory is not free before that.
    ///
    /// # Errors
    /// [`ReadError`] names every key that failed; [`CallError::Invalid`] on an engine that shows nothing in place.
    pub fn view(&self, wanted: &[(String, Expected)], patience: Patience<'_>) -> Result<Vec<ValueView>, ReadError> {
        let parts = self.parts();
        let _entered = parts.enter()?;
        for (key, _) in wanted {
            keys::check(key)?;
        }
        read::views(parts, wanted, &patience.bounded(parts.options.call_timeout))
    }

    /// A block of the arena of `bytes` bytes, contents unspecified. A put of it needs no copy and no registration.
    ///
    /// # Errors
    /// [`ReadError::ArenaExhausted`] when the budget has no such block; it never falls back. [`CallError::Timeout`] when the arena has not grown
    /// by then.
    pub fn empty(&self, bytes: u64, patience: Patience<'_>) -> Result<Buffer, ReadError> {
        let parts = self.parts();
        let _entered = parts.enter()?;
        if bytes == 0 {
            return Ok(Buffer::from(HeapBytes::new(0)));
        }
        let wait = patience.bounded(parts.options.call_timeout);
        let wanted = (bytes, GRANULE_BYTES);
        match parts.memory.acquire_one(SlabKind::Lease, wanted, || wait.slice())? {
            Ok(block) => Ok(into_whole_buffers(vec![Landing::Block(block)]).remove(0)),
            Err(refused) => {
                let message = format!("no block of {bytes} bytes: {} ({refused})", refused.kind.words());
                Err(parts.memory.exhausted(message, bytes).into())
            }
        }
    }

    /// Does this memory lie in one live block of the arena? Then a put of it needs no copy and no registration.
    #[must_use]
    pub fn owns(&self, region: Region) -> bool {
        let parts = self.parts();
        // In a forked child a lock may be held by a thread that is not there.
        !parts.life.is_forked() && parts.memory.owns(region)
    }

    /// Which keys there are.
    ///
    /// # Errors
    /// [`QueryError`] when the engine can't say.
    pub fn contains(&self, keys: &[String], patience: Patience<'_>) -> Result<Vec<bool>, QueryError> {
        let parts = self.parts();
        let _entered = parts.enter()?;
        let wait = patience.bounded(parts.options.call_timeout);
        self.check_keys(keys)?;
        self.contains_now(keys, &wait)
    }

    /// Would a call about these keys begin? Asks no engine.
    ///
    /// # Errors
    /// [`CallError`]: a key that no call takes, a store that is closed, or is another process's.
    pub fn check(&self, keys: &[String]) -> Result<(), CallError> {
        let _entered = self.parts().enter()?;
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
        let parts = self.parts();
        let _entered = parts.enter()?;
        let wait = patience.bounded(parts.options.call_timeout);
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
            if parts.life.is_closed() {
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
        let parts = self.parts();
        let _entered = parts.enter()?;
        self.check_keys(keys)?;
        read::describe(parts, keys, &patience.bounded(parts.options.call_timeout))
    }

    /// Does the engine know shapes and dtypes, so that a read may leave them out?
    #[must_use]
    pub fn describes(&self) -> bool {
        self.parts().calls.claims().describes
    }

    /// Removes objects; missing keys are fine. Returns how many there were.
    ///
    /// # Errors
    /// [`RemoveError`] names the keys that the engine refused; the others are gone.
    pub fn remove(&self, keys: &[String], patience: Patience<'_>) -> Result<u64, RemoveError> {
        let parts = self.parts();
        let _entered = parts.enter()?;
        self.check_keys(keys)?;
        let wait = patience.bounded(parts.options.call_timeout);
        let remove = |engine: &dyn Engine, keys: &[&str]| engine.remove_batch(keys);
        let removed = parts.calls.ask(self.full(keys), &wait, remove)?;
        match all_or_failures(keys, removed) {
            Ok(removed) => Ok(removed.into_iter().map(u64::from).sum()),
            Err(failures) => {
                reachable("can't remove", &failures)?;
                Err(RemoveError::Transfer {
                    message: message("can't remove", &failures),
                    failures,
                })
            }
        }
    }

    /// Removes every object of the namespace. Returns how many there were.
    ///
    /// # Errors
    /// [`RemoveError`] when the engine refused.
    pub fn clear(&self, patience: Patience<'_>) -> Result<u64, RemoveError> {
        let parts = self.parts();
        let _entered = parts.enter()?;
        let wait = patience.bounded(parts.options.call_timeout);
        let namespace = parts.options.namespace.clone();
        let (cleared, panicked) = parts.calls.ask_once(&wait, move |calls| {
            let cleared = catch_unwind(AssertUnwindSafe(|| calls.engine().remove_prefix(&namespace)));
            let panicked = cleared.is_err();
            let broken = || calls.broken(format!("the {} engine panicked", calls.claims().name));
            (cleared.unwrap_or_else(|_| Err(broken())), panicked)
        })?;
        cleared.map_err(|fault: Fault| {
            if fault.kind == FaultKind::Refused && !panicked {
                // What was asked is wrong, for instance that everything of everybody goes.
                let message = format!("can't clear the namespace: {}", fault.message);
                return CallError::Invalid { message }.into();
            }
            let failures = vec![KeyFailure::new(&parts.options.namespace, fault)];
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
        self.parts().stats()
    }

    /// Adds to `wrap_seconds`: what a binding spends on making its tensors.
    pub fn count_wrap(&self, elapsed: Duration) {
        self.parts().accounts.stages().wrap.add(elapsed);
    }

    /// Gives empty slabs back to the system; the next read makes new ones. Returns the bytes given back.
    #[must_use]
    pub fn trim(&self) -> u64 {
        let Parts { life, memory, .. } = &**self.parts();
        if life.is_forked() || life.is_closed() {
            0
        } else {
            memory.trim()
        }
    }

    /// Ends the store: refuses new calls, waits for running ones as long as `patience` allows (5 s by default), gives the
    /// arena back and closes the engine. Idempotent. Values still held stay valid.
    ///
    /// # Errors
    /// [`CallError::Forked`] in a child process, which must leave its parent's store alone.
    pub fn close(&self, patience: Patience<'_>) -> Result<(), CallError> {
        let parts = self.parts();
        if parts.life.is_forked() {
            return Err(CallError::Forked);
        }
        close::close(parts, patience.bounded(CLOSE_TIMEOUT));
        Ok(())
    }

    /// Has it been closed?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.parts().life.is_closed()
    }

    /// Is this process a child of the one that opened it? Then every call is refused.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.parts().life.is_forked()
    }

    /// As it was opened.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.parts().url
    }

    /// As it was opened.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.parts().options
    }

    fn parts(&self) -> &Arc<Parts> {
        &self.handle.parts
    }

    fn contains_now(&self, keys: &[String], wait: &Wait<'_>) -> Result<Vec<bool>, QueryError> {
        let calls = &self.parts().calls;
        let results = calls.ask(self.full(keys), wait, |engine, keys| engine.contains_batch(keys))?;
        all_or_failures(keys, results).or_else(|failures| {
            reachable("can't look for keys", &failures)?;
            Err(QueryError::Transfer {
                message: message("can't look for keys", &failures),
                failures,
            })
        })
    }

    fn check_keys(&self, keys: &[String]) -> Result<(), CallError> {
        keys.iter().try_for_each(|key| keys::check(key))
    }

    fn full(&self, keys: &[String]) -> Vec<String> {
        keys::all_namespaced(&self.parts().options.namespace, keys)
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
