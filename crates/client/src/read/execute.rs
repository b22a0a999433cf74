//! One engine call, on whatever thread runs it.

use super::{
    ground::Ground,
    groups::{self, Group, How, Transfer},
    items::{Items, ZERO_MARKER},
};
use crate::{
    CallError, FallbackKind,
    calls::{EngineCall, Gate},
    core::Core,
    growth::Refused,
};
use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tensorlease_arena::{
    SlabKind,
    plan::{CopyRegion, GroupLimits, cut_groups, merge_regions},
};
use tensorlease_engine::{Fault, FaultKind, ReadOp, RegisterError};
use tensorlease_memory::{InFlight, Landing, Mapping, MappingKind, Region, Target, View, copy_all};

/// A bounce block is held for one round only; one that does not come free for this long is held by something that hangs.
const BOUNCE_WAIT_MAX: Duration = Duration::from_secs(1);
/// The same where the last wait was in vain.
const STARVED_WAIT_MAX: Duration = Duration::from_millis(5);

/// What became of one transfer.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) transfer: Transfer,
    pub(super) result: Result<u64, Fault>,
    /// It never ran: why there was no loan for it.
    pub(super) unlent: Option<FallbackKind>,
}

/// How the bytes may come. Memory that is registered or borrowed for one call is read as the clients do that this project is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Road {
    Any,
    Transport,
}

/// Why there was no memory to stage in. With a kind: the engine lent none.
struct NoBounce {
    fault: Fault,
    unlent: Option<FallbackKind>,
}

impl From<Fault> for NoBounce {
    fn from(fault: Fault) -> Self {
        Self { fault, unlent: None }
    }
}

impl EngineCall for Group {
    type Done = Finished;

    fn execute(self, core: &Arc<Core>, gate: &Gate<'_>) -> Vec<Finished> {
        execute(core, self, gate)
    }

    fn bounces(&self, core: &Core) -> bool {
        self.how == How::Bounced || (self.how == How::Staged && core.lends().is_none())
    }

    fn bytes(&self) -> u64 {
        self.transfers.iter().map(|transfer| transfer.len).sum()
    }
}

/// Memory that the engine may still write is quarantined here, whoever still waits.
fn execute(core: &Arc<Core>, group: Group, gate: &Gate<'_>) -> Vec<Finished> {
    let Group {
        how,
        mut transfers,
        items,
        divisor,
    } = group;
    let items = &*items;
    let mut unlent = None;
    let results = match how {
        How::Direct => {
            transfers
                .iter()
                .for_each(|transfer| prefault(&transfer.ground, transfer.ground_offset, transfer.len));
            direct(core, items, &transfers, Road::Any)
        }
        How::Staged | How::Bounced => {
            let bytes = transfers.iter().map(|transfer| transfer.len).sum();
            let staged = bounce(core, how, bytes, gate).map(|bounce| staged(core, items, &transfers, bounce, gate));
            staged.unwrap_or_else(|none| {
                unlent = none.unlent;
                vec![Err(none.fault); transfers.len()]
            })
        }
        How::Registered => registered(core, items, &transfers, divisor),
    };
    for (transfer, result) in transfers.iter_mut().zip(&results) {
        if matches!(result, Err(fault) if fault.kind == FaultKind::MayStillWrite) {
            transfer.ground.quarantine(core);
        }
    }
    transfers
        .into_iter()
        .zip(results)
        .map(|(transfer, result)| Finished {
            transfer,
            result,
            unlent,
        })
        .collect()
}

fn direct(core: &Core, items: &Items, transfers: &[Transfer], road: Road) -> Vec<Result<u64, Fault>> {
    let targets = transfers.iter().map(|it| it.ground.target(it.ground_offset, it.len));
    call(core, items, transfers, targets, road)
}

/// Fresh memory gets its pages in one call: a fault for each, taken by the copy, costs more than the copy itself.
fn prefault(ground: &Ground, start: u64, len: u64) {
    if let Landing::Fresh(mapping) = ground.landing() {
        let start = super::ground::index(start);
        mapping.prefault(start..start + super::ground::index(len));
    }
}

