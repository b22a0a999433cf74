//! One read as it goes: its units, where each lands, what is still to be fetched.

mod ranges;

use super::{
    execute::Finished,
    ground::{Ground, SharedLanding},
    groups::{self, Group, How, Transfer},
    items::{Item, Items, ZERO_MARKER},
};
use crate::{
    Delivery, FallbackKind, KeyFailure, ObjectKind, ReadError, ReadRequest, core::Core, error::read_error,
    patience::Wait, request::Expected,
};
use std::{borrow::Cow, collections::BTreeMap, ops::Range, sync::Arc};
use tensorlease_arena::plan::{fold_duplicates, split_ranges};
use tensorlease_engine::{Fault, FaultKind};
use tensorlease_memory::{Foreign, Landing, View};

pub(crate) use ranges::cuts_at_multiples;

/// What lands in one piece of memory: a value alone, or the rows of a batch back to back.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) parts: Parts,
    /// Bytes.
    pub(super) len: u64,
    pub(super) batch: Option<u32>,
    pub(super) place: Option<Place>,
    /// Goes without a loan: it is larger than one, or the engine had none for it.
    pub(super) unlent: bool,
}

/// The items of a unit.
#[derive(Debug)]
pub(super) enum Parts {
    One(u32),
    /// Item and its offset in the unit, bytes.
    Rows(Vec<(u32, u64)>),
}

impl Unit {
    pub(super) fn rows(&self) -> &[(u32, u64)] {
        match &self.parts {
            Parts::One(_) => &[],
            Parts::Rows(rows) => rows,
        }
    }

    /// Items and their offsets.
    pub(super) fn each_part(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let one = match &self.parts {
            Parts::One(item) => Some((*item, 0)),
            Parts::Rows(_) => None,
        };
        one.into_iter().chain(self.rows().iter().copied())
    }

    pub(super) fn first_item(&self) -> u32 {
        match &self.parts {
            Parts::One(item) => *item,
            Parts::Rows(rows) => rows[0].0,
        }
    }
}

/// Where a unit lands.
#[derive(Debug)]
pub(super) struct Place {
    /// Offset of the unit in its landing, bytes.
    pub(super) base: u64,
    /// In the arena, owned by the value.
    pub(super) leased: bool,
    pub(super) how: How,
    /// `None` while the one transfer that writes it has it.
    pub(super) ground: Option<Ground>,
}

/// One read as it goes.
pub(super) struct Job<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) items: Arc<Items>,
    /// For each item the first item with the same key; `None` where no key is asked for twice.
    pub(super) first_use: Option<Vec<u32>>,
    pub(super) units: Vec<Unit>,
    pub(super) batch_count: usize,
    pub(super) delivery: Delivery,
    pub(super) into: Vec<Option<Foreign>>,
    pub(super) direct: bool,
    /// To be run next, by how.
    pub(super) ready: [Vec<Transfer>; 3],
    /// Items that are fetched in ranges, and the version of the object that was there before the first of them; `None`: not asked yet.
    cut: BTreeMap<u32, Option<u64>>,
    divisor: u64,
    /// The engine had no memory for calls side by side.
    starved: bool,
    failures: Vec<KeyFailure>,
    passing: Vec<KeyFailure>,
    /// Values that the engine lent nothing for in the last round.
    unlent: u64,
    /// Unit, kind and cause of the first of them.
    unlent_first: (u32, FallbackKind, Cow<'static, str>),
    /// Units wait for those that come through loans.
    pub(super) collected: bool,
}

