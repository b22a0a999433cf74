//! What becomes of the transfers of a read: landed, to be made again, failed for good.

use super::{Finished, Job, Next};
use crate::{
    KeyFailure,
    read::{
        groups::{Transfer, TransferMode},
        landing::LandsIn,
    },
    retrying::passes_in_a_read,
};
use std::mem;
use tensorlease_engine::{Fault, FaultKind};

/// A smaller transfer that took too long is not read faster in halves.
const SPLIT_BYTES_MIN: u64 = 8 << 20;

impl Job {
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

    pub(super) fn failure(&self, item: u32, fault: Fault) -> KeyFailure {
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
}
