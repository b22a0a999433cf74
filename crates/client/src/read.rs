//! The data's way in: check, plan, lease, transfer, verify, deliver.

mod arguments;
mod deliver;
mod describe;
pub(crate) mod execute;
pub(crate) mod groups;
pub(crate) mod items;
pub(crate) mod job;
pub(crate) mod land;
pub(crate) mod landing;
pub(crate) mod terms;
mod units;
mod view;

pub(crate) use describe::describe;
pub use view::ValueView;
pub(crate) use view::views;

use crate::{
    CallError, KeyFailure, Patience, ReadError, ReadOutput, ReadRequest,
    calls::EngineCall,
    error::read_error,
    parts::Parts,
    patience::Wait,
    retrying::{backoff, replaced_pause},
};
use groups::Group;
use items::Items;
use job::{Finished, Job, Next, Wish};
use std::{sync::Arc, time::Instant};
use tensorlease_engine::FaultKind;
use tensorlease_memory::View;
use terms::Terms;

/// An object that is described alike so often in a row, and never read as that, is not being replaced: the engine reads it short.
const ALIKE_MAX: u32 = 32;
/// A read in ranges that met a replace starts over this often.
const RANGES_TRIES_MAX: u32 = 32;

/// One way of reading: it finds memory for the units of a job, and makes its transfers.
pub(crate) trait Course: Sized {
    /// A call on the engine.
    type Call: EngineCall<Context = Parts>;

    fn new(parts: &Parts, job: &Job) -> Self;

    /// Most bytes of one staged transfer.
    fn staged_bytes_max(parts: &Parts) -> u64;

    /// Finds memory for every unit that has none and makes its transfers.
    fn land(&mut self, parts: &Parts, job: &mut Job, wait: &Wait<'_>) -> Result<(), ReadError>;

    /// The engine calls to make now; none when nothing is left to fetch.
    fn calls(&mut self, job: &mut Job) -> Vec<Self::Call>;

    /// Takes what the calls brought, and says what is to happen now.
    fn settle(
        &mut self,
        parts: &Parts,
        job: &mut Job,
        done: Vec<<Self::Call as EngineCall>::Done>,
    ) -> Result<Next, ReadError>;
}

/// The way of this project: values are leased from the arena, or copied through its bounce reserve.
pub(crate) struct Pooled;

impl Course for Pooled {
    type Call = Group;

    fn new(_parts: &Parts, _job: &Job) -> Self {
        Self
    }

    fn staged_bytes_max(parts: &Parts) -> u64 {
        parts.memory.bounce_round_bytes()
    }

    fn land(&mut self, parts: &Parts, job: &mut Job, wait: &Wait<'_>) -> Result<(), ReadError> {
        land::land(parts, job, wait)
    }

    fn calls(&mut self, job: &mut Job) -> Vec<Group> {
        job.groups()
    }