impl<'a> Job<'a> {
    /// Checks the keys of `request` and lays out its units. Values of zero bytes are set aside here.
    /// `held`: the objects themselves, one for each item, where the engine holds them for this read.
    pub(super) fn new(
        core: &'a Arc<Core>,
        request: ReadRequest,
        held: Option<Vec<Option<View>>>,
        wait: &Wait<'_>,
    ) -> Result<Self, ReadError> {
        let namespace = &core.options.namespace;
        let (keys, items): (Vec<String>, Vec<Item>) = request
            .items
            .into_iter()
            .map(|item| (namespaced(namespace, item.key), expected(item.expected)))
            .unzip();
        let mut items = Items::new(keys, items, namespace.len(), core.capabilities.describes);
        items.held = held;
        check_empty_values(core, &items, wait)?;
        let first_use = duplicates(core, &items)?;
        let units = lay_out(&items, &request.batches);
        Ok(Self {
            core,
            items: Arc::new(items),
            first_use,
            units,
            batch_count: request.batches.len(),
            delivery: core.delivery(request.delivery),
            into: request.into.into_iter().map(Some).collect(),
            direct: request.direct,
            ready: [Vec::new(), Vec::new(), Vec::new()],
            cut: BTreeMap::new(),
            divisor: 1,
            starved: false,
            failures: Vec::new(),
            passing: Vec::new(),
            unlent: 0,
            unlent_first: (0, FallbackKind::NoLoan, Cow::Borrowed("")),
            collected: false,
        })
    }

    /// Is this item fetched, or copied from an earlier one with the same key?
    pub(super) fn is_fetched(&self, item: u32) -> bool {
        self.first_use.as_ref().is_none_or(|first| first[item as usize] == item)
    }

    /// The engine calls to make now; `None` when nothing is left to fetch.
    pub(super) fn groups(&mut self) -> Option<Vec<Group>> {
        let mut groups = Vec::new();
        let [direct, staged, registered] = std::mem::take(&mut self.ready);
        let (bounced, staged): (Vec<Transfer>, Vec<Transfer>) = staged
            .into_iter()
            .partition(|transfer| self.units[transfer.unit as usize].unlent);
        for (how, transfers) in [
            (How::Direct, direct),
            (How::Staged, staged),
            (How::Bounced, bounced),
            (How::Registered, registered),
        ] {
            groups.extend(groups::cut(self.core, &self.items, how, transfers, self.divisor));
        }
        (!groups.is_empty()).then_some(groups)
    }

    pub(super) fn push_ready(&mut self, how: How, transfer: Transfer) {
        self.ready[how as usize].push(transfer);
    }

    /// Sorts what came back: landed, to be tried again, failed for good.
    pub(super) fn settle(&mut self, finished: Vec<Finished>) {
        self.passing.clear();
        self.unlent = 0;
        let mut halve = false;
        // First, since such a unit starts over: what befell its other transfers no longer matters.
        let (unlent, ran): (Vec<Finished>, Vec<Finished>) = finished.into_iter().partition(|it| it.unlent.is_some());
        unlent.into_iter().for_each(|it| self.without_loan(it));
        for Finished { transfer, result, .. } in ran {
            match verified(&transfer, result) {
                Ok(()) => self.landed(transfer),
                Err(fault) => {
                    halve |= matches!(fault.kind, FaultKind::NoHandle | FaultKind::Expired);
                    self.starved |= fault.kind == FaultKind::NoHandle;
                    self.not_landed(transfer, fault);
                }
            }
        }
        if halve {
            self.divisor = self.divisor.saturating_mul(2);
        }
        self.leave_poisoned_landings();
    }

    /// How many engine calls may run side by side: one after the other they need the least of the engine's memory.
    pub(super) fn at_once(&self) -> usize {
        if self.starved { 1 } else { usize::MAX }
    }

    fn landed(&mut self, transfer: Transfer) {
        let unit = &mut self.units[transfer.unit as usize];
        if let (Ground::Own(_), Some(place)) = (&transfer.ground, &mut unit.place) {
            place.ground = Some(transfer.ground);
        }
    }

    /// It lands in memory that is registered for the call; the caller's own memory is filled through the bounce reserve.
    fn without_loan(&mut self, finished: Finished) {
        let Finished {
            transfer,
            result,
            unlent,
        } = finished;
        let unit = &mut self.units[transfer.unit as usize];
        if !unit.unlent {
            unit.unlent = true;
            if let (0, Some(kind), Err(fault)) = (self.unlent, unlent, result) {
                self.unlent_first = (transfer.unit, kind, fault.message);
            }
            self.unlent += unit.each_part().count() as u64;
        }
        if self.into.is_empty() {
            unit.place = None;
        } else {
            self.push_bounced(transfer);
        }
    }

