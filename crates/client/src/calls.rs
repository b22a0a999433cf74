//! Calls on the engine: made on the workers, and waited for.
//!
//! A call is handed over by value. While it runs, its worker owns it, and with it every block that the engine may write. A caller that gives up takes
//! nothing away from a running call: what that brings is dropped when it ends, and so freed.

use crate::{CallError, accounts::Accounts, patience::Wait, workers::Workers};
use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tensorlease_arena::plan::GroupLimits;
use tensorlease_engine::{Capabilities, Engine, Fault, FaultKind, Registration};
use tensorlease_memory::{limits, lock};

/// Engine calls that may hang without a caller before the store says that the engine is gone.
const ABANDONED_CALLS_MAX: usize = 16;

/// The engine, what it claims, and the threads that call it.
pub(crate) struct Calls {
    engine: Arc<dyn Engine>,
    claims: Capabilities,
    workers: Workers,
    accounts: Arc<Accounts>,
}

impl Calls {
    /// `workers`: how many threads the options allow.
    pub(crate) fn new(engine: Arc<dyn Engine>, workers: usize, accounts: Arc<Accounts>) -> Self {
        let mut claims = engine.capabilities().clone();
        // Memory is mapped, and so registered, in whole pages.
        let page = limits::page_bytes() as u64;
        if page <= claims.registration_bytes_max {
            claims.registration_bytes_max -= claims.registration_bytes_max % page;
        }
        let workers = Workers::new(workers.min(claims.readers_worth.max(1)));
        Self {
            engine,
            claims,
            workers,
            accounts,
        }
    }

    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    pub(crate) fn claims(&self) -> &Capabilities {
        &self.claims
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Must memory be registered before the engine transfers to it?
    pub(crate) fn registers(&self) -> bool {
        self.claims.registration == Registration::Required
    }

    /// What one engine call takes.
    pub(crate) fn limits(&self) -> GroupLimits {
        GroupLimits {
            keys_max: self.claims.batch_keys_max.max(1),
            bytes_max: self.claims.batch_bytes_max.max(1),
        }
    }

    /// An engine of which too many calls hang gets no more.
    pub(crate) fn check_alive(&self) -> Result<(), CallError> {
        let hanging = self.workers.abandoned();
        if hanging < ABANDONED_CALLS_MAX {
            return Ok(());
        }
        let name = self.claims.name;
        Err(CallError::Unavailable {
            message: format!(
                "{hanging} calls on the {name} engine hang; see whether it is alive, close this store and open a new one"
            ),
        })
    }

    /// Makes a call on the engine for `asked` keys. Where it breaks its promises (one result per key, no panic), every key has failed.
    pub(crate) fn answers<T>(
        &self,
        asked: usize,
        call: impl FnOnce() -> Vec<Result<T, Fault>>,
    ) -> Vec<Result<T, Fault>> {
        let name = self.claims.name;
        let broken = match catch_unwind(AssertUnwindSafe(call)) {
            Ok(results) if results.len() == asked => return results,
            Ok(results) => format!("the {name} engine gave {} results for {asked} keys", results.len()),
            Err(_) => format!("the {name} engine panicked"),
        };
        (0..asked).map(|_| Err(self.broken(broken.clone()))).collect()
    }

    /// The fault of an engine that broke its contract: what it still does is unknown.
    pub(crate) fn broken(&self, message: String) -> Fault {
        let kind = if self.claims.late_writes {
            FaultKind::MayStillWrite
        } else {
            FaultKind::Refused
        };
        Fault::new(kind, 0, message)
    }

    /// Asks the engine about `keys`, at most `batch_keys_max` at a time. One result per key.
    pub(crate) fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        keys: Vec<String>,
        wait: &Wait<'_>,
        question: impl Fn(&dyn Engine, &[&str]) -> Vec<Result<T, Fault>> + Send + 'static,
    ) -> Result<Vec<Result<T, Fault>>, CallError> {
        let chunk = self.limits().keys_max;
        self.ask_once(wait, move |calls| {
            let mut results = Vec::with_capacity(keys.len());
            for keys in keys.chunks(chunk) {
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                results.extend(calls.answers(keys.len(), || question(&*calls.engine, &keys)));
            }
            results
        })
    }

