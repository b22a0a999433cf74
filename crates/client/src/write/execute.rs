//! One write call on the engine.

use super::Object;
use crate::{
    Segment,
    calls::{EngineCall, Gate},
    parts::Core,
    read::refused_registration,
};
use std::{ops::Range, sync::Arc};
use tensorlease_engine::{Fault, FaultKind, WriteOp};
use tensorlease_memory::{Foreign, InFlight, Landing, Mapping, MappingKind, Region, Source, copy_all};

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
    /// What is not one piece of memory is put together in fresh memory first, which is registered with the rest: the released client's way.
    Gathered,
}

/// The objects of one engine call.
#[derive(Debug)]
pub(super) struct WriteCall {
    pub(super) objects: Vec<Object>,
    pub(super) staging: Staging,
}

/// An object that was not stored.
#[derive(Debug)]
pub(super) struct Unwritten {
    pub(super) object: Object,
    pub(super) fault: Fault,
}

impl EngineCall for WriteCall {
    type Done = Unwritten;

    fn execute(self, core: &Arc<Core>, gate: &Gate<'_>) -> Vec<Unwritten> {
        let Self { mut objects, staging } = self;
        let mut results = match staging {
            Staging::None => from_where_they_lie(core, &objects, &[]),
            Staging::Bounce => match core.bounce_block(objects.iter().map(|object| object.len).sum(), gate) {
                Ok(block) => staged(core, gate, &objects, block),
                Err(fault) => vec![Err(fault); objects.len()],
            },
            Staging::Block(block) => staged(core, gate, &objects, block),
            Staging::Registered => registered(core, &mut objects),
            Staging::Gathered => gathered(core, &mut objects),
        };
        for (object, result) in objects.iter_mut().zip(&mut results) {
            keep_if_still_read(core, object, result);
        }
        // Those that are stored go here, beside other calls that still move bytes.
        let unwritten = |(object, result): (Object, Result<(), Fault>)| {
            Some(Unwritten {
                fault: result.err()?,
                object,
            })
        };
        objects.into_iter().zip(results).filter_map(unwritten).collect()
    }

    fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.len).sum()
    }

    fn bounces(&self, _core: &Core) -> bool {
        matches!(self.staging, Staging::Bounce)
    }
}

/// The engine may still read the memory: it stays alive until the engine is closed, and the key has failed.
fn keep_if_still_read(core: &Core, object: &mut Object, result: &Result<(), Fault>) {
    if is_late(result) {
        quarantine(core, object);
    }
}

fn quarantine(core: &Core, object: &mut Object) {
    for segment in object.segments.drain(..) {
        match segment {
            Segment::Foreign(foreign) | Segment::Leased(foreign) => core.quarantine(Landing::Foreign(foreign)),
            Segment::Owned(bytes) => core.quarantine(Landing::Foreign(Foreign::from_vec(bytes))),
            Segment::Buffer(buffer) => core.quarantine_buffer(buffer),
        }
    }
}

fn sources(object: &Object) -> impl Iterator<Item = Source<'_>> {
    object
        .segments
        .iter()
        .filter(|segment| !segment.is_empty())
        .map(|segment| match segment {
            Segment::Foreign(foreign) | Segment::Leased(foreign) => foreign.source(0..foreign.len()),
            Segment::Owned(bytes) => Source::from(bytes.as_slice()),
            Segment::Buffer(buffer) => Source::from(buffer.as_slice()),
        })
}

