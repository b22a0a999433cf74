//! Why a call, or one key of it, failed, and what a client may do about it.
use std::borrow::Cow;

/// Class of a failure: decides between retry, split, fail and quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// No such object. Never retried.
    NotFound,
    /// Another object than expected: tag or size differ. Nothing may be handed out. Never retried.
    Mismatch,
    /// No memory for the transfer just now: give the lease back, halve the group, try again.
    NoHandle,
    /// The engine has no memory to lend just now: read it another way.
    NoLoan,
    /// The call took longer than the engine keeps its objects still: try again with less at once.
    Expired,
    /// The store is full (writes).
    Full,
    /// Passing; try again after a pause.
    Transient,
    /// Failed, and the transfer may still write (or read) the memory: quarantine, never the same memory again.
    MayStillWrite,
    /// Memory outside a registration. A bug or a limit; never retried.
    Unregistered,
    /// The engine can't be reached or is closed.
    Unavailable,
    /// Refused for good: invalid key, too many dimensions...
    Refused,
    /// The value is larger than all that the store can ever hold (writes): no waiting helps.
    TooLarge,
}

impl FaultKind {
    /// Every kind. The host's protocol sends a kind as its place here: another order is another version of it.
    pub const ALL: [Self; 12] = [
        Self::NotFound,
        Self::Mismatch,
        Self::NoHandle,
        Self::NoLoan,
        Self::Expired,
        Self::Full,
        Self::Transient,
        Self::MayStillWrite,
        Self::Unregistered,
        Self::Unavailable,
        Self::Refused,
        Self::TooLarge,
    ];
}

/// Failure of one key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct Fault {
    /// What a client may do about it.
    pub kind: FaultKind,
    /// The engine's own code, 0 where it has none.
    pub code: i32,
    /// In words, without the key; what to do where known.
    pub message: Cow<'static, str>,
}

impl Fault {
    /// A failure of class `kind`; `code` is the engine's own, 0 where it has none.
    pub fn new(kind: FaultKind, code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            code,
            message: message.into(),
        }
    }

    /// What became of a transfer, and of undoing what was done for it. A failure of the transfer comes first: it says whether the memory may
    /// still be written.
    pub fn of_both<T>(transfer: Result<T, Self>, undone: Result<(), Self>) -> Result<T, Self> {
        match (transfer, undone) {
            (Err(mut failed), Err(also)) => {
                failed.message = format!("{}; {}", failed.message, also.message).into();
                Err(failed)
            }
            (Ok(_), Err(failed)) => Err(failed),
            (transfer, Ok(())) => transfer,
        }
    }

    /// What every key of a call on a closed engine gets.
    pub fn closed() -> Self {
        Self::new(FaultKind::Unavailable, 0, "the engine is closed")
    }
}

/// Why memory could not be registered or unregistered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Registration as such does not work on this machine.
    #[error("memory cannot be registered on this machine")]
    Unsupported {
        /// What is missing, and how to get it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// This memory could not be registered or unregistered.
    #[error("cannot register {len} bytes")]
    Failed {
        /// Size of the memory, bytes.
        len: usize,
        /// The engine's own error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Above `Capabilities::registration_bytes_max`.
    #[error("{len} bytes in one registration are above the engine's limit of {limit}; split them")]
    TooLarge {
        /// Size asked for, bytes.
        len: usize,
        /// Largest possible, bytes.
        limit: u64,
    },
    /// Some of the memory is registered already.
    #[error("memory at {addr:#x} overlaps a registration")]
    Overlap {
        /// First address of the refused memory.
        addr: usize,
    },
    /// `unregister` of memory that was not registered as exactly this region.
    #[error("memory at {addr:#x} is not registered")]
    Unknown {
        /// First address given.
        addr: usize,
    },
    /// The engine is closed.
    #[error("the engine is closed")]
    Closed,
}

/// Why an engine did not close cleanly. It is closed all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Something was left behind.
    #[error("the engine did not close cleanly")]
    Failed {
        /// The engine's own error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_that_may_still_write_is_not_hidden_by_what_fails_after_it() {
        let late = Fault::new(FaultKind::MayStillWrite, -800, "given up after 60 s");
        let undone = Fault::new(FaultKind::Refused, -600, "not unregistered");
        let both = Fault::of_both::<u64>(Err(late.clone()), Err(undone.clone())).unwrap_err();
        assert_eq!((both.kind, both.code), (FaultKind::MayStillWrite, -800));
        assert!(both.message.contains("given up") && both.message.contains("not unregistered"));
        assert_eq!(Fault::of_both::<u64>(Err(late.clone()), Ok(())), Err(late));
        assert_eq!(Fault::of_both(Ok(7), Err(undone.clone())), Err(undone));
        assert_eq!(Fault::of_both(Ok(7), Ok(())), Ok(7));
    }
}
