//! Runs the engine calls of one read or write on the readers, and waits for them.
//!
//! A call is handed over by value: while it runs the worker owns it, and with it every block the engine may write. A caller that gives up takes nothing away from a running call; what comes back is dropped then, and so freed.

use crate::{
    CallError,
    parts::Core,
    patience::{Wait, lock},
};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

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

    /// Held by whoever copies from or to the caller's memory. True: it has given up.
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
    /// What becomes of one key.
    type Done: Send + 'static;
    /// Makes the call.
    fn execute(self, core: &Arc<Core>, gate: &Gate<'_>) -> Vec<Self::Done>;
    /// Bytes it moves.
    fn bytes(&self) -> u64;
    /// Do they go through a block of the bounce reserve?
    fn bounces(&self, core: &Core) -> bool;
}

/// A call that moves less than this does not gain from being cut for more readers; also where non-temporal copies begin.
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
    core: Arc<Core>,
    state: Mutex<State<C>>,
    done: Condvar,
    gate: Gate<'static>,
}

struct State<C: EngineCall> {
    queue: VecDeque<C>,
    running: usize,
    finished: Vec<C::Done>,
    abandoned: bool,
    /// The readers were closed before every call ran.
    cut_short: bool,
}

/// Runs all calls, `at_once` of them at a time at most; what they bring comes back in no particular order.
pub(crate) fn run<C: EngineCall>(
    core: &Arc<Core>,
    calls: Vec<C>,
    at_once: usize,
    wait: &Wait<'_>,
) -> Result<Vec<C::Done>, CallError> {
    let bounced = calls.iter().filter(|call| call.bounces(core));
    if let Some(bytes) = bounced.map(EngineCall::bytes).max() {
        core.make_reserve(bytes, || wait.slice())?;
    }
    let mut queue = VecDeque::from(calls);
    if core.capabilities.prompt && queue.len() == 1 && queue[0].bytes() <= INLINE_BYTES_MAX {
        let call = queue.pop_front().expect("one call");
        let gate = Gate::new(Some(*wait));
        let done = call.execute(core, &gate);
        if gate.has_refused() {
            wait.slice()?;
        }
        return Ok(done);
    }
    let jobs = queue.len().min(core.readers.count()).min(at_once);
    let running = Arc::new(Running {
        core: Arc::clone(core),
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
            self.core.counters.abandoned_calls.add(1);
            self.core.readers.abandon(state.running);
        }
        let (queue, finished) = (std::mem::take(&mut state.queue), std::mem::take(&mut state.finished));
        drop(state);
        drop((queue, finished));
        None
    }

    /// Runs one call, then queues behind other reads: no read keeps the readers to itself.
    fn step(self: &Arc<Self>) {
        let call = {
            let mut state = lock(&self.state);
            let Some(call) = state.queue.pop_front() else { return };
            state.running += 1;
            call
        };
        let finished = call.execute(&self.core, &self.gate);
        let mut state = lock(&self.state);
        state.running -= 1;
        if state.abandoned {
            drop(state);
            drop(finished);
            self.core.readers.returned();
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

/// A step in the readers' queue. Dropped without having run (the readers were closed), it tells its caller.
struct Step<C: EngineCall> {
    running: Option<Arc<Running<C>>>,
}

impl<C: EngineCall> Step<C> {
    fn submit(running: &Arc<Running<C>>) {
        let step = Self {
            running: Some(Arc::clone(running)),
        };
        running.core.readers.submit(Box::new(move || step.run()));
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