/// `own`: regions registered for this call.
fn from_where_they_lie(core: &Core, objects: &[Object], own: &[Region]) -> Vec<Result<(), Fault>> {
    let mut all = Vec::with_capacity(objects.len());
    let mut spans: Vec<Range<usize>> = Vec::with_capacity(objects.len());
    for object in objects {
        let start = all.len();
        if core.registers() {
            all.extend(sources(object).flat_map(|source| core.within_registrations(source, own)));
        } else {
            all.extend(sources(object));
        }
        spans.push(start..all.len());
    }
    let segments: Vec<&[Source<'_>]> = spans.into_iter().map(|span| &all[span]).collect();
    call(core, objects, &segments)
}

/// One copy into registered memory, objects back to back, then the transfer.
fn staged(core: &Core, gate: &Gate<'_>, objects: &[Object], block: InFlight) -> Vec<Result<(), Fault>> {
    let mut copies = Vec::new();
    let mut spans: Vec<Range<usize>> = Vec::with_capacity(objects.len());
    let mut end = 0;
    for object in objects {
        let start = end;
        for source in sources(object) {
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
        core.stages.copy.time(|| copy_all(&copies));
    }
    core.counters.copied_bytes.add(end as u64);
    drop(copies);
    let segments: Vec<Vec<Source<'_>>> = spans
        .into_iter()
        .map(|span| core.within_registrations(block.source(span), &[]))
        .collect();
    let segments: Vec<&[Source<'_>]> = segments.iter().map(Vec::as_slice).collect();
    let mut results = call(core, objects, &segments);
    let mut late = false;
    for result in &mut results {
        if let Err(fault) = result
            && fault.kind == FaultKind::MayStillWrite
        {
            // Only the staging block may still be read: the value itself may be tried again from another one.
            fault.kind = FaultKind::Transient;
            late = true;
        }
    }
    if late {
        core.quarantine(Landing::Block(block));
    }
    results
}

/// Objects of several pieces, or of encoded bytes, are put together back to back in fresh memory; then as `registered`.
fn gathered(core: &Core, objects: &mut [Object]) -> Vec<Result<(), Fault>> {
    let in_pieces = |object: &&mut Object| {
        !matches!(
            object.segments.as_slice(),
            [Segment::Foreign(_) | Segment::Leased(_) | Segment::Buffer(_)]
        )
    };
    let mut scattered: Vec<&mut Object> = objects.iter_mut().filter(in_pieces).collect();
    let lens: Vec<usize> = scattered
        .iter()
        .map(|object| sources(object).map(|source| source.len()).sum())
        .collect();
    if !scattered.is_empty() {
        let fresh = match Mapping::new(MappingKind::Anonymous, lens.iter().sum()) {
            Ok(fresh) => fresh,
            Err(error) => {
                let fault = Fault::new(
                    FaultKind::NoHandle,
                    0,
                    format!("no memory to gather the values in: {error}"),
                );
                return vec![Err(fault); objects.len()];
            }
        };
        core.counters.copied_bytes.add(lens.iter().sum::<usize>() as u64);
        core.stages.copy.time(|| {
            for (object, piece) in scattered.iter_mut().zip(Foreign::pieces(fresh, &lens)) {
                put_together(object, piece);
            }
        });
    }
    registered(core, objects)
}

fn put_together(object: &mut Object, piece: Foreign) {
    let mut copies = Vec::with_capacity(object.segments.len());
    let mut end = 0;
    for source in sources(object) {
        copies.push((source, piece.target(end..end + source.len())));
        end += source.len();
    }
    copy_all(&copies);
    drop(copies);
    object.segments = vec![Segment::Foreign(piece)];
}

fn registered(core: &Core, objects: &mut [Object]) -> Vec<Result<(), Fault>> {
    for object in objects.iter_mut() {
        for segment in &mut object.segments {
            if let Segment::Owned(bytes) = segment {
                *segment = Segment::Foreign(Foreign::from_vec(std::mem::take(bytes)));
            }
        }
    }
    let regions: Vec<_> = objects
        .iter()
        .flat_map(|object| &object.segments)
        .filter_map(|segment| match segment {
            Segment::Foreign(foreign) => Some(foreign.region()),
            Segment::Buffer(buffer) => Some(buffer.region()),
            Segment::Leased(_) | Segment::Owned(_) => None,
        })
        // What lies in the arena is registered already.
        .filter(|region| 0 < region.len && !core.arena.contains(*region))
        .collect();
    let regions = merged(regions);
    let pieces: Vec<Region> = regions
        .iter()
        .flat_map(|region| core.registration_pieces(*region))
        .collect();
    for (at, piece) in pieces.iter().enumerate() {
        core.counters.register_calls_per_read.add(1);
        if let Err(error) = core.register(*piece) {
            pieces[..at].iter().for_each(|piece| core.unregister(*piece));
            let fault = refused_registration(&error);
            return vec![Err(fault); objects.len()];
        }
    }
    let mut results = from_where_they_lie(core, objects, &regions);
    let kept: Vec<Region> = regions
        .iter()
        .copied()
        .filter(|region| is_read_on(*region, objects, &results))
        .collect();
    regions
        .iter()
        .filter(|region| !kept.contains(region))
        .flat_map(|region| core.registration_pieces(*region))
        .for_each(|piece| core.unregister(piece));
    keep_what_stays_registered(core, objects, &mut results, &kept);
    results
}

/// Does a key whose write may still run have memory there?
fn is_read_on(region: Region, objects: &[Object], results: &[Result<(), Fault>]) -> bool {
    let late = objects.iter().zip(results).filter(|(_, result)| is_late(result));
    late.flat_map(|(object, _)| sources(object))
        .any(|source| region.contains(source.region()))
}

fn is_late(result: &Result<(), Fault>) -> bool {
    matches!(result, Err(fault) if fault.kind == FaultKind::MayStillWrite)
}

/// A registration that stays holds the memory of every object in it, whatever became of its own write: none of it may be freed, registered again or
/// be another try's source.
fn keep_what_stays_registered(core: &Core, objects: &mut [Object], results: &mut [Result<(), Fault>], kept: &[Region]) {
    for (object, result) in objects.iter_mut().zip(results) {
        let stays = |region: Region| kept.iter().any(|kept| kept.contains(region));
        if kept.is_empty() || !sources(object).any(|source| stays(source.region())) {
            continue;
        }
        match result {
            Ok(()) => quarantine(core, object),
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
fn call(core: &Core, objects: &[Object], segments: &[&[Source<'_>]]) -> Vec<Result<(), Fault>> {
    let writes: Vec<WriteOp<'_>> = objects
        .iter()
        .zip(segments)
        .map(|(object, segments)| WriteOp {
            key: &object.key,
            segments,
            tag: object.tag(),
        })
        .collect();
    core.counters.engine_write_calls.add(1);
    core.answers(writes.len(), || core.engine.write_batch(&writes))
}
