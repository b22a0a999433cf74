//! One error per operation. The message is for people, the variant and the failures for programs.

use std::{collections::HashSet, error::Error};
use tensorlease_engine::{Fault, FaultKind};

/// Keys named in a message; all of them are in the failures.
const KEYS_NAMED_MAX: usize = 10;
/// Reasons told apart in a message.
const REASONS_TOLD_MAX: usize = 5;
/// A longer key is cut in messages.
const KEY_CHARACTERS_MAX: usize = 80;

/// One key that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFailure {
    /// Without the namespace.
    pub key: String,
    /// Class of the fault.
    pub kind: FaultKind,
    /// The engine's own code, 0 where it has none.
    pub code: i32,
    /// In words, without the key.
    pub message: String,
}

impl KeyFailure {
    pub(crate) fn new(key: &str, fault: Fault) -> Self {
        Self {
            key: key.to_owned(),
            kind: fault.kind,
            code: fault.code,
            message: fault.message.into_owned(),
        }
    }
}

/// Kinds of fallback, each with a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FallbackKind {
    /// The budget is used up: live values hold the rest.
    Budget,
    /// The memory of the arena is the host's, and its daemon has none left.
    HostFull,
    /// The value can't fit into the budget at all.
    TooLarge,
    /// The engine refused to register a new slab.
    SlabNotRegistered,
    /// The system gave no memory for a new slab.
    SlabNotMapped,
    /// No block of the bounce reserve came free in time.
    BounceBusy,
    /// The recycled memory for copies is used up: they land in fresh memory.
    CopyCache,
    /// A value is larger than what the engine lends for one transfer.
    LoanTooLarge,
    /// The engine lends nothing just now.
    NoLoan,
    /// What the engine lent was allocated and registered for this one loan.
    LoanOverflow,
}

impl FallbackKind {
    /// What `strict` says of these keys: why they leave the fast path, with `detail` behind.
    pub(crate) fn refusal(self, keys: &[&str], detail: &str) -> (String, Vec<KeyFailure>) {
        let message = format!("strict=True, {}, and {}{detail}", listed(keys), self.words());
        let failure = |key: &&str| KeyFailure::new(key, Fault::new(FaultKind::Refused, 0, self.words()));
        (message, keys.iter().map(failure).collect())
    }

    /// What happened and what to change.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Budget => "the arena's budget is used up by live values; drop some, or raise max_bytes",
            Self::HostFull => {
                "the host's daemon has no memory left for this store's arena; remove keys, drop tensors and views (tensorlease stats --host says who holds what), or start the daemon with a larger --max-bytes"
            }
            Self::TooLarge => "a value is larger than the arena's budget; raise max_bytes",
            Self::SlabNotRegistered => {
                "the engine refused to register another slab; raise its limit (memlock), or lower max_bytes"
            }
            Self::SlabNotMapped => "the system gave no memory for another slab; lower max_bytes",
            Self::BounceBusy => "the bounce reserve is held by other transfers; raise bounce_bytes",
            Self::CopyCache => "the recycled memory for copies is used up; raise copy_cache_bytes, or drop some values",
            Self::LoanTooLarge => {
                "a value is larger than a reader's share of the engine's own buffer; raise local_buffer, or use pool=own"
            }
            Self::NoLoan => "the engine's own pool can't serve; raise local_buffer, lower readers, or use pool=own",
            Self::LoanOverflow => {
                "a lease of the engine's own pool was allocated and registered just for this read; raise local_buffer, or use pool=own"
            }
        }
    }
}

/// What any call on a store may meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// After `close`.
    #[error("the store is closed; open a new one")]
    Closed,
    /// In a child of the process that opened the store.
    #[error("this store was opened before this process was forked; open a new one in the child")]
    Forked,
    /// The deadline passed. Blocks whose transfer still runs stay in flight until the engine returns.
    #[error("not finished within {waited_ms} ms; raise timeout, or see whether the engine still answers")]
    Timeout {
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The caller's interrupt said so.
    #[error("interrupted")]
    Interrupted,
    /// The engine can't be reached, or too many of its calls hang.
    #[error("{message}")]
    Unavailable {
        /// What happened and what to do.
        message: String,
    },
    /// An argument; the message names it and what is allowed.
    #[error("{message}")]
    Invalid {
        /// What is wrong and what is allowed.
        message: String,
    },
}