/// Where staged bytes arrive: a block of the bounce reserve, or what the engine lends.
fn bounce(core: &Arc<Core>, how: How, bytes: u64, gate: &Gate<'_>) -> Result<Landing, NoBounce> {
    let Some(staging) = core.lends().filter(|_| how == How::Staged) else {
        return Ok(core.bounce_landing(bytes, gate)?);
    };
    let refused = |kind, fault| NoBounce {
        fault,
        unlent: Some(kind),
    };
    let loan = match core.borrow(staging, super::ground::index(bytes)) {
        Err(fault) if fault.kind == FaultKind::NoLoan => return Err(refused(FallbackKind::NoLoan, fault)),
        lent => lent?,
    };
    core.counters.loans.add(1);
    if loan.overflow {
        let kind = FallbackKind::LoanOverflow;
        core.count_reason(kind, 1);
        if core.options.strict {
            let fault = Fault::new(FaultKind::NoLoan, 0, format!("{bytes} bytes on their own"));
            return Err(refused(kind, fault));
        }
    }
    Ok(Landing::Foreign(loan.memory))
}

/// Into a bounce block back to back in destination order, then one copy per run of back-to-back destinations.
fn staged(
    core: &Core,
    items: &Items,
    transfers: &[Transfer],
    bounce: Landing,
    gate: &Gate<'_>,
) -> Vec<Result<u64, Fault>> {
    let starts: Vec<usize> = transfers
        .iter()
        .scan(0, |end, transfer| {
            let start = *end;
            *end += super::ground::index(transfer.len);
            Some(start)
        })
        .collect();
    let span = |at: usize| starts[at]..starts[at] + super::ground::index(transfers[at].len);
    let road = match bounce {
        Landing::Foreign(_) => Road::Transport,
        _ => Road::Any,
    };
    // A loan may hold more keys than the engine takes in one call.
    let mut results = Vec::with_capacity(transfers.len());
    for range in calls_of(core, transfers, 1) {
        let targets = range.clone().map(|at| bounce.target(span(at)));
        results.extend(call(core, items, &transfers[range], targets, road));
    }
    {
        let abandoned = gate.is_closed();
        if !*abandoned {
            let whole = |at: &usize| matches!(&results[*at], Ok(len) if *len == transfers[*at].len);
            let (starts, whole): (Vec<usize>, Vec<&Transfer>) = (0..transfers.len())
                .filter(whole)
                .map(|at| (starts[at], &transfers[at]))
                .unzip();
            core.stages.copy.time(|| copy_out(core, &bounce, &starts, &whole));
        }
    }
    keep_or_quarantine(core, bounce, &mut results);
    results
}

/// One copy per region: a maximal run of destinations that lie back to back in one landing (requirement A11).
fn copy_out(core: &Core, bounce: &Landing, starts: &[usize], transfers: &[&Transfer]) {
    // The first transfer of those that land in the same memory stands for that memory.
    let mut landing = 0;
    let copies = starts.iter().zip(transfers).enumerate().map(|(at, (start, transfer))| {
        if !transfer.ground.same(&transfers[landing].ground) {
            landing = at;
        }
        CopyRegion {
            source_offset: *start as u64,
            landing,
            landing_offset: transfer.ground_offset,
            len: transfer.len,
        }
    });
    let pair = |region: CopyRegion| {
        let (ground, start) = (&transfers[region.landing].ground, region.landing_offset);
        // The reference's way through loans takes its page faults in the copy.
        if core.lends().is_none() {
            prefault(ground, start, region.len);
        }
        let source = super::ground::index(region.source_offset);
        let source = bounce.source(source..source + super::ground::index(region.len));
        (source, ground.target(start, region.len))
    };
    let pairs: Vec<_> = merge_regions(copies).into_iter().map(pair).collect();
    core.counters
        .copied_bytes
        .add(transfers.iter().map(|transfer| transfer.len).sum());
    copy_all(&pairs);
}

/// The bounce block of a call that may still write goes to quarantine; the destinations were not touched by it, so the
/// keys may be tried again.
fn keep_or_quarantine(core: &Core, bounce: Landing, results: &mut [Result<u64, Fault>]) {
    let mut late = false;
    for result in results.iter_mut() {
        if let Err(fault) = result
            && fault.kind == FaultKind::MayStillWrite
        {
            fault.kind = FaultKind::Transient;
            late = true;
        }
    }
    if late {
        core.quarantine(bounce);
    }
}

