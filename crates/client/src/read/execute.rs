//! One engine call of a read, on whatever thread runs it.

use super::{
    groups::{self, Group, Transfer, TransferMode},
    items::Items,
    job::Finished,
    landing::{LandsIn, index},
};
use crate::{
    calls::{EngineCall, Gate},
    held::is_late,
    parts::Parts,
};
use std::{ops::Range, sync::Arc};
use tensorlease_arena::plan::{CopyRegion, GroupLimits, cut_groups, merge_regions};
use tensorlease_engine::{Fault, FaultKind, ReadOp};
use tensorlease_memory::{Landing, Region, Target, View, copy_all};

impl EngineCall for Group {
    type Context = Parts;
    type Done = Finished;

    fn execute(self, parts: &Arc<Parts>, gate: &Gate<'_>) -> Vec<Finished> {
        let Self {
            mode,
            transfers,
            items,
            divisor,
        } = self;
        let results = match mode {
            TransferMode::Direct => {
                transfers
                    .iter()
                    .for_each(|transfer| prefault(&transfer.lands_in, transfer.landing_offset, transfer.len));
                direct(parts, &items, &transfers, false)
            }
            TransferMode::Staged => {
                let bytes = transfers.iter().map(|transfer| transfer.len).sum();
                match parts.memory.bounce_landing(bytes, || gate.slice()) {
                    Ok(bounce) => staged(parts, &items, &transfers, bounce, false, gate),
                    Err(fault) => vec![Err(fault); transfers.len()],
                }
            }
            TransferMode::Registered => registered(parts, &items, &transfers, divisor),
        };
        finished(parts, transfers, results)
    }

    fn bounces(&self) -> bool {
        self.mode == TransferMode::Staged
    }

    fn bytes(&self) -> u64 {
        self.transfers.iter().map(|transfer| transfer.len).sum()
    }
}

/// What came of each transfer. Memory that the engine may still write is quarantined here, whether anything still waits or not.
pub(crate) fn finished(parts: &Parts, transfers: Vec<Transfer>, results: Vec<Result<u64, Fault>>) -> Vec<Finished> {
    let finished = |(mut transfer, result): (Transfer, Result<u64, Fault>)| {
        if is_late(&result) {
            transfer.lands_in.quarantine(parts.memory.quarantine());
        }
        let result = verified(&transfer, result);
        Finished { transfer, result }
    };
    transfers.into_iter().zip(results).map(finished).collect()
}

/// The number of bytes is the size, or it is a failure: a short object is never garbage.
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

fn direct(parts: &Parts, items: &Items, transfers: &[Transfer], by_transport: bool) -> Vec<Result<u64, Fault>> {
    let targets = transfers
        .iter()
        .map(|transfer| transfer.lands_in.target(transfer.landing_offset, transfer.len));
    call(parts, items, transfers, targets, by_transport)
}

/// Fresh memory gets its pages in one call: a fault for each, taken by the copy, costs more than the copy itself.
fn prefault(lands_in: &LandsIn, start: u64, len: u64) {
    if let Landing::Fresh(mapping) = lands_in.landing() {
        let start = index(start);
        mapping.prefault(start..start + index(len));
    }
}

/// Into staging memory back to back in destination order, then one copy per run of back-to-back destinations.
///
/// `by_transport`: read as clients without an arena do, whose engine takes no way past the transport, and whose page faults fall in the copy.
pub(crate) fn staged(
    parts: &Parts,
    items: &Items,
    transfers: &[Transfer],
    staging: Landing,
    by_transport: bool,
    gate: &Gate<'_>,
) -> Vec<Result<u64, Fault>> {
    let starts: Vec<usize> = transfers
        .iter()
        .scan(0, |end, transfer| {
            let start = *end;
            *end += index(transfer.len);
            Some(start)
        })
        .collect();
    let span = |at: usize| starts[at]..starts[at] + index(transfers[at].len);
    // Staging memory may hold more keys than the engine takes in one call.
    let mut results = Vec::with_capacity(transfers.len());
    for range in calls_of(parts, transfers, 1) {
        let targets = range.clone().map(|at| staging.target(span(at)));
        results.extend(call(parts, items, &transfers[range], targets, by_transport));
    }
    {
        let abandoned = gate.is_closed();
        if !*abandoned {
            let whole = |at: &usize| matches!(&results[*at], Ok(len) if *len == transfers[*at].len);
            let (starts, whole): (Vec<usize>, Vec<&Transfer>) = (0..transfers.len())
                .filter(whole)
                .map(|at| (starts[at], &transfers[at]))
                .unzip();
            let copy = || copy_out(parts, &staging, &starts, &whole, !by_transport);
            parts.accounts.stages().copy.time(copy);
        }
    }
    parts.memory.quarantine().keep_if_late(staging, &mut results);
    results
}

