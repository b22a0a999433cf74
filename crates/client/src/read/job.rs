//! One read as it goes: where each of its units lands, what is still to be fetched, and what becomes of faults.
//!
//! A job decides and does nothing: it calls no engine, starts no thread and reads no clock. It takes limits, memory and the results of transfers, and
//! gives transfers to make, keys to ask for, and what is to happen next.

mod ranges;
#[cfg(test)]
mod tests;

use super::{
    groups::{self, Group, Transfer, TransferMode},
    items::Items,
    landing::{LandsIn, SharedLanding},
    terms::Terms,
    units::{self, Parts, Slot, Unit},
};
use crate::{
    Delivery, FallbackKind, KeyFailure, ReadError,
    error::{invalid, quoted},
    held::Quarantine,
    retrying::passes_in_a_read,
};
use std::{collections::BTreeMap, mem, ops::Range, sync::Arc};
use tensorlease_arena::{
    GRANULE_BYTES,
    plan::{GroupLimits, dtype_regions, fold_duplicates},
};
use tensorlease_engine::{Fault, FaultKind};
use tensorlease_memory::{Foreign, Landing};

/// In `auto`, smaller values are copied out: their blocks would cost more than the copy.
const LEASED_BYTES_MIN: u64 = 16 << 10;
/// Less than this is registered in one piece for one transfer.
const REGISTERED_PART_BYTES_MIN: u64 = 256 << 20;
/// Fresh memory for copies is mapped in pieces of this size: what a transfer that ends late takes out of use is no more than that.
const FRESH_BYTES: u64 = 64 << 20;
/// A smaller transfer that took too long is not read faster in halves.
const SPLIT_BYTES_MIN: u64 = 8 << 20;

/// What is asked for beside the items themselves.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    pub(crate) batches: Vec<Range<usize>>,
    pub(crate) delivery: Delivery,
    /// One destination per item, or none at all.
    pub(crate) into: Vec<Foreign>,
    /// With `into`: transfers write the caller's memory directly.
    pub(crate) direct: bool,
}

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
pub(crate) struct Ground {
    pub(crate) landing: Landing,
    /// Offset of the landing in what it is registered with, bytes.
    pub(crate) registered_at: u64,
    pub(crate) mode: TransferMode,
    /// In the arena, owned by the value.
    pub(crate) leased: bool,
}

/// One read as it goes.
pub(crate) struct Job {
    pub(super) terms: Terms,
    pub(super) items: Arc<Items>,
    quarantine: Arc<Quarantine>,
    /// For each item the first item with the same key; `None` where no key is asked for twice.
    pub(super) first_use: Option<Vec<u32>>,
    pub(super) units: Vec<Unit>,
    pub(super) batch_count: usize,
    delivery: Delivery,
    /// One destination per item, or none at all. Each is taken once.
    into: Vec<Option<Foreign>>,
    direct: bool,
    /// To be run next, by mode.
    ready: [Vec<Transfer>; 3],
    /// Items that are fetched in ranges, and the version of the object that was there before the first of them; `None`: not asked yet.
    cut: BTreeMap<u32, Option<u64>>,
    divisor: u64,
    /// The engine had no memory for calls side by side.
    starved: bool,
    halve: bool,
    tries: u32,
    failures: Vec<KeyFailure>,
    passing: Vec<KeyFailure>,
}