/// Registers the landings for this one call. One that may still be written stays registered until the engine is closed.
fn registered(core: &Core, items: &Items, transfers: &[Transfer], divisor: u64) -> Vec<Result<u64, Fault>> {
    if !core.registers() {
        return in_calls(core, items, transfers, divisor);
    }
    let mut regions: Vec<Region> = transfers.iter().map(|transfer| transfer.ground.region()).collect();
    regions.dedup();
    let pieces: Vec<Region> = regions
        .iter()
        .flat_map(|region| core.registration_pieces(*region))
        .collect();
    for (at, piece) in pieces.iter().enumerate() {
        core.counters.register_calls_per_read.add(1);
        if let Err(error) = core.register(*piece) {
            pieces[..at].iter().for_each(|piece| core.unregister(*piece));
            let fault = refused_registration(&error);
            return vec![Err(fault); transfers.len()];
        }
    }
    let results = in_calls(core, items, transfers, divisor);
    let late = |region: &Region| {
        let of = transfers
            .iter()
            .zip(&results)
            .filter(|(transfer, _)| transfer.ground.region() == *region);
        of.into_iter()
            .any(|(_, result)| matches!(result, Err(fault) if fault.kind == FaultKind::MayStillWrite))
    };
    regions
        .iter()
        .filter(|region| !late(region))
        .flat_map(|region| core.registration_pieces(*region))
        .for_each(|piece| core.unregister(piece));
    results
}

/// One call where the engine takes all of them in one: a batch may have more rows than that.
fn in_calls(core: &Core, items: &Items, transfers: &[Transfer], divisor: u64) -> Vec<Result<u64, Fault>> {
    let mut rest = transfers;
    let mut results = Vec::with_capacity(transfers.len());
    for len in groups::group_lens(&calls_of(core, transfers, divisor), transfers) {
        let (now, later) = rest.split_at(len);
        results.extend(direct(core, items, now, Road::Transport));
        rest = later;
    }
    results
}

/// The transfers of each engine call, at least `divisor` calls where there are as many transfers.
fn calls_of(core: &Core, transfers: &[Transfer], divisor: u64) -> Vec<Range<usize>> {
    let lens: Vec<u64> = transfers.iter().map(|transfer| transfer.len).collect();
    let limits = groups::call_limits(core);
    let part = transfers.len().div_ceil(usize::try_from(divisor).unwrap_or(usize::MAX));
    let keys_max = limits.keys_max.min(part).max(1);
    cut_groups(&lens, GroupLimits { keys_max, ..limits })
}

/// Memory that another call has registered just now is free again when that call ends.
pub(crate) fn refused_registration(error: &RegisterError) -> Fault {
    let kind = match error {
        RegisterError::Overlap { .. } => FaultKind::Transient,
        RegisterError::Closed => FaultKind::Unavailable,
        _ => FaultKind::Unregistered,
    };
    Fault::new(kind, 0, format!("memory can't be registered for this call: {error}"))
}

/// Out of the objects that the engine holds for this read.
fn copied<'a>(
    core: &Core,
    objects: &[Option<View>],
    transfers: &[Transfer],
    targets: impl Iterator<Item = Target<'a>>,
) -> Vec<Result<u64, Fault>> {
    let source = |transfer: &Transfer| {
        let object = objects[transfer.item as usize].as_ref();
        let object = object.expect("values of zero bytes have no transfer");
        let start = super::ground::index(transfer.object_offset);
        object.source(start..start + super::ground::index(transfer.len))
    };
    let pairs: Vec<_> = transfers.iter().map(source).zip(targets).collect();
    core.stages.transfer.time(|| copy_all(&pairs));
    transfers.iter().map(|transfer| Ok(transfer.len)).collect()
}

/// `read_batch`, with its promises checked: one result per key, no panic.
fn call<'a>(
    core: &Core,
    items: &Items,
    transfers: &[Transfer],
    targets: impl Iterator<Item = Target<'a>>,
    road: Road,
) -> Vec<Result<u64, Fault>> {
    if let Some(objects) = &items.held {
        return copied(core, objects, transfers, targets);
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
                object_len: items.items[item].len.max(ZERO_MARKER.len() as u64),
                tag: items.tag(item),
                by_transport: road == Road::Transport,
            }
        })
        .collect();
    core.counters.engine_read_calls.add(1);
    core.stages
        .transfer
        .time(|| core.answers(reads.len(), || core.engine.read_batch(&reads)))
}

impl Core {
    /// Where a round of a read is staged. An engine that registers nothing takes any memory: its reads neither wait for a
    /// block nor fail for want of one.
    fn bounce_landing(self: &Arc<Self>, bytes: u64, gate: &Gate<'_>) -> Result<Landing, Fault> {
        if self.registers() {
            return self.bounce_block(bytes, gate).map(Landing::Block);
        }
        let refused = match self.block_now(bytes, gate)? {
            Ok(block) => return Ok(Landing::Block(block)),
            Err(refused) => refused.told(self),
        };
        self.count_reason_of(&refused, staging_fallback(refused.kind), 1);
        let len = super::ground::index(bytes);
        let fresh = Mapping::new(MappingKind::Anonymous, len).map_err(|error| {
            let words = format!("no memory to stage {bytes} bytes in: {error}; free memory of this machine");
            Fault::new(FaultKind::NoHandle, 0, words)
        })?;
        fresh.prefault(0..len);
        Ok(Landing::Fresh(fresh))
    }

