//! What a store tells of itself: counters, times, costs, warnings.

use crate::{
    FallbackKind,
    stats::{Counters, Stages},
};
use std::{
    collections::HashSet,
    sync::{Mutex, OnceLock},
};
use tensorlease_memory::lock;

/// Shared by everything in a store that counts.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    counters: Counters,
    stages: Stages,
    copy_is_cheaper: OnceLock<bool>,
    /// Kinds of fallback that were warned of.
    warned: Mutex<HashSet<FallbackKind>>,
}

impl Accounts {
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Is copying into fresh memory cheaper here than registering fresh memory for one transfer? Measured once, at open.
    pub(crate) fn copy_is_cheaper(&self) -> bool {
        *self.copy_is_cheaper.get().unwrap_or(&true)
    }

    pub(crate) fn note_copy_is_cheaper(&self, cheaper: bool) {
        self.copy_is_cheaper.get_or_init(|| cheaper);
    }

    /// Counts a fallback of `keys` values and warns once per kind. Under `strict` it is the caller's to refuse first.
    pub(crate) fn count_fallback(&self, kind: FallbackKind, keys: u64, cause: Option<&str>) {
        self.counters.fallback_reads.add(keys);
        self.count_reason(kind, keys, cause);
    }

    /// Counts the reason alone, of values whose fallback is counted elsewhere. `cause`: words for the warning.
    pub(crate) fn count_reason(&self, kind: FallbackKind, keys: u64, cause: Option<&str>) {
        self.counters.fallback(kind).add(keys);
        let text = || match cause {
            None => format!("{keys} values leave the fast path: {}", kind.words()),
            Some(cause) => format!("{keys} values leave the fast path: {} ({cause})", kind.words()),
        };
        if !self.warn_once(kind, text) {
            self.counters.warnings_suppressed.add(1);
        }
    }

    /// Warns of `kind` the first time, and says whether it was. Later ones are told at DEBUG.
    pub(crate) fn warn_once(&self, kind: FallbackKind, text: impl FnOnce() -> String) -> bool {
        let first = lock(&self.warned).insert(kind);
        if first {
            log::warn!("{} (this warning is given once; stats() counts on)", text());
        } else {
            log::debug!("{}", text());
        }
        first
    }
}
