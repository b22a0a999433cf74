//! One write call on the engine.

use super::object::Object;
use crate::{
    Segment,
    calls::{EngineCall, Gate},
    held::is_late,
    parts::Parts,
};
use std::{mem, ops::Range, sync::Arc};
use tensorlease_engine::{Fault, FaultKind, WriteOp};
use tensorlease_memory::{CallerMemory, InFlight, Landing, Region, Source, copy_all};

/// Where the bytes of a call go before the engine takes them.
#[derive(Debug)]
pub(super) enum Staging {
    /// Nowhere: they lie where the engine takes them.
    None,
    /// A block of the bounce reserve, taken when the call runs.
    Bounce,
    /// A block of the arena, for one large object.
    Block(InFlight),
    /// Nowhere: their memory is registered for this call.
    Registered,
}

/// The objects of one engine call.
#[derive(Debug)]
pub(super) struct WriteCall {
    pub(super) objects: Vec<Object>,
    pub(super) staging: Staging,
}

impl WriteCall {
    pub(super) fn new(objects: Vec<Object>, staging: Staging) -> Self {
        Self { objects, staging }
    }
}

/// An object that was not stored.
#[derive(Debug)]
pub(crate) struct Unwritten {
    pub(super) object: Object,
    pub(super) fault: Fault,
}

impl EngineCall for WriteCall {
    type Context = Parts;
    type Done = Unwritten;

    fn execute(self, parts: &Arc<Parts>, gate: &Gate<'_>) -> Vec<Unwritten> {
        let Self { mut objects, staging } = self;
        let results = match staging {
            Staging::None => from_where_they_lie(parts, &objects, &[]),
            Staging::Bounce => {
                let bytes = objects.iter().map(|object| object.len).sum();
                match parts.memory.bounce_block(bytes, || gate.slice()) {
                    Ok(block) => staged(parts, gate, &objects, block),
                    Err(fault) => vec![Err(fault); objects.len()],
                }
            }
            Staging::Block(block) => staged(parts, gate, &objects, block),
            Staging::Registered => registered(parts, &mut objects),
        };
        unwritten(parts, objects, results)
    }

    fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.len).sum()
    }

    fn bounces(&self) -> bool {
        matches!(self.staging, Staging::Bounce)
    }
}

/// The objects that were not stored. Those that were are dropped here, beside other calls that still move bytes. Memory that the engine may still read
/// stays alive until the engine is closed.
pub(crate) fn unwritten(parts: &Parts, objects: Vec<Object>, results: Vec<Result<(), Fault>>) -> Vec<Unwritten> {
    let unwritten = |(mut object, result): (Object, Result<(), Fault>)| {
        if is_late(&result) {
            quarantine(parts, &mut object);
        }
        Some(Unwritten {
            fault: result.err()?,
            object,
        })
    };
    objects.into_iter().zip(results).filter_map(unwritten).collect()
}

fn quarantine(parts: &Parts, object: &mut Object) {
    for segment in object.segments.drain(..) {
        match segment {
            Segment::Caller(foreign) | Segment::Leased(foreign) => {
                parts.memory.quarantine().keep(Landing::Caller(foreign));
            }
            Segment::Owned(bytes) => parts
                .memory
                .quarantine()
                .keep(Landing::Caller(CallerMemory::from_vec(bytes))),
            Segment::Buffer(buffer) => parts.memory.quarantine().keep_buffer(buffer),
        }
    }
}

