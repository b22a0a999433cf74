//! How each object leaves: as it lies, through a staging block, or on its own. A plan is made of plain numbers: it calls no engine and takes no memory.

use super::{
    execute::{Staging, WriteCall},
    object::Object,
};
use crate::{calls, terms::Terms};
use tensorlease_arena::plan::{GroupLimits, cut_groups};
use tensorlease_memory::Region;

#[cfg(test)]
mod tests;

/// Calls per worker: enough that workers which finish early find more.
const CALLS_PER_WORKER: usize = 4;
/// Small values are cut finer where an engine asks elsewhere about all keys of a call before a byte moves: the first calls of all workers wait for that
/// together.
const CALLS_OF_KEYS_PER_WORKER: usize = 16;

/// What is to be written, and how.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) calls: Vec<WriteCall>,
    /// Objects larger than a round: each needs a block of its own.
    pub(super) large: Vec<Object>,
    /// Objects that leave registered memory as they lie.
    pub(super) in_place: u64,
    /// Objects that go through the bounce reserve.
    pub(super) staged: u64,
}

/// Cuts a put into engine calls.
pub(super) fn cut(terms: &Terms, objects: Vec<Object>, divisor: u64, in_arena: impl Fn(Region) -> bool) -> Plan {
    let (as_they_lie, staged): (Vec<Object>, Vec<Object>) = objects
        .into_iter()
        .partition(|object| !terms.registers || object.lies_in(&in_arena));
    let round = terms.round_bytes;
    let (large, small): (Vec<Object>, Vec<Object>) = staged.into_iter().partition(|object| round < object.len);
    let in_place = if terms.registers { as_they_lie.len() as u64 } else { 0 };
    let staged = small.len() as u64;
    let total: u64 = as_they_lie.iter().map(|object| object.len).sum();
    let per_call = total / (terms.workers * CALLS_PER_WORKER) as u64;
    let bytes_max = per_call.max(bytes_min(terms, as_they_lie.len(), total));
    let limits = |objects: &[Object], bytes_max| GroupLimits {
        keys_max: keys_max(terms, objects),
        bytes_max,
    };
    let of_those = limits(&as_they_lie, bytes_max);
    let of_small = limits(&small, round);
    let as_they_lie = groups(terms.call, as_they_lie, of_those, divisor).into_iter();
    let small = groups(terms.call, small, of_small, divisor).into_iter();
    let as_they_lie = as_they_lie.map(|objects| WriteCall::new(objects, Staging::None));
    let calls = as_they_lie
        .chain(small.map(|objects| WriteCall::new(objects, Staging::Bounce)))
        .collect();
    Plan {
        calls,
        large,
        in_place,
        staged,
    }
}

fn bytes_min(terms: &Terms, objects: usize, bytes: u64) -> u64 {
    calls::bytes_min(terms.large_write_bytes_min, objects, bytes)
}

/// Most keys of a call: a part of them for each worker, and no fewer than are worth its round trip by their mean size.
fn keys_max(terms: &Terms, objects: &[Object]) -> usize {
    let calls_per_worker = if terms.registers {
        CALLS_OF_KEYS_PER_WORKER
    } else {
        CALLS_PER_WORKER
    };
    let part = objects.len() / (terms.workers * calls_per_worker);
    let total: u64 = objects.iter().map(|object| object.len).sum();
    let bytes = bytes_min(terms, objects.len(), total);
    let worth = (bytes * objects.len() as u64).checked_div(total).unwrap_or(1);
    part.max(usize::try_from(worth).unwrap_or(usize::MAX)).max(1)
}

/// The objects of each call.
pub(crate) fn groups(call: GroupLimits, objects: Vec<Object>, limits: GroupLimits, divisor: u64) -> Vec<Vec<Object>> {
    let lens: Vec<u64> = objects.iter().map(|object| object.len).collect();
    let keys_max = limits.keys_max.min(call.keys_max);
    let limits = GroupLimits {
        keys_max: (keys_max / usize::try_from(divisor).unwrap_or(usize::MAX)).max(1),
        bytes_max: (limits.bytes_max.min(call.bytes_max) / divisor).max(1),
    };
    let mut objects = objects.into_iter();
    let ranges = cut_groups(&lens, limits);
    ranges
        .iter()
        .map(|range| objects.by_ref().take(range.len()).collect())
        .collect()
}
