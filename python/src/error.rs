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

/// A `ConfigError` as the result of a function. What follows `py` is formatted.
macro_rules! refuse {
    ($py:expr, $($text:tt)+) => {
        Err($crate::error::config_error($py, &format!($($text)+)))
    };
}
pub(crate) use refuse;

/// A `SizeMismatch` about one key.
pub(crate) fn mismatch_error(py: Python<'_>, key: &str, message: &str) -> PyErr {
    let failure = KeyFailure {
        key: key.to_owned(),
        kind: FaultKind::Mismatch,
        code: 0,
        message: message.to_owned(),
    };
    with_failures(py, "SizeMismatch", &format!("{}: {message}", named(key)), vec![failure])
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
    let failures = failures.into_iter();
    let failures = failures.map(|failure| (failure.key, kind_name(failure.kind), failure.code, failure.message));
    raise(py, class, message, |keywords| {
        keywords.set_item("failures", failures.collect::<Vec<_>>())
    })
}

/// `sizes`: what was asked, what is free, the largest free piece, and what is held.
fn exhausted(py: Python<'_>, message: &str, sizes: [u64; 4]) -> PyErr {
    raise(py, "ArenaExhausted", message, |keywords| {
        let named = ["asked", "free", "largest", "held"].iter().zip(sizes);
        named
            .into_iter()
            .try_for_each(|(name, bytes)| keywords.set_item(name, bytes))
    })
}

/// No memory for what a call with so many keys keeps while it runs.
pub(crate) fn no_room(py: Python<'_>, keys: usize) -> PyErr {
    let message = format!("no memory for a call with {keys} keys; free memory of this machine, or name fewer at once");
    exhausted(py, &message, [0; 4])
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

/// Of the errors that name keys: each variant besides those about the call and the arena, and its class.
macro_rules! into_python {
    ($error:ident { $($variant:ident => $class:literal),+ } $(and $exhausted:ident)?) => {
        impl IntoPython for $error {
            fn into_python(self, py: Python<'_>) -> PyErr {
                let message = chained(&self);
                match self {
                    Self::Call(error) => error.into_python(py),
                    $(Self::$variant { failures, .. } => with_failures(py, $class, &message, failures),)+
                    $(Self::$exhausted { asked, free, largest, held, .. } => {
                        exhausted(py, &message, [asked, free, largest, held])
                    })?
                    _ => raise(py, "Error", &message, |_| Ok(())),
                }
            }
        }
    };
}

into_python!(ReadError {
    KeyNotFound => "KeyNotFound", SizeMismatch => "SizeMismatch", Transfer => "TransferError", Fallback => "FallbackError"
} and ArenaExhausted);
into_python!(WriteError { StoreFull => "StoreFull", Transfer => "TransferError", Fallback => "FallbackError" } and ArenaExhausted);
into_python!(RemoveError { Transfer => "TransferError" });
into_python!(QueryError { NotThere => "Timeout", Transfer => "TransferError" });

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
