//! Errors of the client as the exceptions of `tensorlease.errors`.
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyModule},
};
use tensorlease::engine::{FaultKind, chained};
use tensorlease::{CallError, KeyFailure, OpenError, QueryError, ReadError, RemoveError, WriteError};

static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Into the exception that a caller of Python sees.
pub(crate) trait IntoPython {
    /// The exception, ready to raise.
    fn into_python(self, py: Python<'_>) -> PyErr;
}

/// A `ConfigError`: an argument or option is wrong; `message` names it and says what is allowed.
pub(crate) fn config_error(py: Python<'_>, message: &str) -> PyErr {
    raise(py, "ConfigError", message, |_| Ok(()))
}

/// A `SizeMismatch` about one key.
pub(crate) fn mismatch_error(py: Python<'_>, key: &str, message: &str) -> PyErr {
    let failure = KeyFailure {
        key: key.to_owned(),
        kind: FaultKind::Mismatch,
        code: 0,
        message: message.to_owned(),
    };
    let text = format!("{}: {message}", named(key));
    raise(py, "SizeMismatch", &text, |keywords| {
        set_failures(keywords, vec![failure])
    })
}

/// An argument as messages show it: cut where it is long, and only its type where it can't be shown.
pub(crate) fn shown(argument: &Bound<'_, PyAny>) -> String {
    const SHOWN_MAX: usize = 200;
    // An object may raise when it is shown, as an int of too many digits does.
    let whole = match argument.str() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => format!("a {}", argument.get_type()),
    };
    if whole.chars().count() <= SHOWN_MAX {
        return whole;
    }
    let start: String = whole.chars().take(SHOWN_MAX).collect();
    format!("{start}...")
}

/// A key as messages show it: quoted, control characters escaped, cut where it is long.
pub(crate) fn named(key: &str) -> String {
    const SHOWN_MAX: usize = 120;
    if key.len() <= SHOWN_MAX {
        return format!("key {key:?}");
    }
    let shown: String = key.chars().take(SHOWN_MAX).collect();
    format!("key {shown:?}... ({} characters)", key.chars().count())
}

fn raise(
    py: Python<'_>,
    class: &str,
    message: &str,
    details: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    let made = || -> PyResult<Bound<'_, PyAny>> {
        let module = ERRORS.get_or_try_init(py, || py.import("tensorlease.errors").map(Bound::unbind))?;
        let keywords = PyDict::new(py);
        details(&keywords)?;
        module.bind(py).getattr(class)?.call((message,), Some(&keywords))
    };
    made().map_or_else(|error| error, PyErr::from_value)
}

fn set_failures(keywords: &Bound<'_, PyDict>, failures: Vec<KeyFailure>) -> PyResult<()> {
    let failures: Vec<_> = failures
        .into_iter()
        .map(|failure| (failure.key, kind_name(failure.kind), failure.code, failure.message))
        .collect();
    keywords.set_item("failures", failures)
}

fn kind_name(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::NotFound => "not_found",
        FaultKind::Mismatch => "mismatch",
        FaultKind::NoHandle => "no_handle",
        FaultKind::NoLoan => "no_loan",
        FaultKind::Expired => "expired",
        FaultKind::Full | FaultKind::TooLarge => "full",
        FaultKind::Transient => "transient",
        FaultKind::MayStillWrite => "may_still_write",
        FaultKind::Unregistered => "unregistered",
        FaultKind::Unavailable => "unavailable",
        FaultKind::Refused => "refused",
        _ => "other",
    }
}

fn with_failures(py: Python<'_>, class: &str, message: &str, failures: Vec<KeyFailure>) -> PyErr {
    raise(py, class, message, |keywords| set_failures(keywords, failures))
}

fn exhausted(py: Python<'_>, message: &str, asked: u64, free: u64, largest: u64, held: u64) -> PyErr {
    raise(py, "ArenaExhausted", message, |keywords| {
        keywords.set_item("asked", asked)?;
        keywords.set_item("free", free)?;
        keywords.set_item("largest", largest)?;
        keywords.set_item("held", held)
    })
}

/// No memory for what a call with so many keys keeps while it runs.
pub(crate) fn no_room(py: Python<'_>, keys: usize) -> PyErr {
    let message = format!("no memory for a call with {keys} keys; free memory of this machine, or name fewer at once");
    exhausted(py, &message, 0, 0, 0, 0)
}

impl IntoPython for CallError {
    fn into_python(self, py: Python<'_>) -> PyErr {
        let message = chained(&self);
        let class = match self {
            Self::Closed | Self::Forked => "Closed",
            Self::Timeout { .. } => "Timeout",
            Self::Interrupted => "Interrupted",
            Self::Unavailable { .. } => "EngineUnavailable",
            Self::Invalid { .. } => "ConfigError",
            _ => "Error",
        };
        raise(py, class, &message, |_| Ok(()))
    }
}

impl IntoPython for ReadError {
    fn into_python(self, py: Python<'_>) -> PyErr {
        let message = chained(&self);
        match self {
            Self::Call(error) => error.into_python(py),
            Self::KeyNotFound { failures, .. } => with_failures(py, "KeyNotFound", &message, failures),
            Self::SizeMismatch { failures, .. } => with_failures(py, "SizeMismatch", &message, failures),
            Self::Transfer { failures, .. } => with_failures(py, "TransferError", &message, failures),
            Self::ArenaExhausted {
                asked,
                free,
                largest,
                held,
                ..
            } => exhausted(py, &message, asked, free, largest, held),
            Self::Fallback { failures, .. } => with_failures(py, "FallbackError", &message, failures),
            _ => raise(py, "Error", &message, |_| Ok(())),
        }
    }
}

impl IntoPython for WriteError {
    fn into_python(self, py: Python<'_>) -> PyErr {
        let message = chained(&self);
        match self {
            Self::Call(error) => error.into_python(py),
            Self::StoreFull { failures, .. } => with_failures(py, "StoreFull", &message, failures),
            Self::Transfer { failures, .. } => with_failures(py, "TransferError", &message, failures),
            Self::ArenaExhausted {
                asked,
                free,
                largest,
                held,
                ..
            } => exhausted(py, &message, asked, free, largest, held),
            Self::Fallback { failures, .. } => with_failures(py, "FallbackError", &message, failures),
            _ => raise(py, "Error", &message, |_| Ok(())),
        }
    }
}

impl IntoPython for RemoveError {
    fn into_python(self, py: Python<'_>) -> PyErr {
        let message = chained(&self);
        match self {
            Self::Call(error) => error.into_python(py),
            Self::Transfer { failures, .. } => with_failures(py, "TransferError", &message, failures),
            _ => raise(py, "Error", &message, |_| Ok(())),
        }
    }
}

impl IntoPython for QueryError {
    fn into_python(self, py: Python<'_>) -> PyErr {
        let message = chained(&self);
        match self {
            Self::Call(error) => error.into_python(py),
            Self::NotThere { failures, .. } => with_failures(py, "Timeout", &message, failures),
            Self::Transfer { failures, .. } => with_failures(py, "TransferError", &message, failures),
            _ => raise(py, "Error", &message, |_| Ok(())),
        }
    }
}

impl IntoPython for OpenError {
    fn into_python(self, py: Python<'_>) -> PyErr {
        let message = chained(&self);
        let class = match self {
            Self::Config { .. } => "ConfigError",
            Self::Unavailable { .. } => "EngineUnavailable",
            _ => "Error",
        };
        raise(py, class, &message, |_| Ok(()))
    }
}
