//! What a store tells of itself: counters, times, costs, warnings.

use crate::{
    FallbackKind,
    costs::Costs,
    stats::{Counters, Stages},
    warnings::Warnings,
};

/// Shared by everything in a store that counts.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    counters: Counters,
    stages: Stages,
    costs: Costs,
    warnings: Warnings,
}

impl Accounts {
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn stages(&self) -> &Stages {
        &self.stages
    }

    pub(crate) fn costs(&self) -> &Costs {
        &self.costs
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
        if !self.warnings.once(kind, text) {
            self.counters.warnings_suppressed.add(1);
        }
    }

    /// Warns once of `kind`, without counting a value.
    pub(crate) fn warn_once(&self, kind: FallbackKind, text: impl FnOnce() -> String) {
        self.warnings.once(kind, text);
    }
}
