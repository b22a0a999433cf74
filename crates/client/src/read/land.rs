//! Finds the memory of each unit: leased, copied, registered for the call, or the caller's.

use super::{
    groups::TransferMode,
    job::{Job, UnitMemory},
    landing::index,
};
use crate::{FallbackKind, ReadError, parts::Parts, patience::Wait};
use std::iter;
use tensorlease_arena::{
    SlabKind,
    plan::{GroupLimits, cut_groups},
};
use tensorlease_memory::{HeapBytes, Landing, Mapping, MappingKind, has_room, lay_out, limits::page_bytes};

/// Smaller values that find no recycled memory come from the heap, which is cheaper than a mapping that several share.
const MAPPED_BYTES_MIN: u64 = 16 << 10;
/// Of so many bytes of small values together it is looked whether the heap has them, before the allocation of anything else fails for them.
const MANY_BYTES: usize = 4 << 20;
/// Largest item of any dtype.
const ITEM_BYTES_MAX: u64 = 16;

/// Finds memory for every unit that has none and makes its transfers.
pub(super) fn land(parts: &Parts, job: &mut Job, wait: &Wait<'_>) -> Result<(), ReadError> {
    let waiting = job.waiting();
    if job.has_destinations() {
        in_callers_memory(parts, job, &waiting);
        return Ok(());
    }
    let (to_lease, mut to_copy) = job.leased_and_copied(waiting);
    to_copy.extend(leased(parts, job, &to_lease, wait)?);
    copied(parts, job, &to_copy, wait)
}

pub(crate) fn in_callers_memory(parts: &Parts, job: &mut Job, units: &[u32]) {
    for unit in units {
        let destination = job.take_destination(*unit);
        let region = destination.region();
        let mode = job.destination_mode(|| parts.memory.owns(region));
        // The caller's memory in the arena is registered with its slab, all other on its own.
        let slab = (mode == TransferMode::Direct)
            .then(|| parts.memory.registrations().slab_of(region))
            .flatten();
        let memory = UnitMemory {
            landing: Landing::Caller(destination),
            registered_at: slab.map_or(0, |slab| (region.addr - slab.addr) as u64),
            mode,
            leased: false,
        };
        job.put(*unit, memory);
    }
}

/// Blocks of the arena while the budget lasts; gives back the units that got none.
pub(crate) fn leased(parts: &Parts, job: &mut Job, units: &[u32], wait: &Wait<'_>) -> Result<Vec<u32>, ReadError> {
    let (mut left, mut queue) = (Vec::new(), units);
    while !queue.is_empty() {
        let wanted = job.wanted(queue);
        let acquired = parts.memory.acquire(SlabKind::Lease, &wanted, || wait.slice())?;
        let got = acquired.blocks.len();
        for (unit, block) in iter::zip(queue, acquired.blocks) {
            job.put(*unit, of_block(Landing::Block(block), TransferMode::Direct, true));
        }
        queue = &queue[got..];
        let Some(refused) = acquired.refused else { break };
        let lost = Job::lost(refused.kind, queue.len());
        if parts.options.strict {
            return Err(job.refusal(refused.kind, &queue[..lost], &format!(" ({refused})")));
        }
        refused.count(&parts.accounts, lost as u64);
        left.extend_from_slice(&queue[..lost]);
        queue = &queue[lost..];
    }
    Ok(left)
}

/// A block is registered with its slab; other landings of a read are registered on their own, if at all.
fn of_block(landing: Landing, mode: TransferMode, leased: bool) -> UnitMemory {
    let registered_at = match &landing {
        Landing::Block(block) => block.block().offset,
        _ => 0,
    };
    UnitMemory {
        landing,
        registered_at,
        mode,
        leased,
    }
}

/// Recycled memory while its bound lasts, then fresh memory: from the heap for small values, mapped for others.
fn copied(parts: &Parts, job: &mut Job, units: &[u32], wait: &Wait<'_>) -> Result<(), ReadError> {
    let mode = job.copied_mode();
    let blocks = parts.memory.copy_blocks(&job.wanted(units), || wait.slice())?;
    let (recycled, fresh) = units.split_at(blocks.len());
    past_the_copy_cache(parts, job, fresh)?;
    for (unit, block) in iter::zip(recycled, blocks) {
        job.put(*unit, of_block(Landing::Block(block), mode, false));
    }
    let (small, large): (Vec<u32>, Vec<u32>) = fresh.iter().partition(|unit| {
        let unit = job.unit(**unit);
        unit.batch.is_none() && unit.len < MAPPED_BYTES_MIN
    });
    let small_bytes = small.iter().map(|unit| index(job.unit(*unit).len)).sum();
    if MANY_BYTES <= small_bytes && !has_room(small_bytes) {
        let error = parts.memory.no_memory(small_bytes as u64, &"the heap has not so much");
        return Err(error.into());
    }
    for unit in small {
        let len = index(job.unit(unit).len);
        let no_memory = || parts.memory.no_memory(len as u64, &"the heap has none");
        let heap = HeapBytes::try_new(len).ok_or_else(no_memory)?;
        job.put(unit, of_block(Landing::Heap(heap), mode, false));
    }
    for (units, mode, limits) in job.fresh(&large) {
        in_mappings(parts, job, &units, mode, limits)?;
    }
    Ok(())
}

/// `units` copies find no recycled memory: a fallback of its own where copies were asked for.
fn past_the_copy_cache(parts: &Parts, job: &Job, units: &[u32]) -> Result<(), ReadError> {
    let (kind, values) = (FallbackKind::CopyCache, units.len() as u64);
    if units.is_empty() {
        return Ok(());
    }
    if !job.delivery.asks_for_copies() {
        parts.accounts.count_reason(kind, values, None);
        return Ok(());
    }
    if parts.options.strict {
        return Err(job.refusal(kind, units, ""));
    }
    parts.accounts.count_fallback(kind, values, None);
    Ok(())
}

/// Units back to back in one fresh mapping per group.
pub(crate) fn in_mappings(
    parts: &Parts,
    job: &mut Job,
    units: &[u32],
    mode: TransferMode,
    limits: GroupLimits,
) -> Result<(), ReadError> {
    let lens: Vec<u64> = units.iter().map(|unit| room(job, *unit)).collect();
    for group in cut_groups(&lens, unpadded(limits)) {
        let of_group: Vec<usize> = lens[group.clone()].iter().copied().map(index).collect();
        let (starts, bytes) = lay_out(&of_group);
        let mapping = Mapping::new(MappingKind::Anonymous, bytes)
            .map_err(|error| parts.memory.no_memory(bytes as u64, &error))?;
        let shared = job.share(Landing::Fresh(mapping));
        for (index, start) in iter::zip(group, starts) {
            job.put_on_shared(units[index], &shared, start as u64, 0, mode);
        }
    }
    Ok(())
}

/// What a unit takes in memory that it shares: a batch may end at any byte, and the next unit begins aligned all the same.
fn room(job: &Job, unit: u32) -> u64 {
    let unit = job.unit(unit);
    if unit.batch.is_some() {
        unit.len.next_multiple_of(ITEM_BYTES_MAX)
    } else {
        unit.len
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
