//! What was removed while it was read: for engines that take objects away from their readers.
use crate::{Fault, FaultKind, ReadOp};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The removals that one engine sends, as long as reads run beside them. The memory of a removed object may hold another one at once, so what a
/// read brought of its key is worth nothing.
#[derive(Debug, Default)]
pub struct Removals {
    state: Mutex<State>,
    hashes: RandomState,
}

#[derive(Debug, Default)]
struct State {
    /// Numbers of reads and removals, in the order in which they began.
    next: u64,
    /// Numbers of the reads that run.
    reads: BTreeSet<u64>,
    removals: BTreeMap<u64, Removed>,
}

#[derive(Debug)]
struct Removed {
    what: What,
    /// The number that came next when it had ended; `None`: it runs.
    ended: Option<u64>,
}

#[derive(Debug)]
enum What {
    /// Hashes of keys. A key that shares the hash of a removed one is read once more, which does no harm.
    Keys(HashSet<u64>),
    Prefix(String),
}

/// A read that runs.
#[derive(Debug)]
pub struct Reading<'a> {
    removals: &'a Removals,
    number: u64,
}

/// A removal that runs; its drop ends it.
#[derive(Debug)]
pub struct Removing<'a> {
    removals: &'a Removals,
    number: u64,
}

impl Removals {
    /// To be called before a read asks where its objects lie.
    pub fn reading(&self) -> Reading<'_> {
        let mut state = self.state();
        let number = state.number();
        state.reads.insert(number);
        Reading { removals: self, number }
    }

    /// To be called before the removal of keys is sent, and dropped when it has been answered.
    pub fn removing(&self, keys: &[&str]) -> Removing<'_> {
        self.begun(What::Keys(keys.iter().map(|key| self.hash(key)).collect()))
    }

    /// The same for all keys that start with `prefix`.
    pub fn removing_prefix(&self, prefix: &str) -> Removing<'_> {
        self.begun(What::Prefix(prefix.to_owned()))
    }

    fn begun(&self, what: What) -> Removing<'_> {
        let mut state = self.state();
        let number = state.number();
        state.removals.insert(number, Removed { what, ended: None });
        Removing { removals: self, number }
    }

    fn hash(&self, key: &str) -> u64 {
        self.hashes.hash_one(key)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The removals that ran beside a read that runs; whether they began after it and have ended.
    fn met_by(&self, read: u64) -> impl Iterator<Item = (bool, &What)> {
        let removals = self.removals.iter();
        let met = move |(_, removed): &(&u64, &Removed)| removed.ended.is_none_or(|ended| read <= ended);
        removals
            .filter(met)
            .map(move |(begun, removed)| (read < *begun && removed.ended.is_some(), &removed.what))
    }

    /// Forgets the removals that no running read has met.
    fn forget(&mut self) {
        let oldest = self.reads.first().copied().unwrap_or(u64::MAX);
        self.removals
            .retain(|_, removed| removed.ended.is_none_or(|ended| oldest <= ended));
    }
}