/// The error of one operation: what any call may meet, and what failed for some keys. `memory`: and what there was no memory for.
macro_rules! operation_error {
    ($(#[$doc:meta])* $name:ident, memory, keys: $keys:tt) => {
        operation_error! {
            $(#[$doc])* $name, keys: $keys, own: {
                /// No memory for the values.
                #[error("{message}")]
                ArenaExhausted {
                    /// What to do.
                    message: String,
                    /// Bytes asked.
                    asked: u64,
                    /// Bytes free.
                    free: u64,
                    /// Largest free range, bytes.
                    largest: u64,
                    /// Bytes held.
                    held: u64,
                },
                /// `strict` and a value can't go the way that was asked.
                #[error("{message}")]
                Fallback {
                    /// Which fallback it would have been.
                    kind: FallbackKind,
                    /// What to do.
                    message: String,
                    /// Every key that can't go so.
                    failures: Vec<KeyFailure>,
                },
            }
        }
    };
    ($(#[$doc:meta])* $name:ident, keys: { $($(#[$key_doc:meta])* $key:ident),* $(,)? }, own: { $($own:tt)* }) => {
        $(#[$doc])*
        #[derive(Debug, thiserror::Error)]
        #[non_exhaustive]
        pub enum $name {
            /// Not about the keys.
            #[error(transparent)]
            Call(#[from] CallError),
            $(
                $(#[$key_doc])*
                #[error("{message}")]
                $key {
                    /// Names the keys, and what to do.
                    message: String,
                    /// Every failed key of the call, whatever its fault.
                    failures: Vec<KeyFailure>,
                },
            )*
            $($own)*
        }
    };
}

operation_error! {
    /// Why a read failed. Nothing of it is delivered.
    ReadError, memory, keys: {
        /// At least one key is missing.
        KeyNotFound,
        /// An object has another size, dtype or shape than was asked for.
        SizeMismatch,
        /// Transfers failed, after the retries.
        Transfer,
    }
}

operation_error! {
    /// Why a put failed. Keys that are not among the failures are stored.
    WriteError, memory, keys: {
        /// The store has no room for at least one key.
        StoreFull,
        /// Transfers failed, after the retries.
        Transfer,
    }
}

operation_error! {
    /// Why a removal failed.
    RemoveError, keys: {
        /// The engine refused some keys; the others are removed.
        Transfer,
    }, own: {}
}

operation_error! {
    /// Why `contains`, `wait` or `describe` failed.
    QueryError, keys: {
        /// `wait` ended before every key was there.
        NotThere,
        /// The engine could not answer for some keys.
        Transfer,
    }, own: {}
}

/// Why a store did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// URL or option; names it and what is allowed.
    #[error("{message}")]
    Config {
        /// What is wrong and what is allowed.
        message: String,
    },
    /// The engine, or the first slab.
    #[error("{message}")]
    Unavailable {
        /// What failed and what to do.
        message: String,
        /// The original error.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

/// Sorts the failures of a read into its error: a wrong object outranks a missing one, both outrank the rest.
pub(crate) fn read_error(failures: Vec<KeyFailure>) -> ReadError {
    let failures = once_each(failures);
    let of = |kind| failures.iter().any(|failure: &KeyFailure| failure.kind == kind);
    if failures.iter().all(|failure| failure.kind == FaultKind::Unavailable) {
        return CallError::Unavailable {
            message: message("can't read", &failures),
        }
        .into();
    }
    if of(FaultKind::Mismatch) {
        return ReadError::SizeMismatch {
            message: led_by(FaultKind::Mismatch, "not what was asked for", &failures),
            failures,
        };
    }
    if of(FaultKind::NotFound) {
        return ReadError::KeyNotFound {
            message: led_by(
                FaultKind::NotFound,
                "not found; put it first, or wait() for it",
                &failures,
            ),
            failures,
        };
    }
    ReadError::Transfer {
        message: message("reading failed", &failures),
        failures,
    }
}

/// Of several failures of one key, as of its ranges, the first.
pub(crate) fn once_each(failures: Vec<KeyFailure>) -> Vec<KeyFailure> {
    let mut seen = HashSet::with_capacity(failures.len());
    let first: Vec<bool> = failures
        .iter()
        .map(|failure| seen.insert(failure.key.as_str()))
        .collect();
    let first = failures.into_iter().zip(first).filter(|(_, first)| *first);
    first.map(|(failure, _)| failure).collect()
}

/// The failures of one kind first, under their heading, then the others under theirs.
fn led_by(kind: FaultKind, what: &str, failures: &[KeyFailure]) -> String {
    let (these, others): (Vec<KeyFailure>, Vec<KeyFailure>) =
        failures.iter().cloned().partition(|failure| failure.kind == kind);
    if others.is_empty() {
        return message(what, &these);
    }
    format!("{}; {}", message(what, &these), message("other failures", &others))
}

/// Sorts the failures of a put into its error.
pub(crate) fn write_error(failures: Vec<KeyFailure>) -> WriteError {
    let failures = once_each(failures);
    if failures.iter().all(|failure| failure.kind == FaultKind::Unavailable) {
        return CallError::Unavailable {
            message: message("can't write", &failures),
        }
        .into();
    }
    let no_room = |failure: &KeyFailure| matches!(failure.kind, FaultKind::Full | FaultKind::TooLarge);
    if failures.iter().any(no_room) {
        return WriteError::StoreFull {
            message: message("not stored", &failures),
            failures,
        };
    }
    WriteError::Transfer {
        message: message("writing failed", &failures),
        failures,
    }
}

/// What each key brought, or every key that failed.
pub(crate) fn all_or_failures<'k, T>(
    keys: impl IntoIterator<Item = &'k String>,
    results: impl IntoIterator<Item = Result<T, Fault>>,
) -> Result<Vec<T>, Vec<KeyFailure>> {
    let results = results.into_iter();
    let (mut all, mut failures) = (Vec::with_capacity(results.size_hint().0), Vec::new());
    for (key, result) in keys.into_iter().zip(results) {
        match result {
            Ok(value) => all.push(value),
            Err(fault) => failures.push(KeyFailure::new(key, fault)),
        }
    }
    if failures.is_empty() { Ok(all) } else { Err(failures) }
}

/// `what: key "a", "b" and 3 more: why; key "c": why else`. Keys that failed alike are told once.
pub(crate) fn message(what: &str, failures: &[KeyFailure]) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for failure in failures {
        match reasons.iter().position(|(reason, _)| *reason == failure.message) {
            Some(known) => reasons[known].1.push(&failure.key),
            None if reasons.len() < REASONS_TOLD_MAX => reasons.push((&failure.message, vec![&failure.key])),
            None => {}
        }
    }
    let told: usize = reasons.iter().map(|(_, keys)| keys.len()).sum();
    let told_apart = reasons
        .iter()
        .map(|(reason, keys)| format!("{}: {reason}", listed(keys)));
    let mut text = format!("{what}: {}", told_apart.collect::<Vec<_>>().join("; "));
    if told < failures.len() {
        text.push_str(&format!("; and {} more", failures.len() - told));
    }
    text
}

/// `key "a"`, `keys "a", "b" and 3 more`.
pub(crate) fn listed(keys: &[&str]) -> String {
    let named: Vec<String> = keys.iter().take(KEYS_NAMED_MAX).map(|key| quoted(key)).collect();
    let word = if keys.len() == 1 { "key" } else { "keys" };
    let more = match keys.len().saturating_sub(KEYS_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{word} {}{more}", named.join(", "))
}

/// A key as messages show it: escaped, and cut where it is long.
pub(crate) fn quoted(key: &str) -> String {
    let characters = key.chars().count();
    if characters <= KEY_CHARACTERS_MAX {
        return format!("{key:?}");
    }
    let start: String = key.chars().take(KEY_CHARACTERS_MAX).collect();
    format!("{start:?}... ({characters} characters)")
}

/// An argument that no call takes.
pub(crate) fn invalid(message: String) -> ReadError {
    CallError::Invalid { message }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(key: &str, kind: FaultKind) -> KeyFailure {
        KeyFailure::new(key, Fault::new(kind, 0, "because"))
    }

    #[test]
    fn a_wrong_object_outranks_a_missing_one_and_both_are_named() {
        let error = read_error(vec![
            failure("a", FaultKind::NotFound),
            failure("b", FaultKind::Mismatch),
        ]);
        assert!(matches!(&error, ReadError::SizeMismatch { failures, .. } if failures.len() == 2));
        assert!(
            error.to_string().contains("\"a\"") && error.to_string().contains("\"b\""),
            "{error}"
        );
    }

    #[test]
    fn a_key_of_several_failures_is_named_once() {
        let error = read_error(vec![
            failure("a", FaultKind::Transient),
            failure("b", FaultKind::Transient),
            failure("a", FaultKind::Refused),
        ]);
        let ReadError::Transfer { message, failures } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(message.matches("\"a\"").count(), 1, "{message}");
        let kept: Vec<(&str, FaultKind)> = failures.iter().map(|it| (it.key.as_str(), it.kind)).collect();
        assert_eq!(kept, [("a", FaultKind::Transient), ("b", FaultKind::Transient)]);
    }

    #[test]
    fn a_message_names_ten_keys_and_counts_the_rest() {
        let failures: Vec<_> = (0..13)
            .map(|index| failure(&format!("k{index}"), FaultKind::NotFound))
            .collect();
        let text = message("not found", &failures);
        assert!(
            text.contains("\"k9\" and 3 more: because") && !text.contains("\"k10\""),
            "{text}"
        );
        assert_eq!(text.matches("because").count(), 1, "{text}");
    }

    #[test]
    fn keys_that_failed_differently_are_told_apart() {
        let mut failures: Vec<_> = (0..7)
            .map(|index| failure(&format!("k{index}"), FaultKind::NotFound))
            .collect();
        for (index, failure) in failures.iter_mut().enumerate() {
            failure.message = format!("reason {index}");
        }
        let text = message("failed", &failures);
        assert!(
            text.starts_with("failed: key \"k0\": reason 0; key \"k1\": reason 1"),
            "{text}"
        );
        assert!(text.ends_with("; and 2 more"), "{text}");
    }

    #[test]
    fn a_long_key_is_cut() {
        assert!(quoted(&"k".repeat(10_000)).len() < 200);
    }
}
