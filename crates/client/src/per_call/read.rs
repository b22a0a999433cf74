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
pub(super) struct Registered(Job);

impl Course for Registered {
    type Call = Group;

    fn new(_parts: &Parts, job: Job) -> Self {
        Self(job)
    }

    fn staged_bytes_max(parts: &Parts) -> u64 {
        loan::staged_bytes_max(parts)
    }

    fn job(&mut self) -> &mut Job {
        &mut self.0
    }

    fn into_job(self) -> Job {
        self.0
    }

    fn land(&mut self, parts: &Parts, _wait: &Wait<'_>) -> Result<(), ReadError> {
        let job = &mut self.0;
        let limits = job.terms().registered_limits();
        for batch in job.waiting().chunks(parts.options.batch_keys as usize) {
            for of_one_dtype in job.of_one_dtype(batch) {
                land::in_mappings(parts, job, &of_one_dtype, TransferMode::Registered, limits)?;
            }
        }
        Ok(())
    }

    fn calls(&mut self) -> Vec<Group> {
        self.0.groups()
    }

    fn settle(&mut self, _parts: &Parts, done: Vec<Finished>) -> Result<Next, ReadError> {
        self.0.settle(done);
        Ok(self.0.next())
    }
}