    /// Runs `question` as a call of one part.
    pub(crate) fn ask_once<T: Send + 'static>(
        self: &Arc<Self>,
        wait: &Wait<'_>,
        question: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let mut answers = run(self, self, vec![Question(question)], 1, wait)?;
        Ok(answers.pop().expect("one answer per question"))
    }
}

/// A call that moves no values.
struct Question<F>(F);

impl<T: Send + 'static, F: FnOnce(&Calls) -> T + Send + 'static> EngineCall for Question<F> {
    type Context = Calls;
    type Done = T;

    fn execute(self, calls: &Arc<Calls>, _gate: &Gate<'_>) -> Vec<T> {
        vec![(self.0)(calls)]
    }

    fn bytes(&self) -> u64 {
        0
    }
}

/// Closed by a caller that gives up: nothing is copied out to it afterwards.
pub(crate) struct Gate<'a> {
    closed: RwLock<bool>,
    /// A call that waited for something was told that its caller has given up.
    refused: AtomicBool,
    /// The caller's own, where the call runs in its thread.
    wait: Option<Wait<'a>>,
}

impl<'a> Gate<'a> {
    fn new(wait: Option<Wait<'a>>) -> Self {
        Self {
            closed: RwLock::new(false),
            refused: AtomicBool::new(false),
            wait,
        }
    }

    fn close(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Held while the caller's memory is copied from or to. True: the caller has given up.
    pub(crate) fn is_closed(&self) -> RwLockReadGuard<'_, bool> {
        self.closed.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a call that runs may wait for something before it asks again.
    pub(crate) fn slice(&self) -> Result<Duration, CallError> {
        let slice = match &self.wait {
            Some(wait) => wait.slice(),
            // Why the caller has given up, it knows itself.
            None if *self.is_closed() => Err(CallError::Interrupted),
            None => Ok(GATE_SLICE),
        };
        if slice.is_err() {
            self.refused.store(true, Ordering::Relaxed);
        }
        slice
    }

    /// Has a call failed for no other reason than that its caller has given up?
    fn has_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }
}

/// A call that waits looks this often whether its caller has given up.
const GATE_SLICE: Duration = Duration::from_millis(20);

/// One engine call: its keys, and the memory it reads or writes.
pub(crate) trait EngineCall: Send + 'static {
    /// What it works with.
    type Context: Send + Sync;
    /// What becomes of one key.
    type Done: Send + 'static;
    /// Makes the call.
    fn execute(self, context: &Arc<Self::Context>, gate: &Gate<'_>) -> Vec<Self::Done>;
    /// Bytes it moves.
    fn bytes(&self) -> u64;
    /// Do they go through a block of the bounce reserve?
    fn bounces(&self) -> bool {
        false
    }
}

/// A call that moves less than this does not gain from being cut for more workers; also where non-temporal copies begin.
const CALL_BYTES_MIN: u64 = 8 << 20;
/// From this mean size on it is for the engine to say.
const LARGE_OBJECT_BYTES: u64 = 1 << 20;

/// The least that a call is worth cutting to, where these objects are moved; `of_large` is what the engine says of large ones.
pub(crate) fn bytes_min(of_large: u64, objects: usize, bytes: u64) -> u64 {
    if bytes / (objects as u64).max(1) < LARGE_OBJECT_BYTES {
        CALL_BYTES_MIN
    } else {
        of_large.max(CALL_BYTES_MIN)
    }
}

/// A single call below this size is run by the caller itself where the engine is prompt: a hand-over costs more.
const INLINE_BYTES_MAX: u64 = 1 << 20;

struct Running<C: EngineCall> {
    calls: Arc<Calls>,
    context: Arc<C::Context>,
    state: Mutex<State<C>>,
    done: Condvar,
    gate: Gate<'static>,
}