/// One copy per region: a maximal run of destinations that lie back to back in one landing.
fn copy_out(parts: &Parts, staging: &Landing, starts: &[usize], transfers: &[&Transfer], prefaults: bool) {
    // The first transfer of those that land in the same memory stands for that memory.
    let mut landing = 0;
    let copies = starts.iter().zip(transfers).enumerate().map(|(at, (start, transfer))| {
        if !transfer.lands_in.same(&transfers[landing].lands_in) {
            landing = at;
        }
        CopyRegion {
            source_offset: *start as u64,
            landing,
            landing_offset: transfer.landing_offset,
            len: transfer.len,
        }
    });
    let pair = |region: CopyRegion| {
        let (lands_in, start) = (&transfers[region.landing].lands_in, region.landing_offset);
        if prefaults {
            prefault(lands_in, start, region.len);
        }
        let source = index(region.source_offset);
        let source = staging.source(source..source + index(region.len));
        (source, lands_in.target(start, region.len))
    };
    let pairs: Vec<_> = merge_regions(copies).into_iter().map(pair).collect();
    let bytes = transfers.iter().map(|transfer| transfer.len).sum();
    parts.accounts.counters().copied_bytes.add(bytes);
    copy_all(&pairs);
}

/// Registers the landings for this one call. One that may still be written stays registered until the engine is closed.
fn registered(parts: &Parts, items: &Items, transfers: &[Transfer], divisor: u64) -> Vec<Result<u64, Fault>> {
    if !parts.calls.registers() {
        return in_calls(parts, items, transfers, divisor);
    }
    let registrations = parts.memory.registrations();
    let mut regions: Vec<Region> = transfers.iter().map(|transfer| transfer.lands_in.region()).collect();
    regions.dedup();
    if let Err(fault) = registrations.register_for_call(&regions) {
        return vec![Err(fault); transfers.len()];
    }
    let results = in_calls(parts, items, transfers, divisor);
    let late = |region: &Region| {
        let of_region = transfers
            .iter()
            .zip(&results)
            .filter(|(transfer, _)| transfer.lands_in.region() == *region);
        of_region.into_iter().any(|(_, result)| is_late(result))
    };
    registrations.unregister_pieces(regions.iter().copied().filter(|region| !late(region)));
    results
}

/// One call where the engine takes all of them in one: a batch may have more rows than that.
fn in_calls(parts: &Parts, items: &Items, transfers: &[Transfer], divisor: u64) -> Vec<Result<u64, Fault>> {
    let mut rest = transfers;
    let mut results = Vec::with_capacity(transfers.len());
    for len in groups::group_lens(&calls_of(parts, transfers, divisor), transfers) {
        let (now, later) = rest.split_at(len);
        results.extend(direct(parts, items, now, true));
        rest = later;
    }
    results
}

/// The transfers of each engine call, at least `divisor` calls where there are as many transfers.
fn calls_of(parts: &Parts, transfers: &[Transfer], divisor: u64) -> Vec<Range<usize>> {
    let lens: Vec<u64> = transfers.iter().map(|transfer| transfer.len).collect();
    let limits = parts.calls.limits();
    let part = transfers.len().div_ceil(usize::try_from(divisor).unwrap_or(usize::MAX));
    let keys_max = limits.keys_max.min(part).max(1);
    cut_groups(&lens, GroupLimits { keys_max, ..limits })
}

/// Out of the objects that the engine holds for this read.
fn copied<'a>(
    parts: &Parts,
    objects: &[Option<View>],
    transfers: &[Transfer],
    targets: impl Iterator<Item = Target<'a>>,
) -> Vec<Result<u64, Fault>> {
    let source = |transfer: &Transfer| {
        let object = objects[transfer.item as usize].as_ref();
        let object = object.expect("values of zero bytes have no transfer");
        let start = index(transfer.object_offset);
        object.source(start..start + index(transfer.len))
    };
    let pairs: Vec<_> = transfers.iter().map(source).zip(targets).collect();
    parts.accounts.stages().transfer.time(|| copy_all(&pairs));
    transfers.iter().map(|transfer| Ok(transfer.len)).collect()
}

/// `read_batch`, with its promises checked: one result per key, no panic.
fn call<'a>(
    parts: &Parts,
    items: &Items,
    transfers: &[Transfer],
    targets: impl Iterator<Item = Target<'a>>,
    by_transport: bool,
) -> Vec<Result<u64, Fault>> {
    if let Some(objects) = &items.held {
        return copied(parts, objects, transfers, targets);
    }
    let reads: Vec<ReadOp<'_>> = transfers
        .iter()
        .zip(targets)
        .map(|(transfer, target)| {
            let item = transfer.item as usize;
            ReadOp {
                key: &items.keys[item],
                offset: transfer.object_offset,
                target,
                object_len: items.object_len(item),
                tag: items.tag(item),
                by_transport,
            }
        })
        .collect();
    parts.accounts.counters().engine_read_calls.add(1);
    let read = || parts.calls.engine().read_batch(&reads);
    let answers = || parts.calls.answers(reads.len(), read);
    parts.accounts.stages().transfer.time(answers)
}
