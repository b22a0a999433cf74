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

pub(crate) use describe::describe;
pub(crate) use execute::refused_registration;
pub(crate) use job::cuts_at_multiples;

use crate::{
    CallError, Patience, ReadError, ReadOutput, ReadRequest, calls, core::Core, error::read_error, patience::Wait,
};
use job::Job;
use std::{sync::Arc, time::Instant};
use tensorlease_engine::FaultKind;

/// An object that is replaced between "what is it" and "give it to me" is asked again this often.
const DESCRIBE_TRIES_MAX: u32 = 4;

/// One read, whole.
pub(crate) fn get(core: &Arc<Core>, request: ReadRequest, patience: Patience<'_>) -> Result<ReadOutput, ReadError> {
    let _entered = core.enter()?;
    let wait = patience.bounded(core.options.call_timeout);
    check::arguments(&request)?;
    core.check_quarantine()?;
    if !describe::needed(&request) {
        return attempt(core, request, &wait);
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let described = describe::request(core, &request, &wait)?;
        match attempt(core, described, &wait) {
            Err(ReadError::SizeMismatch { failures, message }) => {
                let replaced = failures.iter().all(|failure| failure.kind == FaultKind::Mismatch);
                if !replaced || DESCRIBE_TRIES_MAX <= tries || !request.into.is_empty() {
                    return Err(ReadError::SizeMismatch { failures, message });
                }
            }
            other => return other,
        }
    }
}

fn attempt(core: &Arc<Core>, request: ReadRequest, wait: &Wait<'_>) -> Result<ReadOutput, ReadError> {
    let start = Instant::now();
    let mut job = Job::new(core, request, wait)?;
    let planned = job.land();
    core.stages.plan.add(start.elapsed());
    planned.map_err(|error| job.explain(error, wait))?;
    let mut tries = 0;
    while let Some(groups) = job.groups() {
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
        job.land()?;
    }
    Ok(job.deliver())
}

impl Core {
    /// Past its bound the quarantine ends the reads, with the way out.
    fn check_quarantine(&self) -> Result<(), ReadError> {
        if self.counters.quarantines.get() == 0 {
            return Ok(());
        }
        let (held, max) = (self.quarantined_bytes(), self.quarantine_bytes_max());
        if held <= max {
            return Ok(());
        }
        let usage = self.arena.usage();
        Err(ReadError::ArenaExhausted {
            message: format!(
                "{held} bytes are quarantined because transfers that timed out may still write them, more than quarantine_bytes={max}; close this store and open a new one"
            ),
            asked: 0,
            free: usage.free_bytes,
            largest: usage.largest_free,
            held,
        })
    }
}

/// 5 ms, 20 ms, 80 ms, ... at most 1 s, each between half and whole, so that clients that failed together don't return together.
pub(crate) fn backoff(tries: u32) -> std::time::Duration {
    use std::hash::{BuildHasher, RandomState};
    let whole = (5_u64 << (2 * tries).min(8)).min(1000);
    let jitter = RandomState::new().hash_one(tries) % (whole / 2 + 1);
    std::time::Duration::from_millis(whole - jitter)
}

/// Every failure of one call is about an argument.
pub(crate) fn invalid(message: String) -> ReadError {
    CallError::Invalid { message }.into()
}
