//! The data's way out: check, stage what lies outside the arena, transfer, verify.

mod execute;
mod plan;

use crate::{
    CallError, KeyFailure, ObjectKind, Patience, PutItem, Segment, TensorSpec, WriteError,
    blocking::call_engine,
    calls,
    error::{quoted, write_error},
    parts::Core,
    patience::Wait,
    read::{arguments, backoff, items::ZERO_MARKER},
    spec::{packed_empty_tag, packed_tag},
};
use execute::{Unwritten, WriteCall};
use std::{collections::HashSet, sync::Arc, time::Duration};
use tensorlease_engine::{FaultKind, Tag};

/// One object on its way.
#[derive(Debug)]
pub(crate) struct Object {
    /// With the namespace.
    pub(crate) key: String,
    pub(crate) segments: Vec<Segment>,
    kind: Kind,
    pub(crate) len: u64,
}

impl Object {
    pub(crate) fn tag(&self) -> &Tag {
        match &self.kind {
            Kind::Tensor(spec) => spec.tag(),
            Kind::Packed(tag) => tag,
        }
    }
}

/// A spec goes with its object, so that those of ragged rows are freed beside other calls that still move bytes.
#[derive(Debug)]
enum Kind {
    Tensor(Arc<TensorSpec>),
    Packed(Tag),
}

/// How the bytes of a put reach the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// Memory of the arena as it lies, all other through a staging block (requirement B7).
    #[default]
    Staged,
    /// The baseline of the benchmarks, the way of `TransferQueue`'s client today: batches of `batch_keys` keys, whose own memory is registered
    /// for the batch.
    RegisterPerCall,
}

/// One put, whole.
pub(crate) fn put(
    core: &Arc<Core>,
    items: Vec<PutItem>,
    route: Route,
    patience: Patience<'_>,
) -> Result<(), WriteError> {
    let _entered = core.enter()?;
    let wait = patience.bounded(core.options.call_timeout);
    core.check_means(items.len())?;
    // Only who names a time waits for room; everybody else learns at once that there is none.
    let for_room = core.capabilities.others_make_room && patience.deadline.is_some();
    let mut objects = checked(core, items)?;
    let (keys, bytes) = (objects.len() as u64, objects.iter().map(|object| object.len).sum());
    let mut failures = Vec::new();
    let (mut tries, mut divisor) = (0, 1_u64);
    // What lies idle in this client's own part of the engine's memory must not be what is in the way: it goes back before the second try.
    let mut has_idle = core.lends_slabs;
    while !objects.is_empty() {
        let (calls, later) = plan::cut(core, std::mem::take(&mut objects), route, divisor, &wait)?;
        let (mut passing, mut full, mut halve) = (Vec::new(), false, false);
        for Unwritten { object, fault } in calls::run::<WriteCall>(core, calls, usize::MAX, &wait)? {
            let failure = KeyFailure::new(&object.key[core.options.namespace.len()..], fault);
            match failure.kind {
                kind if passes(core, kind) || ((for_room || has_idle) && kind == FaultKind::Full) => {
                    halve |= matches!(kind, FaultKind::NoHandle | FaultKind::Expired);
                    full |= kind == FaultKind::Full;
                    passing.push(failure);
                    objects.push(object);
                }
                _ => failures.push(failure),
            }
        }
        if halve {
            divisor = divisor.saturating_mul(2);
        }
        if full && std::mem::take(&mut has_idle) {
            core.give_up_empty_lent_slabs();
            core.counters.retries.add(objects.len() as u64);
            objects.extend(later);
            continue;
        }
        let waits = for_room && full;
        if !objects.is_empty() && core.options.retries <= tries && !waits {
            failures.append(&mut passing);
            objects.clear();
        }
        if !objects.is_empty() {
            core.counters.retries.add(objects.len() as u64);
            match wait.sleep(pause(waits, full, tries)) {
                // What the time was for has not come: that there is no room says more than that the time is over.
                Err(CallError::Timeout { .. }) if waits => {
                    failures.append(&mut passing);
                    objects.clear();
                }
                slept => slept?,
            }
            tries = tries.saturating_add(1);
        }
        objects.extend(later);
    }
    core.counters.written_keys.add(keys - failures.len() as u64);
    if !failures.is_empty() {
        return Err(write_error(failures));
    }
    core.counters.written_bytes.add(bytes);
    Ok(())
}

