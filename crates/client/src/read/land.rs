//! Chooses the memory of each unit: leased, copied, registered for the call, or the caller's.

use super::{ground::SharedLanding, groups::How, job::Job};
use crate::{CallError, Delivery, FallbackKind, ReadError, core::Core, patience::Wait};
use std::{fmt::Display, iter, sync::Arc};
use tensorlease_arena::{
    GRANULE_BYTES, SlabKind,
    plan::{GroupLimits, cut_groups, dtype_regions},
};
use tensorlease_engine::Staging;
use tensorlease_memory::{
    HeapBytes, InFlight, Landing, Mapping, MappingKind, Unregistered, has_room, lay_out, limits::page_bytes,
};

/// In `auto`, smaller values are copied out: their blocks would cost more than the copy.
const LEASED_BYTES_MIN: u64 = 16 << 10;
/// Smaller values that find no recycled memory come from the heap, which is cheaper than a mapping that several share.
const MAPPED_BYTES_MIN: u64 = 16 << 10;
/// Of so many bytes of small values together it is looked whether the heap has them, before the allocation of anything else fails for them.
const MANY_BYTES: usize = 4 << 20;
/// Less than this is registered in one piece for one transfer (requirement A8).
const REGISTERED_PART_BYTES_MIN: u64 = 256 << 20;
/// Largest item of any dtype.
const ITEM_BYTES_MAX: u64 = 16;
/// Fresh memory for copies is mapped in pieces of this size: what a transfer that ends late takes out of use is no more than that.
const FRESH_BYTES: u64 = 64 << 20;

