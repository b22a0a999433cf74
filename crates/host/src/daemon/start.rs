//! How to start a daemon, and why one did not start.
use crate::place::{Holder, PlaceError, SocketPath};
use std::time::Duration;

/// How to start a [`Daemon`](crate::Daemon).
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Where it listens.
    pub socket: SocketPath,
    /// Most bytes of everything it hands out, counted in whole blocks; at least one page.
    pub max_bytes: u64,
    /// None: it stays until it is stopped. Otherwise it ends when it has had no client and no object for so long.
    pub idle_end: Option<Duration>,
}

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A daemon runs there already.
    #[error("a daemon runs already at {:?} ({holder})", socket.as_path())]
    Running {
        /// Where.
        socket: SocketPath,
        /// Who that is.
        holder: Holder,
    },
    /// There is no place for its socket.
    #[error("no place for the socket")]
    Place {
        /// What is wrong with it.
        #[from]
        source: PlaceError,
    },
    /// Its memory can't be had.
    #[error("max_bytes={max_bytes} can't be had: {message}")]
    Memory {
        /// As asked.
        max_bytes: u64,
        /// In words.
        message: String,
    },
    /// The system refused something that a daemon needs.
    #[error("cannot {what}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// For a call of the system that failed.
pub(super) fn system<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> StartError {
    move |source| StartError::System {
        what,
        source: source.into(),
    }
}
