//! How each object leaves: as it lies, through a staging block, or from memory registered for the call.

use super::{
    Object, Route,
    execute::{Staging, WriteCall},
};
use crate::{CallError, FallbackKind, Segment, WriteError, calls, held::slabs::Refused, parts::Core, patience::Wait};
use std::sync::Arc;
use tensorlease_arena::{
    GRANULE_BYTES, SlabKind,
    plan::{GroupLimits, cut_groups},
};
use tensorlease_engine::Registration;
use tensorlease_memory::InFlight;

/// Calls per reader: enough that readers which finish early find more.
const CALLS_PER_READER: usize = 4;
/// Small values are cut finer where an engine asks elsewhere about all keys of a call before a byte moves: the first calls of all readers wait for that
/// together.
const CALLS_OF_KEYS_PER_READER: usize = 16;

/// The engine calls for `objects`, at least one, and the objects that must wait until those calls have ended.
pub(super) fn cut(
    core: &Arc<Core>,
    objects: Vec<Object>,
    route: Route,
    divisor: u64,
    wait: &Wait<'_>,
) -> Result<(Vec<WriteCall>, Vec<Object>), WriteError> {
    let registers = core.capabilities.registration == Registration::Required;
    if registers && route == Route::RegisterPerCall {
        return Ok((registered_per_call(core, objects, divisor), Vec::new()));
    }
    let (as_they_lie, staged): (Vec<Object>, Vec<Object>) = objects
        .into_iter()
        .partition(|object| !registers || lies_in_arena(core, object));
    let round = core.bounce_round_bytes();
    let (large, small): (Vec<Object>, Vec<Object>) = staged.into_iter().partition(|object| round < object.len);
    core.counters.staged_writes.add(small.len() as u64);
    if registers {
        core.counters.in_place_writes.add(as_they_lie.len() as u64);
    }
    let total: u64 = as_they_lie.iter().map(|object| object.len).sum();
    let per_call = total / (core.readers.count() * CALLS_PER_READER) as u64;
    let bytes_max = per_call.max(bytes_min(core, as_they_lie.len(), total));
    let calls_per_reader = if registers {
        CALLS_OF_KEYS_PER_READER
    } else {
        CALLS_PER_READER
    };
    let keys_max = |objects: &[Object]| {
        let part = objects.len() / (core.readers.count() * calls_per_reader);
        part.max(keys_of_call_bytes(core, objects)).max(1)
    };
    let keys = keys_max(&as_they_lie);
    let mut calls = grouped(core, as_they_lie, keys, bytes_max, divisor, || Staging::None);
    let keys = keys_max(&small);
    calls.extend(grouped(core, small, keys, round, divisor, || Staging::Bounce));
    let mut later = Vec::new();
    for object in large {
        match own_block(core, &object, wait)? {
            Ok(block) => calls.push(staged_alone(core, object, block)),
            // The blocks of this very put may be what is in the way: those objects go when the others have gone.
            Err(_) if !calls.is_empty() => later.push(object),
            Err(refused) => calls.push(registered_alone(core, object, &refused)?),
        }
    }
    Ok((calls, later))
}

fn bytes_min(core: &Core, objects: usize, bytes: u64) -> u64 {
    calls::bytes_min(core.capabilities.large_write_bytes_min, objects, bytes)
}

/// How many of these objects, by their mean size, make a call that is worth its round trip.
fn keys_of_call_bytes(core: &Core, objects: &[Object]) -> usize {
    let total: u64 = objects.iter().map(|object| object.len).sum();
    let bytes = bytes_min(core, objects.len(), total);
    let keys = (bytes * objects.len() as u64).checked_div(total).unwrap_or(1);
    usize::try_from(keys).unwrap_or(usize::MAX)
}

fn registered_per_call(core: &Core, objects: Vec<Object>, divisor: u64) -> Vec<WriteCall> {
    let mut calls = Vec::new();
    let mut objects = objects.into_iter().peekable();
    while objects.peek().is_some() {
        let batch = objects.by_ref().take(core.options.batch_keys as usize).collect();
        let bytes_max = core.capabilities.registration_bytes_max;
        calls.extend(grouped(core, batch, usize::MAX, bytes_max, divisor, || {
            Staging::Gathered
        }));
    }
    calls
}

/// Does every segment lie in live blocks of the arena? Then it is registered already.
fn lies_in_arena(core: &Core, object: &Object) -> bool {
    let in_arena = |segment: &Segment| match segment {
        Segment::Foreign(foreign) => foreign.is_empty() || core.arena.contains(foreign.region()),
        Segment::Leased(_) => true,
        Segment::Owned(bytes) => bytes.is_empty(),
        Segment::Buffer(buffer) => buffer.is_empty() || core.arena.contains(buffer.region()),
    };
    object.segments.iter().all(in_arena)
}

fn grouped(
    core: &Core,
    objects: Vec<Object>,
    keys_max: usize,
    bytes_max: u64,
    divisor: u64,
    staging: impl Fn() -> Staging,
) -> Vec<WriteCall> {
    let lens: Vec<u64> = objects.iter().map(|object| object.len).collect();
    let keys_max = keys_max.min(core.capabilities.batch_keys_max);
    let limits = GroupLimits {
        keys_max: (keys_max / usize::try_from(divisor).unwrap_or(usize::MAX)).max(1),
        bytes_max: (bytes_max.min(core.capabilities.batch_bytes_max) / divisor).max(1),
    };
    let mut objects = objects.into_iter();
    let ranges = cut_groups(&lens, limits);
    let mut call = |len| WriteCall {
        objects: objects.by_ref().take(len).collect(),
        staging: staging(),
    };
    ranges.iter().map(std::ops::Range::len).map(&mut call).collect()
}

/// Staging for an object that is larger than one round of the bounce reserve.
fn own_block(core: &Arc<Core>, object: &Object, wait: &Wait<'_>) -> Result<Result<InFlight, Refused>, CallError> {
    let mut acquired = core.acquire(SlabKind::Lease, &[(object.len, GRANULE_BYTES)], || wait.slice())?;
    Ok(match acquired.refused {
        None => Ok(acquired.blocks.pop().expect("not refused, so there is a block")),
        Some(refused) => Err(refused.told(core)),
    })
}

fn staged_alone(core: &Core, object: Object, block: InFlight) -> WriteCall {
    core.counters.staged_writes.add(1);
    WriteCall {
        objects: vec![object],
        staging: Staging::Block(block),
    }
}

/// No block for it: its own memory is registered for its call.
fn registered_alone(core: &Core, object: Object, refused: &Refused) -> Result<WriteCall, WriteError> {
    let kind = refused.kind;
    if core.options.strict {
        let key = &object.key[core.options.namespace.len()..];
        let (message, failures) = kind.refusal(&[key], &format!(" ({refused})"));
        return Err(WriteError::Fallback {
            kind,
            message,
            failures,
        });
    }
    core.counters.fallback_writes.add(1);
    core.warnings.once(FallbackKind::TooLarge, || {
        format!(
            "a value of {} bytes is registered for its own write: {} ({refused})",
            object.len,
            refused.kind.words()
        )
    });
    Ok(WriteCall {
        objects: vec![object],
        staging: Staging::Registered,
    })
}