impl Job<'_> {
    /// Finds memory for every unit that has none and makes its transfers.
    pub(super) fn land(&mut self, wait: &Wait<'_>) -> Result<(), ReadError> {
        self.collected = false;
        let waiting = |(at, unit): (usize, &super::job::Unit)| unit.place.is_none().then_some(at);
        let waiting: Vec<u32> = self
            .units
            .iter()
            .enumerate()
            .filter_map(waiting)
            .filter_map(|at| u32::try_from(at).ok())
            .collect();
        if !self.into.is_empty() {
            self.land_in_callers_memory(&waiting);
            return Ok(());
        }
        let lends = self.core.lends().is_some();
        let (leased, mut copied): (Vec<u32>, Vec<u32>) = match self.delivery {
            Delivery::Auto if lends => (Vec::new(), waiting),
            Delivery::RegisterPerCall => return self.land_registered_per_call(&waiting),
            // What got neither lease nor loan is counted, and not tried again.
            Delivery::Leased => waiting.into_iter().partition(|unit| !self.units[*unit as usize].unlent),
            Delivery::Copied => (Vec::new(), waiting),
            Delivery::Auto => waiting.into_iter().partition(|unit| {
                let unit = &self.units[*unit as usize];
                unit.batch.is_some() || LEASED_BYTES_MIN <= unit.len
            }),
        };
        copied.extend(self.land_leased(&leased, wait)?);
        if lends {
            return self.land_lent(&copied);
        }
        self.land_copied(&copied, wait)
    }

    /// The reference's way: through loans of the engine's own memory into fresh memory, per batch of keys and dtype. What is larger than a loan,
    /// and what got none, is collected and registered once per dtype region (requirement A8).
    fn land_lent(&mut self, units: &[u32]) -> Result<(), ReadError> {
        let Some(limits) = self.core.lends().map(Staging::limits) else {
            return Ok(());
        };
        let (registered, lent): (Vec<u32>, Vec<u32>) = units.iter().partition(|unit| {
            let unlent = self.units[**unit as usize].unlent;
            unlent || limits.bytes_max < self.longest_part(**unit)
        });
        self.refuse_larger_than_a_loan(&registered)?;
        let unlimited = GroupLimits {
            keys_max: usize::MAX,
            bytes_max: u64::MAX,
        };
        for batch in lent.chunks(limits.keys_max) {
            for region in self.of_one_dtype(batch) {
                self.land_in_mappings(&region, How::Staged, unlimited)?;
            }
        }
        // Once, after what comes through loans: there may be more of them by then.
        self.collected = !registered.is_empty() && !self.ready[How::Staged as usize].is_empty();
        if self.collected {
            return Ok(());
        }
        for region in self.of_one_dtype(&registered) {
            self.land_in_mappings(&region, How::Registered, self.core.registered_limits())?;
        }
        Ok(())
    }

    fn longest_part(&self, unit: u32) -> u64 {
        let parts = self.units[unit as usize].each_part();
        parts
            .map(|(item, _)| self.items.items[item as usize].len)
            .max()
            .unwrap_or(0)
    }

    fn refuse_larger_than_a_loan(&mut self, units: &[u32]) -> Result<(), ReadError> {
        let kind = FallbackKind::LoanTooLarge;
        let (mut values, mut larger) = (0, Vec::new());
        for at in units {
            let unit = &mut self.units[*at as usize];
            // Those that got no loan are counted, and so is what lands for the second time.
            if !std::mem::replace(&mut unit.unlent, true) {
                values += unit.each_part().count() as u64;
                larger.push(*at);
            }
        }
        if values == 0 {
            return Ok(());
        }
        if self.core.options.strict {
            return Err(self.refusal(kind, &larger, ""));
        }
        self.count_without_loan(kind, values, None);
        Ok(())
    }

    /// The units by dtype, in the order of first use.
    fn of_one_dtype(&self, units: &[u32]) -> Vec<Vec<u32>> {
        let dtypes: Vec<u32> = units.iter().map(|unit| self.dtype_code(*unit)).collect();
        let of = |region: Vec<usize>| region.into_iter().map(|index| units[index]).collect();
        dtype_regions(&dtypes).into_iter().map(of).collect()
    }

    /// Requirement B12: the caller's memory is written by a copy after the transfer, unless it asked otherwise.
    fn land_in_callers_memory(&mut self, units: &[u32]) {
        for unit in units {
            let item = self.units[*unit as usize].first_item() as usize;
            let foreign = self.into[item]
                .take()
                .expect("a destination is placed once: it is never quarantined and read again");
            let how = match self.direct {
                false => How::Staged,
                // What lies in the arena is registered already, and no memory is registered twice.
                true if self.core.registers() && !self.core.arena.contains(foreign.region()) => How::Registered,
                true => How::Direct,
            };
            self.put(*unit, Landing::Foreign(foreign), how, false);
        }
    }

    /// Blocks of the arena while the budget lasts; gives back the units that got none.
    fn land_leased(&mut self, units: &[u32], wait: &Wait<'_>) -> Result<Vec<u32>, ReadError> {
        let (mut left, mut queue) = (Vec::new(), units);
        while !queue.is_empty() {
            let wanted = self.wanted(queue);
            let acquired = self.core.acquire(SlabKind::Lease, &wanted, || wait.slice())?;
            let got = acquired.blocks.len();
            for (unit, block) in iter::zip(queue, acquired.blocks) {
                self.put(*unit, Landing::Block(block), How::Direct, true);
            }
            queue = &queue[got..];
            let Some(refused) = acquired.refused else { break };
            let refused = refused.told(self.core);
            // A value that can never fit leaves the others their chance; anything else ends it for all that are left.
            let lost = if refused.kind == FallbackKind::TooLarge {
                1
            } else {
                queue.len()
            };
            if self.core.options.strict {
                return Err(self.refusal(refused.kind, &queue[..lost], &format!(" ({refused})")));
            }
            self.core.count_refused(&refused, lost as u64);
            left.extend_from_slice(&queue[..lost]);
            queue = &queue[lost..];
        }
        Ok(left)
    }

    fn wanted(&self, units: &[u32]) -> Vec<(u64, u64)> {
        units
            .iter()
            .map(|unit| (self.units[*unit as usize].len, GRANULE_BYTES))
            .collect()
    }

    /// Recycled memory while its bound lasts, then fresh memory: from the heap for small values, mapped for others.
    fn land_copied(&mut self, units: &[u32], wait: &Wait<'_>) -> Result<(), ReadError> {
        let how = self.how_copied();
        let blocks = self.core.copy_blocks(&self.wanted(units), wait)?;
        let (recycled, fresh) = units.split_at(blocks.len());
        self.past_the_copy_cache(fresh)?;
        for (unit, block) in iter::zip(recycled, blocks) {
            self.put(*unit, Landing::Block(block), how, false);
        }
        let (small, large): (Vec<u32>, Vec<u32>) = fresh.iter().partition(|unit| {
            let unit = &self.units[**unit as usize];
            unit.batch.is_none() && unit.len < MAPPED_BYTES_MIN
        });
        let small_bytes = small
            .iter()
            .map(|unit| super::ground::index(self.units[*unit as usize].len))
            .sum();
        if MANY_BYTES <= small_bytes && !has_room(small_bytes) {
            return Err(self.core.no_memory(small_bytes as u64, &"the heap has not so much"));
        }
        for unit in small {
            let len = super::ground::index(self.units[unit as usize].len);
            let heap = HeapBytes::try_new(len).ok_or_else(|| self.core.no_memory(len as u64, &"the heap has none"))?;
            self.put(unit, Landing::Heap(heap), how, false);
        }
        self.land_fresh(&large)
    }

    /// `units` copies find no recycled memory: a fallback of its own where copies were asked for.
    fn past_the_copy_cache(&self, units: &[u32]) -> Result<(), ReadError> {
        if units.is_empty() {
            return Ok(());
        }
        let kind = FallbackKind::CopyCache;
        if self.delivery != Delivery::Copied {
            self.core.count_reason(kind, units.len() as u64);
            return Ok(());
        }
        if self.core.options.strict {
            return Err(self.refusal(kind, units, ""));
        }
        self.core.count_fallback(kind, units.len() as u64);
        Ok(())
    }

    /// How a copy is made.
    fn how_copied(&self) -> How {
        if self.core.registers() {
            How::Staged
        } else {
            How::Direct
        }
    }

    /// Requirement A8: fresh memory per dtype, with one registration and one transfer each where that is cheaper than copies.
    fn land_fresh(&mut self, units: &[u32]) -> Result<(), ReadError> {
        for of_one_dtype in self.of_one_dtype(units) {
            let longest = of_one_dtype
                .iter()
                .map(|unit| self.units[*unit as usize].len)
                .max()
                .unwrap_or(0);
            let registered = longest <= self.core.capabilities.registration_bytes_max;
            let how = match self.how_copied() {
                How::Staged if registered && !self.core.costs.copy_is_cheaper() => How::Registered,
                how => how,
            };
            let limits = if how == How::Registered {
                self.parted(&of_one_dtype)
            } else {
                fresh_limits()
            };
            self.land_in_mappings(&of_one_dtype, how, limits)?;
        }
        Ok(())
    }

    fn land_registered_per_call(&mut self, units: &[u32]) -> Result<(), ReadError> {
        for batch in units.chunks(self.core.options.batch_keys as usize) {
            for of_one_dtype in self.of_one_dtype(batch) {
                self.land_in_mappings(&of_one_dtype, How::Registered, self.core.registered_limits())?;
            }
        }
        Ok(())
    }

    /// Units back to back in one fresh mapping per group.
    fn land_in_mappings(&mut self, units: &[u32], how: How, limits: GroupLimits) -> Result<(), ReadError> {
        let lens: Vec<u64> = units.iter().map(|unit| self.room(*unit)).collect();
        for group in cut_groups(&lens, unpadded(limits)) {
            let of_group: Vec<usize> = lens[group.clone()].iter().copied().map(super::ground::index).collect();
            let (starts, bytes) = lay_out(&of_group);
            let mapping = Mapping::new(MappingKind::Anonymous, bytes)
                .map_err(|error| self.core.no_memory(bytes as u64, &error))?;
            let shared = SharedLanding::new(self.core, Landing::Fresh(mapping));
            for (index, start) in iter::zip(group, starts) {
                self.put_on_shared(units[index], &shared, start as u64, how, false);
            }
        }
        Ok(())
    }

    /// What a unit takes in memory that it shares: a batch may end at any byte, and the next unit begins aligned all the same.
    fn room(&self, unit: u32) -> u64 {
        let unit = &self.units[unit as usize];
        if unit.batch.is_some() {
            unit.len.next_multiple_of(ITEM_BYTES_MAX)
        } else {
            unit.len
        }
    }

    /// One registration and one transfer for all of `units`, or one per reader and a second to balance them where they are many bytes:
    /// the kernel pins for several threads at a time.
    fn parted(&self, units: &[u32]) -> GroupLimits {
        let total: u64 = units.iter().map(|unit| self.units[*unit as usize].len).sum();
        let part = total
            .div_ceil(2 * self.core.readers.count() as u64)
            .max(REGISTERED_PART_BYTES_MIN);
        let limits = self.core.registered_limits();
        GroupLimits {
            bytes_max: limits.bytes_max.min(part),
            ..limits
        }
    }

    fn dtype_code(&self, unit: u32) -> u32 {
        self.items.dtype_code(self.units[unit as usize].first_item() as usize)
    }
}