struct State<C: EngineCall> {
    queue: VecDeque<C>,
    running: usize,
    finished: Vec<C::Done>,
    abandoned: bool,
    /// The workers were closed before every call ran.
    cut_short: bool,
}

/// Runs all calls, `at_once` of them at a time at most; what they bring comes back in no particular order.
pub(crate) fn run<C: EngineCall>(
    calls: &Arc<Calls>,
    context: &Arc<C::Context>,
    parts: Vec<C>,
    at_once: usize,
    wait: &Wait<'_>,
) -> Result<Vec<C::Done>, CallError> {
    let mut queue = VecDeque::from(parts);
    if calls.claims.prompt && queue.len() == 1 && queue[0].bytes() <= INLINE_BYTES_MAX {
        let call = queue.pop_front().expect("one call");
        let gate = Gate::new(Some(*wait));
        let done = call.execute(context, &gate);
        if gate.has_refused() {
            wait.slice()?;
        }
        return Ok(done);
    }
    let jobs = queue.len().min(calls.workers.count()).min(at_once);
    let running = Arc::new(Running {
        calls: Arc::clone(calls),
        context: Arc::clone(context),
        state: Mutex::new(State {
            queue,
            running: 0,
            finished: Vec::new(),
            abandoned: false,
            cut_short: false,
        }),
        done: Condvar::new(),
        gate: Gate::new(None),
    });
    for _ in 0..jobs {
        Step::submit(&running);
    }
    let waited = wait.wait(&running.state, &running.done, |state| {
        state.cut_short || (state.queue.is_empty() && state.running == 0)
    });
    if let Err(error) = waited {
        return running.abandon().ok_or(error);
    }
    let mut state = lock(&running.state);
    if state.cut_short {
        drop(state);
        return running.abandon().ok_or(CallError::Closed);
    }
    Ok(std::mem::take(&mut state.finished))
}

impl<C: EngineCall> Running<C> {
    /// The caller gives up. Results that came in between are its own after all, unless one of them is only that it has given up.
    fn abandon(&self) -> Option<Vec<C::Done>> {
        // Waits for a copy-out that runs now (milliseconds), so that the caller's memory stays as it is from here on.
        self.gate.close();
        let mut state = lock(&self.state);
        if state.queue.is_empty() && state.running == 0 && !self.gate.has_refused() {
            return Some(std::mem::take(&mut state.finished));
        }
        state.abandoned = true;
        if 0 < state.running {
            self.calls.accounts.counters().abandoned_calls.add(1);
            self.calls.workers.abandon(state.running);
        }
        let (queue, finished) = (std::mem::take(&mut state.queue), std::mem::take(&mut state.finished));
        drop(state);
        drop((queue, finished));
        None
    }

    /// Runs one call, then queues behind other reads: no read keeps the workers to itself.
    fn step(self: &Arc<Self>) {
        let call = {
            let mut state = lock(&self.state);
            let Some(call) = state.queue.pop_front() else { return };
            state.running += 1;
            call
        };
        let finished = call.execute(&self.context, &self.gate);
        let mut state = lock(&self.state);
        state.running -= 1;
        if state.abandoned {
            drop(state);
            drop(finished);
            self.calls.workers.returned();
            return;
        }
        state.finished.extend(finished);
        let more = !state.queue.is_empty();
        let done = !more && state.running == 0;
        drop(state);
        if more {
            Step::submit(self);
        }
        if done {
            self.done.notify_all();
        }
    }
}

/// A step in the workers' queue. Dropped without having run (the workers were closed), it tells its caller.
struct Step<C: EngineCall> {
    running: Option<Arc<Running<C>>>,
}

impl<C: EngineCall> Step<C> {
    fn submit(running: &Arc<Running<C>>) {
        let step = Self {
            running: Some(Arc::clone(running)),
        };
        running.calls.workers.submit(Box::new(move || step.run()));
    }

    fn run(mut self) {
        if let Some(running) = self.running.take() {
            running.step();
        }
    }
}

impl<C: EngineCall> Drop for Step<C> {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            lock(&running.state).cut_short = true;
            running.done.notify_all();
        }
    }
}