impl Reading<'_> {
    /// The results of the read, now that its bytes have come: what was removed meanwhile is not there, or has to be read again.
    pub fn verified(&self, reads: &[ReadOp<'_>], results: Vec<Result<u64, Fault>>) -> Vec<Result<u64, Fault>> {
        let state = self.removals.state();
        let met: Vec<(bool, &What)> = state.met_by(self.number).collect();
        if met.is_empty() {
            return results;
        }
        let verified = |(read, result): (&ReadOp<'_>, Result<u64, Fault>)| match result {
            Ok(len) => self.disturbed(read.key, &met).map_or(Ok(len), Err),
            failed => failed,
        };
        reads.iter().zip(results).map(verified).collect()
    }

    fn disturbed(&self, key: &str, met: &[(bool, &What)]) -> Option<Fault> {
        let hash = self.removals.hash(key);
        let names = |what: &What| match what {
            What::Keys(hashes) => hashes.contains(&hash),
            What::Prefix(prefix) => key.starts_with(prefix),
        };
        // Not there for a moment of the read: that is the answer. Else it may have been gone before, and have come back.
        let inside = met.iter().filter(|(_, what)| names(what)).map(|(inside, _)| *inside);
        let kind = match inside.max()? {
            true => FaultKind::NotFound,
            false => FaultKind::Transient,
        };
        Some(Fault::new(kind, 0, "the object was removed while it was read"))
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.removals.state();
        state.reads.remove(&self.number);
        state.forget();
    }
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        let mut state = self.removals.state();
        let next = state.next;
        if let Some(removed) = state.removals.get_mut(&self.number) {
            removed.ended = Some(next);
        }
        state.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlease_memory::HeapBytes;

    /// What becomes of a read of `key` that has brought its bytes.
    fn outcome(reading: &Reading<'_>, key: &str) -> Option<FaultKind> {
        let memory = HeapBytes::new(1);
        let read = ReadOp::whole(key, memory.target());
        let results = reading.verified(&[read], vec![Ok(1)]);
        assert_eq!(results.len(), 1);
        results.into_iter().find_map(Result::err).map(|fault| fault.kind)
    }

    fn kept(removals: &Removals) -> usize {
        removals.state().removals.len()
    }

    #[test]
    fn what_was_removed_while_it_was_read_is_not_there() {
        let removals = Removals::default();
        let reading = removals.reading();
        drop(removals.removing(&["gone", "also"]));
        assert_eq!(outcome(&reading, "gone"), Some(FaultKind::NotFound));
        assert_eq!(outcome(&reading, "also"), Some(FaultKind::NotFound));
        assert_eq!(outcome(&reading, "stays"), None);
    }

    #[test]
    fn what_may_have_been_removed_before_or_after_it_was_read_is_read_again() {
        let removals = Removals::default();
        let earlier = removals.removing(&["gone"]);
        let reading = removals.reading();
        assert_eq!(outcome(&reading, "gone"), Some(FaultKind::Transient));
        drop(earlier);
        assert_eq!(outcome(&reading, "gone"), Some(FaultKind::Transient));
        let later = removals.removing(&["also"]);
        assert_eq!(outcome(&reading, "also"), Some(FaultKind::Transient));
        drop((reading, later));
        assert_eq!(outcome(&removals.reading(), "gone"), None);
    }

    #[test]
    fn a_removal_that_had_ended_before_a_read_began_does_not_matter() {
        let removals = Removals::default();
        let older = removals.reading();
        drop(removals.removing(&["gone"]));
        let reading = removals.reading();
        assert_eq!(outcome(&reading, "gone"), None);
        assert_eq!(outcome(&older, "gone"), Some(FaultKind::NotFound));
    }

    #[test]
    fn a_prefix_removes_its_keys_only() {
        let removals = Removals::default();
        let reading = removals.reading();
        drop(removals.removing_prefix("run/7/"));
        assert_eq!(outcome(&reading, "run/7/a"), Some(FaultKind::NotFound));
        assert_eq!(outcome(&reading, "run/70/a"), None);
    }

    #[test]
    fn a_failed_read_stays_what_it_is() {
        let removals = Removals::default();
        let reading = removals.reading();
        drop(removals.removing(&["gone"]));
        let memory = HeapBytes::new(1);
        let read = ReadOp::whole("gone", memory.target());
        let late = Fault::new(FaultKind::MayStillWrite, -800, "given up");
        assert_eq!(reading.verified(&[read], vec![Err(late.clone())]), [Err(late)]);
    }

    #[test]
    fn removals_are_forgotten_with_the_reads_that_they_met() {
        let removals = Removals::default();
        drop(removals.removing(&["a"]));
        assert_eq!(kept(&removals), 0);
        let (first, second) = (removals.reading(), removals.reading());
        drop(removals.removing(&["b"]));
        drop(first);
        assert_eq!(kept(&removals), 1);
        drop(second);
        assert_eq!(kept(&removals), 0);
    }
}