    fn settle(&mut self, _parts: &Parts, job: &mut Job, done: Vec<Finished>) -> Result<Next, ReadError> {
        Ok(job.settle(done))
    }
}

/// One read, whole.
pub(crate) fn get<C: Course>(
    parts: &Arc<Parts>,
    request: ReadRequest,
    patience: Patience<'_>,
) -> Result<ReadOutput, ReadError> {
    let _entered = parts.enter()?;
    let wait = patience.bounded(parts.options.call_timeout);
    arguments::check(&request)?;
    parts.memory.check_means(request.items.len())?;
    if !describe::needed(&request) {
        return as_asked::<C>(parts, request, &wait);
    }
    describe::refuse_destinations(&request)?;
    if parts.calls.engine().views().is_some() {
        return held::<C>(parts, request, &wait);
    }
    as_described::<C>(parts, &request, &wait)
}

/// What it is and its bytes come of the same objects, which the engine holds until they are copied.
fn held<C: Course>(parts: &Arc<Parts>, request: ReadRequest, wait: &Wait<'_>) -> Result<ReadOutput, ReadError> {
    let (request, objects) = view::held(parts, request, wait)?;
    match attempt::<C>(parts, request, Some(objects), wait)? {
        Attempt::Read(output) => Ok(output),
        Attempt::Replaced(failures) => Err(read_error(failures)),
    }
}

/// Asks the engine what it holds, then for just that. What was replaced in between is asked again, for as long as the call may take.
fn as_described<C: Course>(
    parts: &Arc<Parts>,
    request: &ReadRequest,
    wait: &Wait<'_>,
) -> Result<ReadOutput, ReadError> {
    let (mut tries, mut alike, mut last) = (0, 0, Vec::new());
    loop {
        let described = describe::request(parts, request, wait)?;
        alike = if described.items == last { alike + 1 } else { 0 };
        last.clone_from(&described.items);
        let replaced = match attempt::<C>(parts, described, None, wait) {
            Ok(Attempt::Read(output)) => return Ok(output),
            Ok(Attempt::Replaced(failures)) => read_error(failures),
            Err(ReadError::SizeMismatch { failures, message })
                if failures.iter().all(|failure| failure.kind == FaultKind::Mismatch) =>
            {
                ReadError::SizeMismatch { failures, message }
            }
            Err(error) => return Err(error),
        };
        if ALIKE_MAX <= alike {
            return Err(replaced);
        }
        if parts.life.is_closed() {
            return Err(CallError::Closed.into());
        }
        match wait.sleep(replaced_pause(tries)) {
            // That it never stood still says more than that the time is over.
            Err(CallError::Timeout { .. }) => return Err(replaced),
            slept => slept?,
        }
        tries += 1;
    }
}

/// Shapes and dtypes are the caller's. A read in ranges that met a replace starts over, where its destinations are not the caller's.
fn as_asked<C: Course>(parts: &Arc<Parts>, request: ReadRequest, wait: &Wait<'_>) -> Result<ReadOutput, ReadError> {
    let mut request = request;
    let mut tries = 0;
    loop {
        tries += 1;
        let repeatable = tries < RANGES_TRIES_MAX && request.into.is_empty() && may_cut::<C>(parts, &request);
        let again = repeatable.then(|| request.again());
        match (attempt::<C>(parts, request, None, wait)?, again) {
            (Attempt::Read(output), _) => return Ok(output),
            (Attempt::Replaced(_), Some(again)) => request = again,
            (Attempt::Replaced(failures), None) => return Err(read_error(failures)),
        }
    }
}

/// May a value of this read be fetched in ranges, from an engine that describes it, and so promises that a replace is atomic?
fn may_cut<C: Course>(parts: &Parts, request: &ReadRequest) -> bool {
    let claims = parts.calls.claims();
    if !claims.describes {
        return false;
    }
    let piece = parts.memory.registrations().piece_bytes();
    let whole_up_to = piece.min(C::staged_bytes_max(parts)).min(claims.batch_bytes_max);
    let slabs_cross = piece < parts.memory.budget().slab_bytes_max;
    slabs_cross || request.items.iter().any(|item| whole_up_to < item.expected.bytes())
}

/// How one try of a read ended.
enum Attempt {
    Read(ReadOutput),
    /// These keys were replaced while they were read in ranges: what came is a mixture.
    Replaced(Vec<KeyFailure>),
}

fn attempt<C: Course>(
    parts: &Arc<Parts>,
    request: ReadRequest,
    held: Option<Vec<Option<View>>>,
    wait: &Wait<'_>,
) -> Result<Attempt, ReadError> {
    let start = Instant::now();
    let (mut job, items) = job::<C>(parts, request, held, wait)?;
    let mut course = C::new(parts, &job);
    let planned = course.land(parts, &mut job, wait);
    parts.accounts.stages().plan.add(start.elapsed());
    planned.map_err(|error| explain(parts, &items, error, wait))?;
    loop {
        let calls = course.calls(&mut job);
        if calls.is_empty() {
            break;
        }
        job.note_versions(describe::versions(parts, &items, job.unversioned(), wait)?);
        let done = parts.run(calls, job.at_once(), wait)?;
        parts.memory.check_quarantine()?;
        match course.settle(parts, &mut job, done)? {
            Next::Deliver => break,
            Next::Fail(failures) => {
                let failures = describe::name_mismatches(parts, &items, failures, wait);
                return Err(read_error(failures));
            }
            Next::Land { keys: 0, .. } => {}
            Next::Land { keys, tries } => {
                parts.accounts.counters().retries.add(keys);
                wait.sleep(backoff(tries))?;
            }
        }
        course.land(parts, &mut job, wait)?;
    }
    let versions = describe::versions(parts, &items, job.fetched_in_ranges(), wait)?;
    let replaced = job.replaced(versions);
    if replaced.is_empty() {
        parts.accounts.stages().copy.time(|| job.copy_duplicates());
        job.count(parts.accounts.counters());
        return Ok(Attempt::Read(job.deliver()));
    }
    parts.accounts.counters().retries.add(replaced.len() as u64);
    Ok(Attempt::Replaced(replaced))
}

fn job<C: Course>(
    parts: &Arc<Parts>,
    request: ReadRequest,
    held: Option<Vec<Option<View>>>,
    wait: &Wait<'_>,
) -> Result<(Job, Arc<Items>), ReadError> {
    let tagged = parts.calls.claims().describes;
    let items = Arc::new(Items::new(&parts.options.namespace, request.items, tagged, held));
    describe::check_empty_values(parts, &items, wait)?;
    let wish = Wish {
        batches: request.batches,
        delivery: request.delivery.unwrap_or(parts.options.delivery),
        into: request.into,
        direct: request.direct,
    };
    let quarantine = Arc::clone(parts.memory.quarantine());
    let job = Job::new(terms::<C>(parts), Arc::clone(&items), wish, quarantine)?;
    parts.accounts.counters().duplicate_keys.add(job.duplicate_keys());
    Ok((job, items))
}

fn terms<C: Course>(parts: &Parts) -> Terms {
    let claims = parts.calls.claims();
    Terms {
        registers: parts.calls.registers(),
        registration_bytes_max: claims.registration_bytes_max,
        piece_bytes: parts.memory.registrations().piece_bytes(),
        staged_bytes_max: C::staged_bytes_max(parts),
        round_bytes: parts.memory.bounce_round_bytes(),
        call: parts.calls.limits(),
        large_read_bytes_min: claims.large_read_bytes_min,
        workers: parts.calls.workers().count() as u64,
        copy_is_cheaper: parts.accounts.costs().copy_is_cheaper(),
        retries: parts.options.retries,
    }
}

/// No memory for what was asked: where the engine can tell, a wrong shape is the better answer.
fn explain(parts: &Parts, items: &Items, error: ReadError, wait: &Wait<'_>) -> ReadError {
    if !items.tagged || !matches!(error, ReadError::ArenaExhausted { .. }) {
        return error;
    }
    let all: Vec<usize> = (0..items.len()).collect();
    let described = describe::check_described(parts, items, &all, wait);
    described.err().unwrap_or(error)
}
