//! Engine calls about keys alone: on a reader, in chunks that the engine takes, with the caller's wait.

use crate::{
    CallError,
    parts::Core,
    patience::{Wait, lock},
};
use std::sync::{Arc, Condvar, Mutex};
use tensorlease_engine::{Engine, Fault};

/// Calls `work` with at most `batch_keys_max` keys at a time. One result per key.
pub(crate) fn call_engine<T: Send + 'static>(
    core: &Arc<Core>,
    keys: Vec<String>,
    wait: &Wait<'_>,
    work: impl Fn(&dyn Engine, &[&str]) -> Vec<Result<T, Fault>> + Send + 'static,
) -> Result<Vec<Result<T, Fault>>, CallError> {
    let chunk = core.capabilities.batch_keys_max.max(1);
    on_a_reader(core, wait, move |core| {
        let mut results = Vec::with_capacity(keys.len());
        for keys in keys.chunks(chunk) {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            results.extend(core.answers(keys.len(), || work(&*core.engine, &keys)));
        }
        results
    })
}

/// Runs `work` on a reader, or here where the engine is prompt. A caller that gives up leaves the reader to the engine.
pub(crate) fn on_a_reader<T: Send + 'static>(
    core: &Arc<Core>,
    wait: &Wait<'_>,
    work: impl FnOnce(&Core) -> T + Send + 'static,
) -> Result<T, CallError> {
    if core.capabilities.prompt {
        return Ok(work(core));
    }
    let call = Arc::new(Call {
        state: Mutex::new(State::Queued),
        done: Condvar::new(),
    });
    let ticket = Ticket {
        call: Arc::clone(&call),
    };
    let at_work = Arc::clone(core);
    core.readers.submit(Box::new(move || ticket.run(&at_work, work)));
    let waited = wait.wait(&call.state, &call.done, |state| {
        matches!(state, State::Done(_) | State::CutShort)
    });
    let mut state = lock(&call.state);
    match std::mem::replace(&mut *state, State::Abandoned) {
        State::Done(result) => Ok(result),
        State::CutShort => Err(CallError::Closed),
        before => {
            // Still under the lock: the reader must not see that it is abandoned before the readers know.
            if matches!(before, State::Running) {
                core.counters.abandoned_calls.add(1);
                core.readers.abandon(1);
            }
            drop(state);
            Err(waited.err().unwrap_or(CallError::Closed))
        }
    }
}

enum State<T> {
    Queued,
    Running,
    Done(T),
    CutShort,
    Abandoned,
}

struct Call<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

/// The reader's end of a call. Dropped without having run (the readers were closed), it tells the caller.
struct Ticket<T> {
    call: Arc<Call<T>>,
}

impl<T> Ticket<T> {
    fn run(self, core: &Core, work: impl FnOnce(&Core) -> T) {
        {
            let mut state = lock(&self.call.state);
            if matches!(*state, State::Abandoned) {
                return;
            }
            *state = State::Running;
        }
        let result = work(core);
        let mut state = lock(&self.call.state);
        if matches!(*state, State::Abandoned) {
            drop(state);
            core.readers.returned();
            return;
        }
        *state = State::Done(result);
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.call.state);
        if matches!(*state, State::Queued) {
            *state = State::CutShort;
        }
        drop(state);
        self.call.done.notify_all();
    }
}