    /// What was cut by the engine's loans is cut again by the rounds of the bounce reserve, which may be smaller.
    fn push_bounced(&mut self, transfer: Transfer) {
        let round = self.core.bounce_round_bytes();
        if transfer.len <= round {
            self.push_ready(How::Staged, transfer);
            return;
        }
        self.cut.entry(transfer.item).or_default();
        let shared = match transfer.ground {
            Ground::Own(landing) => SharedLanding::new(self.core, landing),
            Ground::Shared(shared) => shared,
            Ground::Gone => unreachable!("nothing was read yet"),
        };
        let place = self.units[transfer.unit as usize].place.as_mut();
        place.expect("the caller's memory is placed once").ground = Some(Ground::Shared(Arc::clone(&shared)));
        for range in split_ranges(transfer.len, round) {
            let part = Transfer {
                ground: Ground::Shared(Arc::clone(&shared)),
                ground_offset: transfer.ground_offset + range.start,
                object_offset: transfer.object_offset + range.start,
                len: range.end - range.start,
                ..transfer
            };
            self.push_ready(How::Staged, part);
        }
    }

    fn not_landed(&mut self, transfer: Transfer, fault: Fault) {
        let kind = fault.kind;
        let callers = !self.into.is_empty();
        let failure = KeyFailure::new(self.items.name(transfer.item as usize), fault);
        let again = match kind {
            FaultKind::NoHandle | FaultKind::NoLoan | FaultKind::Expired | FaultKind::Transient => true,
            // Nobody may be promised that the caller's own memory stays as the next try leaves it.
            FaultKind::MayStillWrite => !callers,
            _ => false,
        };
        if !again {
            self.failures.push(failure);
            return;
        }
        let unit = &mut self.units[transfer.unit as usize];
        let unlent = unit.unlent;
        if unlent && unit.place.is_none() {
            return;
        }
        self.passing.push(failure);
        let how = unit.place.as_ref().map_or(How::Direct, |place| place.how);
        match (&transfer.ground, kind) {
            // Its memory is in quarantine: it lands elsewhere the next time.
            (Ground::Gone, _) => unit.place = None,
            // The engine needs the memory that this block holds: give it back before the next try.
            (Ground::Own(_), FaultKind::NoHandle) if how == How::Direct && !callers => unit.place = None,
            (_, FaultKind::Expired) if how == How::Direct && ranges::SPLIT_BYTES_MIN < transfer.len => {
                self.split(how, transfer);
            }
            // Another part of its value got no loan: from now on the whole value goes through the bounce reserve.
            _ if how == How::Staged && unlent => self.push_bounced(transfer),
            _ => self.push_ready(how, transfer),
        }
    }

    /// Units on a landing that a transfer may still write start over on another one.
    fn leave_poisoned_landings(&mut self) {
        let poisoned = |ground: &Ground| matches!(ground, Ground::Shared(shared) if shared.is_poisoned());
        for ready in &mut self.ready {
            ready.retain(|transfer| !poisoned(&transfer.ground));
        }
        for unit in &mut self.units {
            let lost = unit
                .place
                .as_ref()
                .is_some_and(|place| place.ground.as_ref().is_some_and(poisoned));
            if lost {
                unit.place = None;
            }
        }
    }

    /// No memory for what was asked: where the engine can tell, a wrong shape is the better answer.
    pub(super) fn explain(&self, error: ReadError, wait: &Wait<'_>) -> ReadError {
        if !self.items.tagged || !matches!(error, ReadError::ArenaExhausted { .. }) {
            return error;
        }
        let all: Vec<usize> = (0..self.items.len()).collect();
        check_described(self.core, &self.items, &all, wait)
            .err()
            .unwrap_or(error)
    }

    pub(super) fn failed(&self) -> bool {
        !self.failures.is_empty()
    }

    pub(super) fn failures(&mut self) -> Vec<KeyFailure> {
        std::mem::take(&mut self.failures)
    }

    /// Keys whose fault might pass, after the last try.
    pub(super) fn outstanding(&mut self) -> Vec<KeyFailure> {
        std::mem::take(&mut self.passing)
    }

    pub(super) fn outstanding_keys(&self) -> u64 {
        self.passing.len() as u64
    }

    pub(super) fn finished(&self) -> bool {
        self.passing.is_empty() && self.unlent == 0 && !self.collected
    }

