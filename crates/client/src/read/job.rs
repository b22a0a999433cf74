//! One read as it goes: where each of its units lands, what is still to be fetched, and what becomes of faults.
//!
//! A job decides and does nothing: it calls no engine, starts no thread and reads no clock. It takes limits, memory and the results of transfers, and
//! gives transfers to make, keys to ask for, and what is to happen next.

mod placing;
mod ranges;
mod settling;
#[cfg(test)]
mod tests;

use super::{
    groups::{self, Group, Transfer, TransferMode},
    items::Items,
    units::{self, Unit},
};
use crate::{
    Delivery, FallbackKind, KeyFailure, ReadError, ReadRequest,
    error::{invalid, quoted},
    held::Quarantine,
    terms::Terms,
};
use std::{collections::BTreeMap, mem, sync::Arc};
use tensorlease_arena::plan::fold_duplicates;
use tensorlease_engine::Fault;
use tensorlease_memory::{CallerMemory, Landing};

/// What became of one transfer.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) transfer: Transfer,
    pub(crate) result: Result<(), Fault>,
}

/// What is to happen after a round of transfers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Everything has landed.
    Deliver,
    /// So many keys are tried again, after this many tries before; none: at once.
    Land { keys: u64, tries: u32 },
    /// The read has failed.
    Fail(Vec<KeyFailure>),
}

/// Memory for a unit.
pub(crate) struct UnitMemory {
    pub(crate) landing: Landing,
    /// Offset of the landing in what it is registered with, bytes.
    pub(crate) registered_at: u64,
    pub(crate) mode: TransferMode,
    /// In the arena, owned by the value.
    pub(crate) leased: bool,
}

/// One read as it goes.
pub(crate) struct Job {
    pub(crate) terms: Terms,
    pub(crate) items: Arc<Items>,
    quarantine: Arc<Quarantine>,
    /// For each item the first item with the same key; `None` where no key is asked for twice.
    pub(super) first_use: Option<Vec<u32>>,
    pub(super) units: Vec<Unit>,
    pub(super) batch_count: usize,
    pub(crate) delivery: Delivery,
    /// One destination per item, or none at all. Each is taken once.
    into: Vec<Option<CallerMemory>>,
    direct: bool,
    /// To be run next, by mode.
    ready: [Vec<Transfer>; 3],
    /// Items that are fetched in ranges, and the version of the object that was there before the first of them; `None`: not asked yet.
    cut: BTreeMap<u32, Option<u64>>,
    /// So often have calls been halved, as a factor.
    pub(crate) divisor: u64,
    /// The engine had no memory for calls side by side.
    starved: bool,
    halve: bool,
    tries: u32,
    failures: Vec<KeyFailure>,
    passing: Vec<KeyFailure>,
}

impl Job {
    /// Lays out the units of a read, whose items are `items`. Values of zero bytes are set aside here.
    ///
    /// # Errors
    /// A key that is asked for as two different things.
    pub(crate) fn new(
        terms: Terms,
        items: Arc<Items>,
        request: ReadRequest,
        quarantine: Arc<Quarantine>,
    ) -> Result<Self, ReadError> {
        Ok(Self {
            first_use: first_use(&items)?,
            units: units::lay_out(&items, &request.batches),
            terms,
            items,
            quarantine,
            batch_count: request.batches.len(),
            delivery: request.delivery.unwrap_or_default(),
            into: request.into.into_iter().map(Some).collect(),
            direct: request.direct,
            ready: [Vec::new(), Vec::new(), Vec::new()],
            cut: BTreeMap::new(),
            divisor: 1,
            starved: false,
            halve: false,
            tries: 0,
            failures: Vec::new(),
            passing: Vec::new(),
        })
    }

    /// Does it fill memory of the caller?
    pub(crate) fn has_destinations(&self) -> bool {
        !self.into.is_empty()
    }

    pub(crate) fn unit_count(&self) -> usize {
        self.units.len()
    }

    pub(crate) fn unit(&self, unit: u32) -> &Unit {
        &self.units[unit as usize]
    }

    /// How a unit that has memory is transferred.
    pub(crate) fn mode_of(&self, unit: u32) -> Option<TransferMode> {
        self.unit(unit).slot.as_ref().map(|slot| slot.mode)
    }

    /// How many values of a unit there are.
    pub(crate) fn values_of(&self, unit: u32) -> u64 {
        self.unit(unit).each_part().count() as u64
    }

    /// Items that are not fetched, for an earlier one has the same key.
    pub(super) fn duplicate_keys(&self) -> u64 {
        let later = |first: &Vec<u32>| first.iter().zip(0..).filter(|(first, item)| *first != item).count() as u64;
        self.first_use.as_ref().map_or(0, later)
    }

    fn is_fetched(&self, item: u32) -> bool {
        self.first_use.as_ref().is_none_or(|first| first[item as usize] == item)
    }

    /// The engine calls to make now; none when nothing is left to fetch.
    pub(crate) fn groups(&mut self) -> Vec<Group> {
        let [direct, staged, registered] = self.take_ready();
        let mut groups = self.cut(TransferMode::Direct, direct);
        groups.extend(self.cut(TransferMode::Staged, staged));
        groups.extend(self.cut(TransferMode::Registered, registered));
        groups
    }

    /// What is to be run next: direct, staged, registered.
    pub(crate) fn take_ready(&mut self) -> [Vec<Transfer>; 3] {
        mem::take(&mut self.ready)
    }

    pub(crate) fn is_ready(&self, mode: TransferMode) -> bool {
        !self.ready[mode as usize].is_empty()
    }

    pub(crate) fn cut(&self, mode: TransferMode, transfers: Vec<Transfer>) -> Vec<Group> {
        groups::cut(&self.terms, &self.items, mode, transfers, self.divisor)
    }

    /// How many engine calls may run side by side: one after the other they need the least of the engine's memory.
    pub(crate) fn at_once(&self) -> usize {
        if self.starved { 1 } else { usize::MAX }
    }

    pub(crate) fn push_ready(&mut self, mode: TransferMode, transfer: Transfer) {
        self.ready[mode as usize].push(transfer);
    }

    /// What `strict` says in place of a fallback: the keys of `units`, why, and `detail`.
    pub(crate) fn refusal(&self, kind: FallbackKind, units: &[u32], detail: &str) -> ReadError {
        let items = units.iter().flat_map(|unit| self.unit(*unit).each_part());
        let keys: Vec<&str> = items.map(|(item, _)| self.items.name(item as usize)).collect();
        let (message, failures) = kind.refusal(&keys, detail);
        ReadError::Fallback {
            kind,
            message,
            failures,
        }
    }
}

/// The same key twice is fetched once. Asked for as two different things it is a mistake.
fn first_use(items: &Items) -> Result<Option<Vec<u32>>, ReadError> {
    let folded = fold_duplicates(&items.keys);
    if folded.unique.len() == items.len() {
        return Ok(None);
    }
    let first_use: Vec<u32> = folded.slot.iter().map(|slot| folded.unique[*slot as usize]).collect();
    for (item, first) in first_use.iter().enumerate() {
        let first = &items.items[*first as usize];
        if items.items[item].kind != first.kind || items.items[item].len != first.len {
            let key = quoted(items.name(item));
            return Err(invalid(format!(
                "key {key} is asked for twice, with different shapes or dtypes; ask once"
            )));
        }
    }
    Ok(Some(first_use))
}