/// Is it worth another try?
fn passes(core: &Core, kind: FaultKind) -> bool {
    match kind {
        FaultKind::NoHandle | FaultKind::Expired | FaultKind::Transient => true,
        FaultKind::Full => core.capabilities.evicts,
        _ => false,
    }
}

/// Before the next try; `waits`: others may make room.
fn pause(waits: bool, full: bool, tries: u32) -> Duration {
    match (waits, full) {
        (true, _) => room_pause(tries),
        (false, true) => eviction_pause(tries),
        (false, false) => backoff(tries),
    }
}

/// 50 ms, 100 ms, 200 ms, ... at most 1 s: an engine that evicts was seen to have room again after 50 ms.
fn eviction_pause(tries: u32) -> Duration {
    Duration::from_millis((50 << tries.min(5)).min(1000))
}

/// 1 ms, 2 ms, ... at most 20 ms: others may make room at any time.
fn room_pause(tries: u32) -> Duration {
    Duration::from_millis((1 << tries.min(5)).min(20))
}

/// Removes keys, given with the namespace: how many were there, and those where it failed.
pub(crate) fn remove(core: &Arc<Core>, keys: &[String], wait: &Wait<'_>) -> Result<(u64, Vec<KeyFailure>), CallError> {
    let results = call_engine(core, keys.to_vec(), wait, |engine, keys| engine.remove_batch(keys))?;
    let (mut removed, mut failures) = (0, Vec::new());
    for (key, result) in keys.iter().zip(results) {
        match result {
            Ok(there) => removed += u64::from(there),
            Err(fault) => failures.push(KeyFailure::new(&key[core.options.namespace.len()..], fault)),
        }
    }
    Ok((removed, failures))
}

/// The objects of a put; every item is checked before anything is written.
fn checked(core: &Core, items: Vec<PutItem>) -> Result<Vec<Object>, CallError> {
    let invalid = |message: String| Err(CallError::Invalid { message });
    let mut seen = HashSet::with_capacity(items.len());
    for item in &items {
        arguments::key(&item.key)?;
        let len = item.bytes();
        if !seen.insert(item.key.as_str()) {
            let key = quoted(&item.key);
            return invalid(format!("key {key} comes twice in one put; put each key once"));
        }
        if let ObjectKind::Tensor(spec) = &item.kind
            && spec.bytes() != len
        {
            return invalid(format!(
                "key {}: {} has {} bytes, its value {len}",
                quoted(&item.key),
                spec.words(),
                spec.bytes()
            ));
        }
    }
    let (packed, packed_empty) = (packed_tag(), packed_empty_tag());
    let object = |item: PutItem| {
        let len = item.bytes();
        let kind = match item.kind {
            ObjectKind::Tensor(spec) => Kind::Tensor(spec),
            ObjectKind::Packed if len == 0 => Kind::Packed(packed_empty.clone()),
            ObjectKind::Packed => Kind::Packed(packed.clone()),
        };
        let key = match core.options.namespace.as_str() {
            "" => item.key,
            namespace => format!("{namespace}{}", item.key),
        };
        // Requirement B14: a value of zero bytes never reaches the engine. A marker says that it is there.
        let (segments, len) = match len {
            0 => (vec![Segment::Owned(ZERO_MARKER.to_vec())], ZERO_MARKER.len() as u64),
            len => (item.segments, len),
        };
        Object {
            key,
            segments,
            kind,
            len,
        }
    };
    Ok(items.into_iter().map(object).collect())
}
