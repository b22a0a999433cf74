//! What becomes of the objects that a round of writes has not stored. It decides and does nothing.

use super::{execute::Unwritten, object::Object};
use crate::{KeyFailure, retrying};
use std::mem;
use tensorlease_engine::FaultKind;

#[cfg(test)]
mod tests;

/// What is to happen before the next round.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Go,
    /// What lies idle in this client's own part of the engine's memory goes back to the engine.
    GiveBackIdle,
    /// `waits`: others may make room; `full`: there was none.
    Pause {
        waits: bool,
        full: bool,
        tries: u32,
    },
}

/// One put as it goes.
pub(super) struct Progress {
    /// The engine makes room by itself.
    evicts: bool,
    retries: u32,
    /// The put waits until others have made room.
    for_room: bool,
    /// What lies idle in this client's own part of the engine's memory must not be what is in the way: it goes back before the second try.
    has_idle: bool,
    tries: u32,
    divisor: u64,
    passing: Vec<KeyFailure>,
    failures: Vec<KeyFailure>,
}

impl Progress {
    pub(super) fn new(evicts: bool, retries: u32, for_room: bool, has_idle: bool) -> Self {
        Self {
            evicts,
            retries,
            for_room,
            has_idle,
            tries: 0,
            divisor: 1,
            passing: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// So often have calls been halved, as a factor.
    pub(super) fn divisor(&self) -> u64 {
        self.divisor
    }

    /// Takes the objects that were not stored: what is to happen, and those that are to be tried again.
    pub(super) fn settle(&mut self, namespace_len: usize, unwritten: Vec<Unwritten>) -> (Next, Vec<Object>) {
        self.passing.clear();
        let (mut again, mut full, mut halve) = (Vec::new(), false, false);
        for Unwritten { object, fault } in unwritten {
            let kind = fault.kind;
            let failure = KeyFailure::new(&object.key[namespace_len..], fault);
            let may_get_room = kind == FaultKind::Full && (self.for_room || self.has_idle);
            if !retrying::passes_in_a_write(self.evicts, kind) && !may_get_room {
                self.failures.push(failure);
                continue;
            }
            halve |= matches!(kind, FaultKind::NoHandle | FaultKind::Expired);
            full |= kind == FaultKind::Full;
            self.passing.push(failure);
            again.push(object);
        }
        if halve {
            self.divisor = self.divisor.saturating_mul(2);
        }
        if full && mem::take(&mut self.has_idle) {
            return (Next::GiveBackIdle, again);
        }
        let waits = self.for_room && full;
        if self.retries <= self.tries && !waits {
            self.give_up();
            again.clear();
        }
        if again.is_empty() {
            return (Next::Go, again);
        }
        let tries = self.tries;
        self.tries = self.tries.saturating_add(1);
        (Next::Pause { waits, full, tries }, again)
    }

    /// No more tries: what might have passed has failed.
    pub(super) fn give_up(&mut self) {
        self.failures.append(&mut self.passing);
    }

    pub(super) fn failures(self) -> Vec<KeyFailure> {
        self.failures
    }
}
