//! The baseline: batches of keys, and per dtype one fresh allocation, one registration, one transfer.

use super::loan;
use crate::{
    ReadError,
    parts::Parts,
    patience::Wait,
    read::{
        Course,
        groups::{Group, TransferMode},
        job::{Finished, Job, Next},
        land,
    },
};

/// A read whose memory is registered for it alone.
pub(super) struct Registered;

impl Course for Registered {
    type Call = Group;

    fn new(_parts: &Parts, _job: &Job) -> Self {
        Self
    }

    fn staged_bytes_max(parts: &Parts) -> u64 {
        loan::staged_bytes_max(parts)
    }

    fn land(&mut self, parts: &Parts, job: &mut Job, _wait: &Wait<'_>) -> Result<(), ReadError> {
        let limits = job.terms().registered_limits();
        for batch in job.waiting().chunks(parts.options.batch_keys as usize) {
            for of_one_dtype in job.of_one_dtype(batch) {
                land::in_mappings(parts, job, &of_one_dtype, TransferMode::Registered, limits)?;
            }
        }
        Ok(())
    }

    fn calls(&mut self, job: &mut Job) -> Vec<Group> {
        job.groups()
    }

    fn settle(&mut self, _parts: &Parts, job: &mut Job, done: Vec<Finished>) -> Result<Next, ReadError> {
        Ok(job.settle(done))
    }
}
