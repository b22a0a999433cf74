//! The data's way out: check, stage what lies outside the arena, transfer, verify.

pub(crate) mod execute;
pub(crate) mod object;
pub(crate) mod plan;
mod progress;

use crate::{
    CallError, FallbackKind, Patience, PutItem, WriteError, calls::EngineCall, error::write_error, held::Refused,
    parts::Parts, patience::Wait, retrying::pause_of_a_write,
};
use execute::{Staging, Unwritten, WriteCall};
use object::Object;
use plan::Plan;
use progress::{Next, Progress};
use std::sync::Arc;
use tensorlease_arena::{GRANULE_BYTES, SlabKind};

/// Engine calls, at least one, and the objects that must wait until those calls have ended.
pub(crate) type Planned<C> = (Vec<C>, Vec<Object>);

/// One put, whole.
pub(crate) fn put(parts: &Arc<Parts>, items: Vec<PutItem>, patience: Patience<'_>) -> Result<(), WriteError> {
    put_planned(parts, items, patience, planned)
}

/// One put, whose calls are planned by `planned`, from the objects and how often calls were halved.
pub(crate) fn put_planned<C: EngineCall<Context = Parts, Done = Unwritten>>(
    parts: &Arc<Parts>,
    items: Vec<PutItem>,
    patience: Patience<'_>,
    planned: impl Fn(&Parts, Vec<Object>, u64, &Wait<'_>) -> Result<Planned<C>, WriteError>,
) -> Result<(), WriteError> {
    let _entered = parts.enter()?;
    let wait = patience.bounded(parts.options.call_timeout);
    parts.memory.check_means(items.len())?;
    let (namespace, claims) = (&parts.options.namespace, parts.calls.claims());
    let mut objects = object::checked(namespace, items)?;
    let (keys, bytes) = (objects.len() as u64, objects.iter().map(|object| object.len).sum());
    // Only who names a time waits for room; everybody else learns at once that there is none.
    let for_room = claims.others_make_room && patience.deadline.is_some();
    let mut progress = Progress::new(
        claims.evicts,
        parts.options.retries,
        for_room,
        parts.memory.lends_slabs(),
    );
    while !objects.is_empty() {
        let (calls, later) = planned(parts, objects, progress.divisor(), &wait)?;
        let unwritten = parts.run(calls, usize::MAX, &wait)?;
        let (next, again) = progress.settle(namespace.len(), unwritten);
        objects = again;
        match next {
            Next::Go => {}
            Next::GiveBackIdle => {
                parts.memory.give_up_empty_lent_slabs();
                parts.accounts.counters().retries.add(objects.len() as u64);
            }
            Next::Pause { waits, full, tries } => {
                parts.accounts.counters().retries.add(objects.len() as u64);
                match wait.sleep(pause_of_a_write(waits, full, tries)) {
                    // What the time was for has not come: that there is no room says more than that the time is over.
                    Err(CallError::Timeout { .. }) if waits => {
                        progress.give_up();
                        objects.clear();
                    }
                    slept => slept?,
                }
            }
        }
        objects.extend(later);
    }
    let failures = progress.failures();
    parts.accounts.counters().written_keys.add(keys - failures.len() as u64);
    if !failures.is_empty() {
        return Err(write_error(failures));
    }
    parts.accounts.counters().written_bytes.add(bytes);
    Ok(())
}

/// The calls of a put through the arena.
fn planned(
    parts: &Parts,
    objects: Vec<Object>,
    divisor: u64,
    wait: &Wait<'_>,
) -> Result<Planned<WriteCall>, WriteError> {
    let Plan {
        mut calls,
        large,
        in_place,
        staged,
    } = plan::cut(&parts.terms(), objects, divisor, |region| parts.memory.owns(region));
    let counters = parts.accounts.counters();
    counters.in_place_writes.add(in_place);
    counters.staged_writes.add(staged);
    let mut later = Vec::new();
    for object in large {
        let wanted = (object.len, GRANULE_BYTES);
        match parts.memory.acquire_one(SlabKind::Lease, wanted, || wait.slice())? {
            Ok(block) => {
                counters.staged_writes.add(1);
                calls.push(WriteCall::new(vec![object], Staging::Block(block)));
            }
            // The blocks of this very put may be what is in the way: those objects go when the others have gone.
            Err(_) if !calls.is_empty() => later.push(object),
            Err(refused) => calls.push(registered_alone(parts, object, &refused)?),
        }
    }
    Ok((calls, later))
}

/// No block for it: its own memory is registered for its call.
fn registered_alone(parts: &Parts, object: Object, refused: &Refused) -> Result<WriteCall, WriteError> {
    let kind = refused.kind;
    if parts.options.strict {
        let key = &object.key[parts.options.namespace.len()..];
        let (message, failures) = kind.refusal(&[key], &format!(" ({refused})"));
        return Err(WriteError::Fallback {
            kind,
            message,
            failures,
        });
    }
    parts.accounts.counters().fallback_writes.add(1);
    parts.accounts.warn_once(FallbackKind::TooLarge, || {
        format!(
            "a value of {} bytes is registered for its own write: {} ({refused})",
            object.len,
            kind.words()
        )
    });
    Ok(WriteCall::new(vec![object], Staging::Registered))
}