    /// A block of the bounce reserve. Rounds are sized so that every reader finds one; only calls that hang, or memory in
    /// quarantine, can make one wait.
    pub(crate) fn bounce_block(self: &Arc<Self>, bytes: u64, gate: &Gate<'_>) -> Result<InFlight, Fault> {
        let start = Instant::now();
        let mut was_alone = false;
        loop {
            let refused = match self.block_now(bytes, gate)? {
                Ok(block) => return Ok(block),
                Err(refused) => refused,
            };
            if self.is_closed() {
                return Err(Fault::new(
                    FaultKind::Unavailable,
                    0,
                    "the store is closed; open a new one",
                ));
            }
            // Waiting helps against other transfers, not against memory in quarantine.
            let mut hopeless = refused.kind != FallbackKind::Budget || 0 < self.quarantined_bytes();
            // Where no transfer holds a block, the room is not this store's to give back: its engine lends it none. Seen twice, for a transfer may
            // have ended just now.
            let alone = self.arena.usage().in_flight_bytes == 0;
            hopeless |= alone && was_alone;
            was_alone = alone;
            // A read has many rounds, each of which may come here: they must not wait for the same nothing one after the other.
            let wait = if self.staging_starved.load(Ordering::Relaxed) {
                STARVED_WAIT_MAX
            } else {
                BOUNCE_WAIT_MAX
            };
            if hopeless || wait <= start.elapsed() {
                self.staging_starved.store(true, Ordering::Relaxed);
                let refused = refused.told(self);
                self.count_reason_of(&refused, staging_fallback(refused.kind), 1);
                return Err(Fault::new(FaultKind::NoHandle, 0, self.no_staging(&refused)));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A block to stage in, or why the bounce reserve has none.
    fn block_now(self: &Arc<Self>, bytes: u64, gate: &Gate<'_>) -> Result<Result<InFlight, Refused>, Fault> {
        let acquire = |kind| self.acquire(kind, &[(bytes, 1)], || gate.slice()).map_err(no_slab);
        let mut acquired = acquire(SlabKind::Bounce)?;
        let Some(refused) = acquired.refused else {
            self.staging_starved.store(false, Ordering::Relaxed);
            return Ok(Ok(acquired.blocks.pop().expect("not refused, so there is a block")));
        };
        // What hangs or is quarantined in the reserve must not stop everybody else while the arena has room.
        let spare = acquire(SlabKind::Lease)?.blocks.pop();
        let Some(block) = spare.filter(|block| self.is_one_registration(block)) else {
            return Ok(Err(refused));
        };
        self.staging_starved.store(false, Ordering::Relaxed);
        let refused = refused.told(self);
        self.count_reason_of(&refused, staging_fallback(refused.kind), 1);
        Ok(Ok(block))
    }

    /// A lease slab that is larger than one registration has several, and a staging block may lie in one only.
    fn is_one_registration(&self, block: &InFlight) -> bool {
        let (piece, start) = (self.registration_piece_bytes(), block.block().offset);
        start / piece == (start + block.len() as u64 - 1) / piece
    }

    fn no_staging(&self, refused: &Refused) -> String {
        // What hinders the reserve's growth says more than what is held of it.
        if refused.kind != FallbackKind::Budget {
            return format!("no staging block: {} ({refused})", refused.kind.words());
        }
        match self.quarantined_bytes() {
            0 => format!("no staging block: {} ({refused})", refused.kind.words()),
            held => format!(
                "no staging block: {held} bytes are quarantined because transfers that failed may still use them; close this store and open a new one"
            ),
        }
    }
}

/// No slab came while the caller waited, or none ever will.
fn no_slab(error: CallError) -> Fault {
    match error {
        CallError::Unavailable { message } => Fault::new(FaultKind::Unavailable, 0, message),
        _ => Fault::new(
            FaultKind::Transient,
            0,
            "no staging block came before its caller gave up",
        ),
    }
}

/// What to tell of a staging block that was not to be had: only a reserve that is there can be busy.
fn staging_fallback(kind: FallbackKind) -> FallbackKind {
    match kind {
        FallbackKind::Budget => FallbackKind::BounceBusy,
        other => other,
    }
}
