//! What a campaign counts, by name; made to be sent from one process to another and added up.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Numbers by name. Names are made of a group and what it counts: `struck/late`.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<BTreeMap<String, u64>>);

impl Tally {
    pub(crate) fn add(&self, name: impl Into<String>, count: u64) {
        if 0 < count {
            *self.numbers().entry(name.into()).or_default() += count;
        }
    }

    pub(crate) fn get(&self, name: &str) -> u64 {
        self.numbers().get(name).copied().unwrap_or_default()
    }

    /// Everything in one group, without the group's name.
    pub(crate) fn group(&self, group: &str) -> Vec<(String, u64)> {
        let numbers = self.numbers();
        let of = |(name, count): (&String, &u64)| Some((name.strip_prefix(group)?.to_owned(), *count));
        numbers.iter().filter_map(of).collect()
    }

    /// One line: `name=number` joined by tabs.
    pub(crate) fn line(&self) -> String {
        let pairs: Vec<String> = self
            .numbers()
            .iter()
            .map(|(name, count)| format!("{name}={count}"))
            .collect();
        pairs.join("\t")
    }

    /// Adds what [`Tally::line`] wrote; what can't be read is left out.
    pub(crate) fn add_line(&self, line: &str) {
        for pair in line.split('\t') {
            if let Some((name, count)) = pair.rsplit_once('=') {
                self.add(name, count.parse().unwrap_or_default());
            }
        }
    }

    fn numbers(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
