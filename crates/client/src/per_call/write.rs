//! The baseline's put: batches of keys, whose own memory is registered for the batch.

use crate::{
    Patience, PutItem, Segment, WriteError,
    calls::{EngineCall, Gate},
    parts::Parts,
    write::{
        execute::{self, Unwritten},
        object::Object,
        plan, put_planned,
    },
};
use std::sync::Arc;
use tensorlease_arena::plan::GroupLimits;
use tensorlease_engine::{Fault, FaultKind};
use tensorlease_memory::{CallerMemory, Mapping, MappingKind, copy_all};

/// One put, whole.
pub(crate) fn put(parts: &Arc<Parts>, items: Vec<PutItem>, patience: Patience<'_>) -> Result<(), WriteError> {
    put_planned(parts, items, patience, |parts, objects, divisor, _| {
        Ok((calls(parts, objects, divisor), Vec::new()))
    })
}

fn calls(parts: &Parts, objects: Vec<Object>, divisor: u64) -> Vec<RegisteredWrite> {
    let limits = GroupLimits {
        keys_max: usize::MAX,
        bytes_max: parts.calls.claims().registration_bytes_max,
    };
    let mut calls = Vec::new();
    let mut objects = objects.into_iter().peekable();
    while objects.peek().is_some() {
        let batch = objects.by_ref().take(parts.options.batch_keys as usize).collect();
        let groups = plan::groups(parts.calls.limits(), batch, limits, divisor);
        calls.extend(groups.into_iter().map(RegisteredWrite));
    }
    calls
}

/// The objects of one engine call. What is not one piece of memory is put together in fresh memory first, which is registered with the rest.
struct RegisteredWrite(Vec<Object>);

impl EngineCall for RegisteredWrite {
    type Context = Parts;
    type Done = Unwritten;

    fn execute(self, parts: &Arc<Parts>, _gate: &Gate<'_>) -> Vec<Unwritten> {
        let Self(mut objects) = self;
        let results = match gather(parts, &mut objects) {
            Ok(()) => execute::registered(parts, &mut objects),
            Err(fault) => vec![Err(fault); objects.len()],
        };
        execute::unwritten(parts, objects, results)
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|object| object.len).sum()
    }
}

/// Puts objects of several pieces, or of encoded bytes, together back to back in fresh memory.
fn gather(parts: &Parts, objects: &mut [Object]) -> Result<(), Fault> {
    let in_pieces = |object: &&mut Object| {
        !matches!(
            object.segments.as_slice(),
            [Segment::Caller(_) | Segment::Leased(_) | Segment::Buffer(_)]
        )
    };
    let mut scattered: Vec<&mut Object> = objects.iter_mut().filter(in_pieces).collect();
    let lens: Vec<usize> = scattered
        .iter()
        .map(|object| object.sources().map(|source| source.len()).sum())
        .collect();
    if scattered.is_empty() {
        return Ok(());
    }
    let bytes = lens.iter().sum::<usize>();
    let fresh = Mapping::new(MappingKind::Anonymous, bytes).map_err(|error| {
        let words = format!("no memory to gather the values in: {error}");
        Fault::new(FaultKind::NoHandle, 0, words)
    })?;
    parts.accounts.counters().copied_bytes.add(bytes as u64);
    parts.accounts.stages().copy.time(|| {
        for (object, piece) in scattered.iter_mut().zip(CallerMemory::pieces(fresh, &lens)) {
            put_together(object, piece);
        }
    });
    Ok(())
}

fn put_together(object: &mut Object, piece: CallerMemory) {
    let mut copies = Vec::with_capacity(object.segments.len());
    let mut end = 0;
    for source in object.sources() {
        copies.push((source, piece.target(end..end + source.len())));
        end += source.len();
    }
    copy_all(&copies);
    drop(copies);
    object.segments = vec![Segment::Caller(piece)];
}
