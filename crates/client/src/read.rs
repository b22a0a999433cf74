//! The data's way in: check, plan, lease, transfer, verify, deliver.

pub(crate) mod check;
mod deliver;
mod describe;
mod execute;
mod ground;
mod groups;
pub(crate) mod items;
mod job;
mod land;
mod view;

pub(crate) use describe::describe;
pub(crate) use execute::refused_registration;
pub(crate) use job::cuts_at_multiples;
pub use view::ValueView;
pub(crate) use view::views;

use crate::{
    CallError, KeyFailure, Patience, ReadError, ReadOutput, ReadRequest, calls, core::Core, error::read_error,
    patience::Wait,
};
use job::Job;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tensorlease_engine::FaultKind;
use tensorlease_memory::View;

/// An object that is described alike so often in a row, and never read as that, is not being replaced: the engine reads it short.
const ALIKE_MAX: u32 = 32;
/// A read in ranges that met a replace starts over this often.
const RANGES_TRIES_MAX: u32 = 32;

/// One read, whole.
pub(crate) fn get(core: &Arc<Core>, request: ReadRequest, patience: Patience<'_>) -> Result<ReadOutput, ReadError> {
    let _entered = core.enter()?;
    let wait = patience.bounded(core.options.call_timeout);
    check::arguments(&request)?;
    core.check_means(request.items.len())?;
    if !describe::needed(&request) {
        return as_asked(core, request, &wait);
    }
    describe::refuse_destinations(&request)?;
    if core.engine.views().is_some() {
        return held(core, request, &wait);
    }
    as_described(core, &request, &wait)
}

/// What it is and its bytes come of the same objects, which the engine holds until they are copied.
fn held(core: &Arc<Core>, request: ReadRequest, wait: &Wait<'_>) -> Result<ReadOutput, ReadError> {
    let (request, objects) = view::held(core, request, wait)?;
    match attempt(core, request, Some(objects), wait)? {
        Attempt::Read(output) => Ok(output),
        Attempt::Replaced(failures) => Err(read_error(failures)),
    }
}

/// Asks the engine what it holds, then for just that. What was replaced in between is asked again, for as long as the call may take: a writer that
/// does nothing else wins often, and not always.
fn as_described(core: &Arc<Core>, request: &ReadRequest, wait: &Wait<'_>) -> Result<ReadOutput, ReadError> {
    let (mut tries, mut alike, mut last) = (0, 0, Vec::new());
    loop {
        let described = describe::request(core, request, wait)?;
        alike = if described.items == last { alike + 1 } else { 0 };
        last.clone_from(&described.items);
        let replaced = match attempt(core, described, None, wait) {
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
        if core.is_closed() {
            return Err(CallError::Closed.into());
        }
        match wait.sleep(Duration::from_micros(50 << tries)) {
            // That it never stood still says more than that the time is over.
            Err(CallError::Timeout { .. }) => return Err(replaced),
            slept => slept?,
        }
        tries = (tries + 1).min(8);
    }
}

/// Shapes and dtypes are the caller's. A read in ranges that met a replace starts over, where its destinations are not the caller's.
fn as_asked(core: &Arc<Core>, request: ReadRequest, wait: &Wait<'_>) -> Result<ReadOutput, ReadError> {
    let mut request = request;
    let mut tries = 0;
    loop {
        tries += 1;
        let again =
            (tries < RANGES_TRIES_MAX && request.into.is_empty() && core.may_cut(&request)).then(|| request.again());
        match (attempt(core, request, None, wait)?, again) {
            (Attempt::Read(output), _) => return Ok(output),
            (Attempt::Replaced(_), Some(again)) => request = again,
            (Attempt::Replaced(failures), None) => return Err(read_error(failures)),
        }
    }
}

/// How one try of a read ended.
enum Attempt {
    Read(ReadOutput),
    /// These keys were replaced while they were read in ranges: what came is a mixture.
    Replaced(Vec<KeyFailure>),
}

fn attempt(
    core: &Arc<Core>,
    request: ReadRequest,
    held: Option<Vec<Option<View>>>,
    wait: &Wait<'_>,
) -> Result<Attempt, ReadError> {
    let start = Instant::now();
    let mut job = Job::new(core, request, held, wait)?;
    let planned = job.land(wait);
    core.stages.plan.add(start.elapsed());
    planned.map_err(|error| job.explain(error, wait))?;
    let mut tries = 0;
    while let Some(groups) = job.groups() {
        job.note_versions(wait)?;
        let finished = calls::run(core, groups, job.at_once(), wait)?;
        job.settle(finished);
        core.check_quarantine()?;
        if job.failed() {
            let failures = job.failures();
            let failures = describe::name_mismatches(core, &job.items, failures, wait);
            return Err(read_error(failures));
        }
        if job.finished() {
            break;
        }
        job.count_unlent()?;
        if 0 < job.outstanding_keys() {
            if core.options.retries <= tries {
                return Err(read_error(job.outstanding()));
            }
            core.counters.retries.add(job.outstanding_keys());
            wait.sleep(backoff(tries))?;
            tries += 1;
        }
        job.land(wait)?;
    }
    let replaced = job.replaced(wait)?;
    if replaced.is_empty() {
        return Ok(Attempt::Read(job.deliver()));
    }
    core.counters.retries.add(replaced.len() as u64);
    Ok(Attempt::Replaced(replaced))
}

impl Core {
    /// May a value of this read be fetched in ranges, from an engine that describes it, and so promises that a replace is atomic?
    fn may_cut(&self, request: &ReadRequest) -> bool {
        let claims = &self.capabilities;
        if !claims.describes {
            return false;
        }
        let piece = self.registration_piece_bytes();
        let whole_up_to = piece.min(self.staged_bytes_max()).min(claims.batch_bytes_max);
        let slabs_cross = piece < self.arena.budget().slab_bytes_max;
        slabs_cross || request.items.iter().any(|item| whole_up_to < item.expected.bytes())
    }
}

/// 5 ms, 20 ms, 80 ms, ... at most 1 s, each between half and whole, so that clients that failed together don't return together.
pub(crate) fn backoff(tries: u32) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let whole = (5_u64 << (2 * tries).min(8)).min(1000);
    let jitter = RandomState::new().hash_one(tries) % (whole / 2 + 1);
    Duration::from_millis(whole - jitter)
}

/// Every failure of one call is about an argument.
pub(crate) fn invalid(message: String) -> ReadError {
    CallError::Invalid { message }.into()
}
