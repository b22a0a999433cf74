//! How long a call from Python waits, and what ends it early: a deadline, Ctrl-C, a cancelled asyncio task.
use crate::error::{IntoPython, refuse, shown};
use crate::logging;
use pyo3::prelude::*;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::ThreadId,
    time::{Duration, Instant},
};
use tensorlease::Patience;

/// Pause between two looks for a signal. Taking the GIL more often would slow the other Python threads down.
const SIGNALS_EVERY_MS: u64 = 50;

/// A hundred years: more than a clock can add up is cut to this.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Ends the calls that it is passed to: a cancelled asyncio task sets it.
#[pyclass(frozen, module = "tensorlease._core")]
#[derive(Default)]
pub struct Interrupt {
    set: Arc<AtomicBool>,
}

#[pymethods]
impl Interrupt {
    #[new]
    fn new() -> Self {
        Self::default()
    }
    /// Ends the calls; those that have finished are left alone.
    fn set(&self) {
        self.set.store(true, Ordering::Release);
    }
    /// Was `set` called?
    fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }
}

/// One call: its deadline and its ways to end early.
pub(crate) struct Waiting {
    started: Instant,
    deadline: Option<Instant>,
    interrupt: Option<Arc<AtomicBool>>,
    caller: ThreadId,
    /// Milliseconds after `started` of the next look for signals.
    look_at_ms: AtomicU64,
    /// What a signal handler raised (KeyboardInterrupt): the caller gets it as it is.
    raised: Mutex<Option<PyErr>>,
}

impl Waiting {
    /// `timeout`: seconds; None waits as long as the store's `call_timeout`.
    pub(crate) fn new(
        py: Python<'_>,
        timeout: Option<&Bound<'_, PyAny>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<Self> {
        let started = Instant::now();
        let mut deadline = None;
        if let Some(timeout) = timeout {
            let Ok(wait) = timeout.extract::<f64>() else {
                let timeout = shown(timeout);
                return refuse!(py, "timeout is {timeout}; give seconds as a number, or None");
            };
            deadline = Some(started + seconds(py, wait, "timeout")?);
        }
        Ok(Self {
            started,
            deadline,
            interrupt: interrupt.map(|interrupt| Arc::clone(&interrupt.set)),
            caller: std::thread::current().id(),
            look_at_ms: AtomicU64::new(SIGNALS_EVERY_MS),
            raised: Mutex::new(None),
        })
    }

    /// How long it waits; None: as long as the store's `call_timeout`.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline - self.started)
    }

    /// Runs `call` without the GIL, then passes the log on. What a signal handler raised wins over the call's own
    /// outcome.
    pub(crate) fn run<T, E>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(Patience<'_>) -> Result<T, E> + Send,
    ) -> PyResult<T>
    where
        T: Send,
        E: Send + IntoPython,
    {
        let outcome = py.detach(|| {
            let interrupted = || self.interrupted();
            call(Patience {
                deadline: self.deadline,
                since: Some(self.started),
                interrupted: Some(&interrupted),
            })
        });
        if let Some(raised) = self.raised().take() {
            return Err(raised);
        }
        logging::drain(py);
        outcome.map_err(|error| error.into_python(py))
    }

    fn raised(&self) -> MutexGuard<'_, Option<PyErr>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asked by waiting clients, without the GIL.
    fn interrupted(&self) -> bool {
        let interrupt = self.interrupt.as_ref();
        if interrupt.is_some_and(|interrupt| interrupt.load(Ordering::Acquire)) {
            return true;
        }
        let has_raised = || self.raised().is_some();
        if std::thread::current().id() != self.caller {
            return has_raised();
        }
        let waited_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if waited_ms < self.look_at_ms.load(Ordering::Relaxed) {
            return has_raised();
        }
        // Outside Python's main thread, and while the interpreter ends, there are no signals to look for.
        let look = Python::try_attach(|py| match on_main_thread(py) {
            Ok(true) => Some(py.check_signals()),
            Ok(false) => None,
            // Asking runs Python code, which may run the handler already.
            Err(error) => Some(Err(error)),
        });
        let look = look.flatten();
        let next = look.as_ref().map_or(u64::MAX, |_| waited_ms + SIGNALS_EVERY_MS);
        self.look_at_ms.store(next, Ordering::Relaxed);
        if let Some(Err(error)) = look {
            *self.raised() = Some(error);
        }
        has_raised()
    }
}

/// A time that an argument gives in seconds, at most `FOREVER`.
pub(crate) fn seconds(py: Python<'_>, value: f64, argument: &str) -> PyResult<Duration> {
    if value.is_nan() || value < 0.0 {
        return refuse!(py, "{argument} is {value}; give seconds, at least 0");
    }
    Ok(Duration::try_from_secs_f64(value).unwrap_or(FOREVER).min(FOREVER))
}

fn on_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    threading.call_method0("get_ident")?.eq(main)
}