    /// Values that the engine lent nothing for go another way: counted, and under `strict` an error.
    pub(super) fn count_unlent(&self) -> Result<(), ReadError> {
        if self.unlent == 0 {
            return Ok(());
        }
        let (first, kind, cause) = &self.unlent_first;
        if self.core.options.strict {
            return Err(self.refusal(*kind, &[*first], &format!(" ({cause})")));
        }
        self.count_without_loan(*kind, self.unlent, Some(cause));
        Ok(())
    }

    /// What `strict` says in place of a fallback: the keys of `units`, why, and `detail`.
    pub(super) fn refusal(&self, kind: FallbackKind, units: &[u32], detail: &str) -> ReadError {
        let items = units.iter().flat_map(|unit| self.units[*unit as usize].each_part());
        let keys: Vec<&str> = items.map(|(item, _)| self.items.name(item as usize)).collect();
        let (message, failures) = kind.refusal(&keys, detail);
        ReadError::Fallback {
            kind,
            message,
            failures,
        }
    }

    /// What was to be leased is counted as a fallback by now.
    pub(super) fn count_without_loan(&self, kind: FallbackKind, values: u64, cause: Option<&str>) {
        if self.delivery != Delivery::Leased || !self.into.is_empty() {
            self.core.counters.fallback_reads.add(values);
        }
        self.core.count(kind, values, cause);
    }

    /// Puts a unit on memory of its own.
    pub(super) fn put(&mut self, unit: u32, landing: Landing, how: How, leased: bool) {
        let index = unit as usize;
        if let Parts::One(item) = self.units[index].parts {
            let len = self.units[index].len;
            if !self.is_fetched(item) {
                let ground = Some(Ground::Own(landing));
                self.units[index].place = Some(Place {
                    base: 0,
                    leased,
                    how,
                    ground,
                });
                return;
            }
            if self.cuts(how, &landing, 0, len).is_none() {
                let ground = Ground::Own(landing);
                self.push_ready(
                    how,
                    Transfer {
                        item,
                        unit,
                        ground,
                        ground_offset: 0,
                        object_offset: 0,
                        len,
                    },
                );
                self.units[index].place = Some(Place {
                    base: 0,
                    leased,
                    how,
                    ground: None,
                });
                return;
            }
        }
        let shared = SharedLanding::new(self.core, landing);
        self.put_on_shared(unit, &shared, 0, how, leased);
    }

    /// Puts a unit on a part of memory that several transfers write, from `base` on.
    pub(super) fn put_on_shared(&mut self, unit: u32, shared: &Arc<SharedLanding>, base: u64, how: How, leased: bool) {
        let parts: Vec<(u32, u64)> = self.units[unit as usize]
            .each_part()
            .filter(|(item, _)| self.is_fetched(*item))
            .collect();
        for (item, offset) in parts {
            let len = self.items.items[item as usize].len;
            let whole = || std::iter::once(0..len).collect();
            let ranges = self
                .cuts(how, shared.landing(), base + offset, len)
                .unwrap_or_else(whole);
            if 1 < ranges.len() {
                self.cut.entry(item).or_default();
            }
            for object in ranges {
                let ground = Ground::Shared(Arc::clone(shared));
                let ground_offset = base + offset + object.start;
                let len = object.end - object.start;
                self.push_ready(
                    how,
                    Transfer {
                        item,
                        unit,
                        ground,
                        ground_offset,
                        object_offset: object.start,
                        len,
                    },
                );
            }
        }
        let ground = Some(Ground::Shared(Arc::clone(shared)));
        self.units[unit as usize].place = Some(Place {
            base,
            leased,
            how,
            ground,
        });
    }
}

/// Requirement A17: the code is the size, or it is a failure. A short object is never garbage.
fn verified(transfer: &Transfer, result: Result<u64, Fault>) -> Result<(), Fault> {
    match result {
        Ok(len) if len == transfer.len => Ok(()),
        Ok(len) => {
            let message = format!(
                "{len} bytes came where {} were expected; nothing is delivered",
                transfer.len
            );
            Err(Fault::new(FaultKind::Mismatch, 0, message))
        }
        Err(fault) => Err(fault),
    }
}

fn namespaced(namespace: &str, key: String) -> String {
    if namespace.is_empty() {
        key
    } else {
        format!("{namespace}{key}")
    }
}

