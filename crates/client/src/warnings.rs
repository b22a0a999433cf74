//! Warnings that are given once, with their first cause; afterwards they only count.

use crate::{FallbackKind, patience::lock};
use std::{collections::HashSet, sync::Mutex};

/// Which warnings have been given.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    given: Mutex<HashSet<FallbackKind>>,
}

impl Warnings {
    /// WARN the first time, DEBUG later; says whether it was the first.
    pub(crate) fn once(&self, kind: FallbackKind, text: impl FnOnce() -> String) -> bool {
        let first = lock(&self.given).insert(kind);
        if first {
            log::warn!("{} (this warning is given once; stats() counts on)", text());
        } else {
            log::debug!("{}", text());
        }
        first
    }
}
