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
mod units;
mod view;

pub(crate) use describe::describe;
pub use view::ValueView;
pub(crate) use view::views;

use crate::{
    CallError, KeyFailure, Patience, ReadError, ReadItem, ReadOutput, ReadRequest,
    calls::EngineCall,
    error::read_error,
    parts::Parts,
    patience::Wait,
    retrying::{backoff, replaced_pause},
    terms::Terms,
};
use groups::Group;
use items::Items;
use job::{Finished, Job, Next};
use std::{mem, sync::Arc, time::Instant};
use tensorlease_engine::FaultKind;
use tensorlease_memory::View;

/// An object that is described alike so often in a row, and never read as that, is not being replaced: the engine reads it short.
const ALIKE_MAX: u32 = 32;
/// A read in ranges that met a replace starts over this often.
const RANGES_TRIES_MAX: u32 = 32;

/// One way of reading: it finds memory for the units of a job, and makes its transfers.
pub(crate) trait Course {
    /// A call on the engine.
    type Call: EngineCall<Context = Parts>;

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

/// A course that says where units land, and nothing else.
pub(crate) struct Plain(pub(crate) fn(&Parts, &mut Job, &Wait<'_>) -> Result<(), ReadError>);

impl Course for Plain {
    type Call = Group;

    fn land(&mut self, parts: &Parts, job: &mut Job, wait: &Wait<'_>) -> Result<(), ReadError> {
        self.0(parts, job, wait)
    }

    fn calls(&mut self, job: &mut Job) -> Vec<Group> {
        job.groups()
    }

    fn settle(&mut self, _parts: &Parts, job: &mut Job, done: Vec<Finished>) -> Result<Next, ReadError> {
        Ok(job.settle(done))
    }
}

/// One read through the arena, whole.
pub(crate) fn get(parts: &Arc<Parts>, request: ReadRequest, patience: Patience<'_>) -> Result<ReadOutput, ReadError> {
    get_by(parts, parts.terms(), &|_| Plain(land::land), request, patience)
}

/// One read by a course of the caller's.
pub(crate) fn get_by<C: Course>(
    parts: &Arc<Parts>,
    terms: Terms,
    course: &dyn Fn(&Job) -> C,
    request: ReadRequest,
    patience: Patience<'_>,
) -> Result<ReadOutput, ReadError> {
    let _entered = parts.enter()?;
    let wait = &patience.bounded(parts.options.call_timeout);
    arguments::check(&request)?;
    parts.memory.check_means(request.items.len())?;
    let reading = Reading {
        parts,
        terms,
        course,
        wait,
    };
    if !describe::needed(&request) {
        return reading.as_asked(request);
    }
    describe::refuse_destinations(&request)?;
    if parts.calls.engine().views().is_none() {
        return reading.as_described(&request);
    }
    // What it is and its bytes come of the same objects, which the engine holds until they are copied.
    let (request, objects) = view::held(parts, request, wait)?;
    match reading.attempt(request, Some(objects))? {
        Attempt::Read(output) => Ok(output),
        Attempt::Replaced(failures) => Err(read_error(failures)),
    }
}

/// How one try of a read ended.
enum Attempt {
    Read(ReadOutput),
    /// These keys were replaced while they were read in ranges: what came is a mixture.
    Replaced(Vec<KeyFailure>),
}

/// One read that runs.
struct Reading<'a, C> {
    parts: &'a Arc<Parts>,
    terms: Terms,
    course: &'a dyn Fn(&Job) -> C,
    wait: &'a Wait<'a>,
}

impl<C: Course> Reading<'_, C> {
    /// Asks the engine what it holds, then for just that. What was replaced in between is asked again, for as long as the call may take.
    fn as_described(&self, request: &ReadRequest) -> Result<ReadOutput, ReadError> {
        let (mut tries, mut alike, mut last) = (0, 0, Vec::new());
        loop {
            let described = describe::request(self.parts, request, self.wait)?;
            alike = if described.items == last { alike + 1 } else { 0 };
            last.clone_from(&described.items);
            let replaced = match self.attempt(described, None) {
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
            if self.parts.life.is_closed() {
                return Err(CallError::Closed.into());
            }
            match self.wait.sleep(replaced_pause(tries)) {
                // That it never stood still says more than that the time is over.
                Err(CallError::Timeout { .. }) => return Err(replaced),
                slept => slept?,
            }
            tries += 1;
        }
    }

    /// Shapes and dtypes are the caller's. A read in ranges that met a replace starts over, where its destinations are not the caller's.
    fn as_asked(&self, mut request: ReadRequest) -> Result<ReadOutput, ReadError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let repeatable = tries < RANGES_TRIES_MAX && request.into.is_empty() && self.may_cut(&request);
            let again = repeatable.then(|| request.with(request.items.clone()));
            match (self.attempt(request, None)?, again) {
                (Attempt::Read(output), _) => return Ok(output),
                (Attempt::Replaced(_), Some(again)) => request = again,
                (Attempt::Replaced(failures), None) => return Err(read_error(failures)),
            }
        }
    }

    /// May a value of this read be fetched in ranges, from an engine that describes it, and so promises that a replace is atomic?
    fn may_cut(&self, request: &ReadRequest) -> bool {
        let terms = &self.terms;
        let whole_up_to = terms.piece_bytes.min(terms.staged_bytes_max).min(terms.call.bytes_max);
        let slabs_cross = terms.piece_bytes < self.parts.memory.budget().slab_bytes_max;
        let is_cut = |item: &ReadItem| whole_up_to < item.expected.bytes();
        self.parts.calls.claims().describes && (slabs_cross || request.items.iter().any(is_cut))
    }

    fn attempt(&self, request: ReadRequest, held: Option<Vec<Option<View>>>) -> Result<Attempt, ReadError> {
        let (parts, wait, start) = (self.parts, self.wait, Instant::now());
        let (mut job, items) = self.job(request, held)?;
        let mut course = (self.course)(&job);
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
            let next = course.settle(parts, &mut job, done)?;
            // After settling: memory that several transfers share goes to quarantine there.
            parts.memory.check_quarantine()?;
            match next {
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
            if 0 < job.duplicate_keys() {
                parts.accounts.stages().copy.time(|| job.copy_duplicates());
            }
            job.count(parts.accounts.counters());
            return Ok(Attempt::Read(job.deliver()));
        }
        parts.accounts.counters().retries.add(replaced.len() as u64);
        Ok(Attempt::Replaced(replaced))
    }

    fn job(&self, mut request: ReadRequest, held: Option<Vec<Option<View>>>) -> Result<(Job, Arc<Items>), ReadError> {
        let parts = self.parts;
        let (options, tagged) = (&parts.options, parts.calls.claims().describes);
        let items = Items::new(&options.namespace, mem::take(&mut request.items), tagged, held);
        describe::check_empty_values(parts, &items, self.wait)?;
        request.delivery.get_or_insert(options.delivery);
        let (items, quarantine) = (Arc::new(items), Arc::clone(parts.memory.quarantine()));
        let job = Job::new(self.terms.clone(), Arc::clone(&items), request, quarantine)?;
        parts.accounts.counters().duplicate_keys.add(job.duplicate_keys());
        Ok((job, items))
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