/// `own`: regions registered for this call.
fn from_where_they_lie(parts: &Parts, objects: &[Object], own: &[Region]) -> Vec<Result<(), Fault>> {
    let mut all = Vec::with_capacity(objects.len());
    let mut spans: Vec<Range<usize>> = Vec::with_capacity(objects.len());
    for object in objects {
        let start = all.len();
        if parts.calls.registers() {
            all.extend(
                object
                    .sources()
                    .flat_map(|source| parts.memory.registrations().cut(source, own)),
            );
        } else {
            all.extend(object.sources());
        }
        spans.push(start..all.len());
    }
    let segments: Vec<&[Source<'_>]> = spans.into_iter().map(|span| &all[span]).collect();
    call(parts, objects, &segments)
}

/// One copy into registered memory, objects back to back, then the transfer.
fn staged(parts: &Parts, gate: &Gate<'_>, objects: &[Object], block: InFlight) -> Vec<Result<(), Fault>> {
    let mut copies = Vec::new();
    let mut spans: Vec<Range<usize>> = Vec::with_capacity(objects.len());
    let mut end = 0;
    for object in objects {
        let start = end;
        for source in object.sources() {
            copies.push((source, block.target(end..end + source.len())));
            end += source.len();
        }
        spans.push(start..end);
    }
    {
        let closed = gate.is_closed();
        // A caller that has given up may change its values.
        if *closed {
            let fault = Fault::new(FaultKind::Refused, 0, "its caller has given up");
            return vec![Err(fault); objects.len()];
        }
        parts.accounts.stages().copy.time(|| copy_all(&copies));
    }
    parts.accounts.counters().copied_bytes.add(end as u64);
    drop(copies);
    let segments: Vec<Vec<Source<'_>>> = spans
        .into_iter()
        .map(|span| parts.memory.registrations().cut(block.source(span), &[]))
        .collect();
    let segments: Vec<&[Source<'_>]> = segments.iter().map(Vec::as_slice).collect();
    let mut results = call(parts, objects, &segments);
    parts
        .memory
        .quarantine()
        .keep_if_late(Landing::Block(block), &mut results);
    results
}

/// Registers the objects' own memory for this call.
pub(crate) fn registered(parts: &Parts, objects: &mut [Object]) -> Vec<Result<(), Fault>> {
    for object in objects.iter_mut() {
        for segment in &mut object.segments {
            if let Segment::Owned(bytes) = segment {
                *segment = Segment::Caller(CallerMemory::from_vec(mem::take(bytes)));
            }
        }
    }
    let regions: Vec<_> = objects
        .iter()
        .flat_map(|object| &object.segments)
        .filter_map(|segment| match segment {
            Segment::Caller(foreign) => Some(foreign.region()),
            Segment::Buffer(buffer) => Some(buffer.region()),
            Segment::Leased(_) | Segment::Owned(_) => None,
        })
        // What lies in the arena is registered already.
        .filter(|region| 0 < region.len && !parts.memory.owns(*region))
        .collect();
    let regions = merged(regions);
    let registrations = parts.memory.registrations();
    if let Err(fault) = registrations.register_for_call(&regions) {
        return vec![Err(fault); objects.len()];
    }
    let mut results = from_where_they_lie(parts, objects, &regions);
    let kept: Vec<Region> = regions
        .iter()
        .copied()
        .filter(|region| is_read_on(*region, objects, &results))
        .collect();
    registrations.unregister_pieces(regions.iter().copied().filter(|region| !kept.contains(region)));
    keep_what_stays_registered(parts, objects, &mut results, &kept);
    results
}

/// Does a key whose write may still run have memory there?
fn is_read_on(region: Region, objects: &[Object], results: &[Result<(), Fault>]) -> bool {
    let late = objects.iter().zip(results).filter(|(_, result)| is_late(result));
    late.flat_map(|(object, _)| object.sources())
        .any(|source| region.contains(source.region()))
}

/// A registration that stays holds the memory of every object in it, whatever became of its own write: none of it may be freed, registered again or
/// be another try's source.
fn keep_what_stays_registered(
    parts: &Parts,
    objects: &mut [Object],
    results: &mut [Result<(), Fault>],
    kept: &[Region],
) {
    for (object, result) in objects.iter_mut().zip(results) {
        let stays = |region: Region| kept.iter().any(|kept| kept.contains(region));
        if kept.is_empty() || !object.sources().any(|source| stays(source.region())) {
            continue;
        }
        match result {
            Ok(()) => quarantine(parts, object),
            Err(fault) => fault.kind = FaultKind::MayStillWrite,
        }
    }
}

/// Regions that touch or overlap become one: no page can be registered twice.
fn merged(mut regions: Vec<Region>) -> Vec<Region> {
    regions.sort_unstable_by_key(|region| region.addr);
    let mut merged: Vec<Region> = Vec::with_capacity(regions.len());
    for region in regions {
        let both = |last: &Region| last.end().max(region.end()) - last.addr;
        match merged.last_mut() {
            Some(last) if region.addr <= last.end() => last.len = both(last),
            _ => merged.push(region),
        }
    }
    merged
}

/// `write_batch`, with its promises checked: one result per key, no panic.
fn call(parts: &Parts, objects: &[Object], segments: &[&[Source<'_>]]) -> Vec<Result<(), Fault>> {
    let writes: Vec<WriteOp<'_>> = objects
        .iter()
        .zip(segments)
        .map(|(object, segments)| WriteOp {
            key: &object.key,
            segments,
            tag: object.tag(),
        })
        .collect();
    parts.accounts.counters().engine_write_calls.add(1);
    let write = || parts.calls.engine().write_batch(&writes);
    parts.calls.answers(writes.len(), write)
}