fn expected(expected: Expected) -> Item {
    match expected {
        Expected::Tensor(spec) => Item {
            len: spec.bytes(),
            kind: ObjectKind::Tensor(spec),
        },
        Expected::Packed(len) => Item {
            len,
            kind: ObjectKind::Packed,
        },
        Expected::Described => unreachable!("described items are replaced by what the engine said"),
    }
}

/// Values of zero bytes never reach the engine as such (requirement B14): a marker stands for each. Where the engine describes its objects a missing
/// or different one shows; elsewhere they are remade from their spec alone.
fn check_empty_values(core: &Arc<Core>, items: &Items, wait: &Wait<'_>) -> Result<(), ReadError> {
    let empty: Vec<usize> = (0..items.len()).filter(|item| items.items[*item].len == 0).collect();
    if empty.is_empty() || !items.tagged || items.held.is_some() {
        return Ok(());
    }
    check_described(core, items, &empty, wait)
}

/// Compares what is expected with what the engine, which describes its objects, has under the keys of `which`.
fn check_described(core: &Arc<Core>, items: &Items, which: &[usize], wait: &Wait<'_>) -> Result<(), ReadError> {
    let keys = which.iter().map(|item| items.keys[*item].clone()).collect();
    let mut failures = Vec::new();
    for (&item, info) in which.iter().zip(super::describe::infos(core, keys, wait)?) {
        let len = items.items[item].len;
        let fault = match info {
            Err(fault) => fault,
            Ok(None) => Fault::new(FaultKind::NotFound, 0, "there is no such object"),
            Ok(Some(info)) if info.len != len.max(ZERO_MARKER.len() as u64) || info.tag.as_ref() != items.tag(item) => {
                let asked = super::describe::words(&items.items[item].kind, len);
                Fault::new(FaultKind::Mismatch, 0, format!("another value is stored than {asked}"))
            }
            Ok(Some(_)) => continue,
        };
        failures.push(KeyFailure::new(items.name(item), fault));
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(read_error(super::describe::name_mismatches(
        core, items, failures, wait,
    )))
}

/// Requirement B13: the same key twice is fetched once. Asked for as two different things it is a mistake.
fn duplicates(core: &Core, items: &Items) -> Result<Option<Vec<u32>>, ReadError> {
    let folded = fold_duplicates(&items.keys);
    if folded.unique.len() == items.len() {
        return Ok(None);
    }
    let first_use: Vec<u32> = folded.slot.iter().map(|slot| folded.unique[*slot as usize]).collect();
    for (item, first) in first_use.iter().enumerate() {
        let first = &items.items[*first as usize];
        if items.items[item].kind != first.kind || items.items[item].len != first.len {
            let key = crate::error::quoted(items.name(item));
            return Err(super::invalid(format!(
                "key {key} is asked for twice, with different shapes or dtypes; ask once"
            )));
        }
    }
    core.counters
        .duplicate_keys
        .add((items.len() - folded.unique.len()) as u64);
    Ok(Some(first_use))
}

fn lay_out(items: &Items, batches: &[Range<usize>]) -> Vec<Unit> {
    let mut units = Vec::with_capacity(items.len());
    let mut next = 0;
    let position = |index: usize| u32::try_from(index).expect("fewer than 2^31 keys, checked when folding");
    let single = |units: &mut Vec<Unit>, item: usize| {
        let len = items.items[item].len;
        if 0 < len {
            units.push(Unit {
                parts: Parts::One(position(item)),
                len,
                batch: None,
                place: None,
                unlent: false,
            });
        }
    };
    for (batch, range) in batches.iter().enumerate() {
        (next..range.start).for_each(|item| single(&mut units, item));
        next = range.end;
        let mut rows = Vec::with_capacity(range.len());
        let mut len = 0;
        for item in range.clone().filter(|item| 0 < items.items[*item].len) {
            rows.push((position(item), len));
            len += items.items[item].len;
        }
        if 0 < len {
            units.push(Unit {
                parts: Parts::Rows(rows),
                len,
                batch: Some(position(batch)),
                place: None,
                unlent: false,
            });
        }
    }
    (next..items.len()).for_each(|item| single(&mut units, item));
    units
}