/// What is left for values where their layout adds up to a page to every 2 MiB.
fn unpadded(limits: GroupLimits) -> GroupLimits {
    let pages = limits.bytes_max.div_ceil(2 << 20);
    GroupLimits {
        bytes_max: limits
            .bytes_max
            .saturating_sub(pages.saturating_mul(page_bytes() as u64))
            .max(1),
        ..limits
    }
}

fn fresh_limits() -> GroupLimits {
    GroupLimits {
        keys_max: usize::MAX,
        bytes_max: FRESH_BYTES,
    }
}

impl Core {
    /// Recycled memory for copies, for the first of `wanted` that fit into its bound.
    fn copy_blocks(&self, wanted: &[(u64, u64)], wait: &Wait<'_>) -> Result<Vec<InFlight>, CallError> {
        let unregistered = Arc::new(Unregistered);
        let grown = self
            .copies
            .acquire_growing(SlabKind::Lease, wanted, &unregistered, || wait.slice())?;
        Ok(grown.blocks)
    }

    /// What one registration takes; the calls into it are cut on their own.
    fn registered_limits(&self) -> GroupLimits {
        GroupLimits {
            keys_max: usize::MAX,
            bytes_max: self.capabilities.registration_bytes_max,
        }
    }

    /// The system gave no memory at all.
    pub(crate) fn no_memory(&self, asked: u64, error: &dyn Display) -> ReadError {
        let message = format!(
            "no memory for {asked} bytes to land in: {error}; free memory of this machine, or read less at once"
        );
        self.exhausted(message, asked).into()
    }
}
