//! Which memory each unit of a read lands in.

use super::{Job, UnitMemory};
use crate::{
    FallbackKind,
    read::{
        groups::{Transfer, TransferMode},
        landing::{LandsIn, SharedLanding},
        units::{Parts, Slot},
    },
};
use std::sync::Arc;
use tensorlease_arena::{
    GRANULE_BYTES,
    plan::{GroupLimits, dtype_regions},
};
use tensorlease_memory::{CallerMemory, Landing};

/// Less than this is registered in one piece for one transfer.
const REGISTERED_PART_BYTES_MIN: u64 = 256 << 20;
/// Fresh memory for copies is mapped in pieces of this size: what a transfer that ends late takes out of use is no more than that.
const FRESH_BYTES: u64 = 64 << 20;

impl Job {
    /// Units that have no memory.
    pub(crate) fn waiting(&self) -> Vec<u32> {
        let waiting = self.units.iter().zip(0..).filter(|(unit, _)| unit.slot.is_none());
        waiting.map(|(_, at)| at).collect()
    }

    /// Which of `units` are to be leased, and which copied.
    pub(in crate::read) fn leased_and_copied(&self, units: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
        let Some(bytes_min) = self.delivery.leased_bytes_min() else {
            return (Vec::new(), units);
        };
        units.into_iter().partition(|unit| {
            let unit = self.unit(*unit);
            unit.batch.is_some() || bytes_min <= unit.len
        })
    }

    /// Bytes and alignment of a block for each.
    pub(in crate::read) fn wanted(&self, units: &[u32]) -> Vec<(u64, u64)> {
        units.iter().map(|unit| (self.unit(*unit).len, GRANULE_BYTES)).collect()
    }

    /// How many of the `left` units that got no block get none in this try. A value that can never fit leaves the others their chance.
    pub(in crate::read) fn lost(kind: FallbackKind, left: usize) -> usize {
        if kind == FallbackKind::TooLarge { 1 } else { left }
    }

    /// How a copy is made.
    pub(in crate::read) fn copied_mode(&self) -> TransferMode {
        if self.terms.registers {
            TransferMode::Staged
        } else {
            TransferMode::Direct
        }
    }

    /// How the caller's memory is filled: by a copy after the transfer, unless it was asked otherwise. What lies in the arena is registered already, and
    /// no memory is registered twice.
    pub(in crate::read) fn destination_mode(&self, in_arena: impl FnOnce() -> bool) -> TransferMode {
        match self.direct {
            false => TransferMode::Staged,
            true if self.terms.registers && !in_arena() => TransferMode::Registered,
            true => TransferMode::Direct,
        }
    }

    /// The caller's memory for a unit. It is never quarantined and read again, so each is taken once.
    pub(in crate::read) fn take_destination(&mut self, unit: u32) -> CallerMemory {
        let item = self.unit(unit).first_item() as usize;
        self.into[item].take().expect("a destination is placed once")
    }

    /// Units that share fresh memory, how they come there, and how that memory is cut: by dtype, with one registration and one transfer each where
    /// that is cheaper than copies.
    pub(in crate::read) fn fresh(&self, units: &[u32]) -> Vec<(Vec<u32>, TransferMode, GroupLimits)> {
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
        let part = total
            .div_ceil(2 * self.terms.workers as u64)
            .max(REGISTERED_PART_BYTES_MIN);
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
    pub(in crate::read) fn put(&mut self, unit: u32, memory: UnitMemory) {
        let UnitMemory {
            landing,
            registered_at,
            mode,
            leased,
        } = memory;
        let len = self.unit(unit).len;
        let slot = |lands_in| Slot {
            base: 0,
            leased,
            mode,
            lands_in,
        };
        let slot = match self.unit(unit).parts {
            Parts::One(item) if !self.is_fetched(item) => slot(Some(LandsIn::Own(landing))),
            Parts::One(item) if self.cuts(mode, registered_at, len).is_none() => {
                let transfer = Transfer {
                    item,
                    unit,
                    lands_in: LandsIn::Own(landing),
                    landing_offset: 0,
                    object_offset: 0,
                    len,
                };
                self.push_ready(mode, transfer);
                slot(None)
            }
            _ => {
                let shared = self.share(landing);
                self.put_on_shared(unit, &shared, 0, registered_at, mode);
                slot(Some(LandsIn::Shared(shared)))
            }
        };
        self.units[unit as usize].slot = Some(slot);
    }

    /// Memory that several transfers write.
    pub(in crate::read) fn share(&self, landing: Landing) -> Arc<SharedLanding> {
        SharedLanding::new(&self.quarantine, landing)
    }

    /// Puts a unit on a part of memory that several transfers write, from `base` on.
    pub(in crate::read) fn put_on_shared(
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
}