impl Job {
    /// Lays out the units of a read. Values of zero bytes are set aside here.
    ///
    /// # Errors
    /// A key that is asked for as two different things.
    pub(crate) fn new(
        terms: Terms,
        items: Arc<Items>,
        wish: Wish,
        quarantine: Arc<Quarantine>,
    ) -> Result<Self, ReadError> {
        Ok(Self {
            first_use: first_use(&items)?,
            units: units::lay_out(&items, &wish.batches),
            terms,
            items,
            quarantine,
            batch_count: wish.batches.len(),
            delivery: wish.delivery,
            into: wish.into.into_iter().map(Some).collect(),
            direct: wish.direct,
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

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(crate) fn items(&self) -> &Arc<Items> {
        &self.items
    }

    pub(crate) fn delivery(&self) -> Delivery {
        self.delivery
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

    // Where units land.

    /// Units that have no memory.
    pub(crate) fn waiting(&self) -> Vec<u32> {
        let waiting = self.units.iter().zip(0..).filter(|(unit, _)| unit.slot.is_none());
        waiting.map(|(_, at)| at).collect()
    }

    /// Which of `units` are to be leased, and which copied.
    pub(super) fn leased_and_copied(&self, units: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
        match self.delivery {
            Delivery::Leased => (units, Vec::new()),
            Delivery::Auto => units.into_iter().partition(|unit| {
                let unit = self.unit(*unit);
                unit.batch.is_some() || LEASED_BYTES_MIN <= unit.len
            }),
            _ => (Vec::new(), units),
        }
    }

    /// Bytes and alignment of a block for each.
    pub(super) fn wanted(&self, units: &[u32]) -> Vec<(u64, u64)> {
        units.iter().map(|unit| (self.unit(*unit).len, GRANULE_BYTES)).collect()
    }

    /// How many of the `left` units that got no block get none in this try. A value that can never fit leaves the others their chance.
    pub(super) fn lost(kind: FallbackKind, left: usize) -> usize {
        if kind == FallbackKind::TooLarge { 1 } else { left }
    }

    /// How a copy is made.
    pub(super) fn copied_mode(&self) -> TransferMode {
        if self.terms.registers {
            TransferMode::Staged
        } else {
            TransferMode::Direct
        }
    }

    /// How the caller's memory is filled: by a copy after the transfer, unless it was asked otherwise. What lies in the arena is registered already, and
    /// no memory is registered twice.
    pub(super) fn destination_mode(&self, in_arena: impl FnOnce() -> bool) -> TransferMode {
        match self.direct {
            false => TransferMode::Staged,
            true if self.terms.registers && !in_arena() => TransferMode::Registered,
            true => TransferMode::Direct,
        }
    }

    /// The caller's memory for a unit. It is never quarantined and read again, so each is taken once.
    pub(super) fn take_destination(&mut self, unit: u32) -> Foreign {
        let item = self.unit(unit).first_item() as usize;
        self.into[item].take().expect("a destination is placed once")
    }

    /// Units that share fresh memory, how they come there, and how that memory is cut: by dtype, with one registration and one transfer each where
    /// that is cheaper than copies.
    pub(super) fn fresh(&self, units: &[u32]) -> Vec<(Vec<u32>, TransferMode, GroupLimits)> {
        let of_region = |units: Vec<u32>| {
            let longest = units.iter().map(|unit| self.unit(*unit).len).max().unwrap_or(0);
            let registrable = longest <= self.terms.registration_bytes_max;
            match self.copied_mode() {
                TransferMode::Staged if registrable && !self.terms.copy_is_cheaper => {
                    let limits = self.parted(&units);
                    (units, TransferMode::Registered, limits)
                }
                mode => {
                    let limits = GroupLimits {
                        keys_max: usize::MAX,
                        bytes_max: FRESH_BYTES,
                    };
                    (units, mode, limits)
                }
            }
        };
        self.of_one_dtype(units).into_iter().map(of_region).collect()
    }

    /// One registration and one transfer for all of `units`, or one per worker and a second to balance them where they are many bytes:
    /// the kernel pins for several threads at a time.
    fn parted(&self, units: &[u32]) -> GroupLimits {
        let total: u64 = units.iter().map(|unit| self.unit(*unit).len).sum();
        let part = total.div_ceil(2 * self.terms.workers).max(REGISTERED_PART_BYTES_MIN);
        let limits = self.terms.registered_limits();
        GroupLimits {
            bytes_max: limits.bytes_max.min(part),
            ..limits
        }
    }

    /// The units by dtype, in the order of first use.
    pub(crate) fn of_one_dtype(&self, units: &[u32]) -> Vec<Vec<u32>> {
        let dtype = |unit: &u32| self.items.dtype_code(self.unit(*unit).first_item() as usize);
        let dtypes: Vec<u32> = units.iter().map(dtype).collect();
        let of = |region: Vec<usize>| region.into_iter().map(|index| units[index]).collect();
        dtype_regions(&dtypes).into_iter().map(of).collect()
    }

    /// Puts a unit on memory of its own.
    pub(super) fn put(&mut self, unit: u32, ground: Ground) {
        let len = self.unit(unit).len;
        if let Parts::One(item) = self.unit(unit).parts {
            let fetched = self.is_fetched(item);
            if !fetched || self.cuts(ground.mode, ground.registered_at, len).is_none() {
                let Ground {
                    landing, mode, leased, ..
                } = ground;
                let own = LandsIn::Own(landing);
                let lands_in = if fetched {
                    let transfer = Transfer {
                        item,
                        unit,
                        lands_in: own,
                        landing_offset: 0,
                        object_offset: 0,
                        len,
                    };
                    self.push_ready(mode, transfer);
                    None
                } else {
                    Some(own)
                };
                self.units[unit as usize].slot = Some(Slot {
                    base: 0,
                    leased,
                    mode,
                    lands_in,
                });
                return;
            }
        }
        let Ground {
            landing,
            registered_at,
            mode,
            leased,
        } = ground;
        let shared = self.share(landing);
        self.put_on_shared(unit, &shared, 0, registered_at, mode);
        if let Some(slot) = &mut self.units[unit as usize].slot {
            slot.leased = leased;
        }
    }

    /// Memory that several transfers write.
    pub(super) fn share(&self, landing: Landing) -> Arc<SharedLanding> {
        SharedLanding::new(&self.quarantine, landing)
    }

    /// Puts a unit on a part of memory that several transfers write, from `base` on.
    pub(super) fn put_on_shared(
        &mut self,
        unit: u32,
        shared: &Arc<SharedLanding>,
        base: u64,
        registered_at: u64,
        mode: TransferMode,
    ) {
        let parts = self.unit(unit).each_part();
        let parts: Vec<(u32, u64)> = parts.filter(|(item, _)| self.is_fetched(*item)).collect();
        for (item, offset) in parts {
            let len = self.items.items[item as usize].len;
            let whole = || std::iter::once(0..len).collect();
            let start = base + offset;
            let ranges = self.cuts(mode, registered_at + start, len).unwrap_or_else(whole);
            if 1 < ranges.len() {
                self.cut.entry(item).or_default();
            }
            for object in ranges {
                let transfer = Transfer {
                    item,
                    unit,
                    lands_in: LandsIn::Shared(Arc::clone(shared)),
                    landing_offset: start + object.start,
                    object_offset: object.start,
                    len: object.end - object.start,
                };
                self.push_ready(mode, transfer);
            }
        }
        self.units[unit as usize].slot = Some(Slot {
            base,
            leased: false,
            mode,
            lands_in: Some(LandsIn::Shared(Arc::clone(shared))),
        });
    }

    // Which calls are to be made.

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

    /// So often have calls been halved, as a factor.
    pub(crate) fn divisor(&self) -> u64 {
        self.divisor
    }

    /// How many engine calls may run side by side: one after the other they need the least of the engine's memory.
    pub(crate) fn at_once(&self) -> usize {
        if self.starved { 1 } else { usize::MAX }
    }

    pub(crate) fn push_ready(&mut self, mode: TransferMode, transfer: Transfer) {
        self.ready[mode as usize].push(transfer);
    }

    // What came back.

    /// Sorts what came back: landed, to be tried again, failed for good. Says what is to happen now.
    pub(crate) fn settle(&mut self, finished: Vec<Finished>) -> Next {
        self.begin_round();
        for Finished { transfer, result } in finished {
            if let Some((transfer, fault)) = self.judge(transfer, result) {
                self.try_again(transfer, fault);
            }
        }
        self.end_round();
        self.next()
    }

    pub(crate) fn begin_round(&mut self) {
        self.passing.clear();
        self.halve = false;
    }

    /// Takes what became of one transfer. Gives it back with its fault where that may pass.
    pub(crate) fn judge(&mut self, transfer: Transfer, result: Result<(), Fault>) -> Option<(Transfer, Fault)> {
        let Err(fault) = result else {
            self.landed(transfer);
            return None;
        };
        self.halve |= matches!(fault.kind, FaultKind::NoHandle | FaultKind::Expired);
        self.starved |= fault.kind == FaultKind::NoHandle;
        // It can't be promised that the caller's own memory stays as the next try leaves it.
        let elsewhere = fault.kind == FaultKind::MayStillWrite && !self.has_destinations();
        let passes = elsewhere || passes_in_a_read(fault.kind);
        if passes {
            return Some((transfer, fault));
        }
        self.failures.push(self.failure(transfer.item, fault));
        None
    }

    /// Makes a transfer once more, whose fault may pass.
    pub(crate) fn try_again(&mut self, transfer: Transfer, fault: Fault) {
        let kind = fault.kind;
        self.note_passing(&transfer, fault);
        let callers = self.has_destinations();
        let slot = &mut self.units[transfer.unit as usize].slot;
        let mode = slot.as_ref().map_or(TransferMode::Direct, |slot| slot.mode);
        let direct = mode == TransferMode::Direct;
        match (&transfer.lands_in, kind) {
            // Its memory is in quarantine: it lands elsewhere the next time.
            (LandsIn::Gone, _) => *slot = None,
            // The engine needs the memory that this block holds: it goes back before the next try.
            (LandsIn::Own(_), FaultKind::NoHandle) if direct && !callers => *slot = None,
            // It took too long as a whole: its halves may do, one call each.
            (_, FaultKind::Expired) if direct && SPLIT_BYTES_MIN < transfer.len => {
                self.push_cut(mode, transfer, |len| len.div_ceil(2));
            }
            _ => self.push_ready(mode, transfer),
        }
    }

    pub(crate) fn note_passing(&mut self, transfer: &Transfer, fault: Fault) {
        self.passing.push(self.failure(transfer.item, fault));
    }

    pub(crate) fn end_round(&mut self) {
        if self.halve {
            self.divisor = self.divisor.saturating_mul(2);
        }
        self.leave_poisoned_landings();
    }

    /// Takes a unit off its memory: it lands elsewhere.
    pub(crate) fn displace(&mut self, unit: u32) {
        self.units[unit as usize].slot = None;
    }

    fn failure(&self, item: u32, fault: Fault) -> KeyFailure {
        KeyFailure::new(self.items.name(item as usize), fault)
    }

    fn landed(&mut self, transfer: Transfer) {
        let unit = &mut self.units[transfer.unit as usize];
        if let (LandsIn::Own(_), Some(slot)) = (&transfer.lands_in, &mut unit.slot) {
            slot.lands_in = Some(transfer.lands_in);
        }
    }

    /// Units on a landing that a transfer may still write start over on another one.
    fn leave_poisoned_landings(&mut self) {
        for ready in &mut self.ready {
            ready.retain(|transfer| !transfer.lands_in.is_poisoned());
        }
        for unit in &mut self.units {
            let lands_in = unit.slot.as_ref().and_then(|slot| slot.lands_in.as_ref());
            if lands_in.is_some_and(LandsIn::is_poisoned) {
                unit.slot = None;
            }
        }
    }

    /// Has a key failed for good?
    pub(crate) fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// What is to happen now.
    pub(crate) fn next(&mut self) -> Next {
        let keys = self.passing.len() as u64;
        if self.has_failed() {
            return Next::Fail(mem::take(&mut self.failures));
        }
        if keys == 0 {
            return Next::Deliver;
        }
        if self.terms.retries <= self.tries {
            return Next::Fail(mem::take(&mut self.passing));
        }
        self.tries += 1;
        let tries = self.tries - 1;
        Next::Land { keys, tries }
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
