//! Reads through loans: into memory that the engine lends, and out of it into fresh memory, per batch of keys and dtype.

use super::loan::{Call, Done};
use crate::{
    FallbackKind, ReadError,
    parts::Parts,
    patience::Wait,
    read::{
        Course,
        groups::{self, Group, Transfer, TransferMode},
        job::{Finished, Job, Next},
        land,
    },
};
use std::{borrow::Cow, mem};
use tensorlease_arena::plan::{GroupLimits, cut_groups};
use tensorlease_engine::LoanLimits;

/// A read through loans. What is larger than a loan, and what got none, is collected and registered once per dtype.
pub(super) struct Lent {
    limits: LoanLimits,
    /// Of each unit: it goes without a loan, for it is larger than one, or the engine had none for it.
    unlent: Vec<bool>,
    /// Values that the engine lent nothing for in the last round.
    newly_unlent: u64,
    /// Unit, kind and cause of the first of them.
    first_unlent: (u32, FallbackKind, Cow<'static, str>),
    /// Units wait for those that come through loans.
    collected: bool,
}

impl Lent {
    pub(super) fn new(limits: LoanLimits, job: &Job) -> Self {
        Self {
            limits,
            unlent: vec![false; job.unit_count()],
            newly_unlent: 0,
            first_unlent: (0, FallbackKind::NoLoan, Cow::Borrowed("")),
            collected: false,
        }
    }
}

impl Course for Lent {
    type Call = Call;

    fn land(&mut self, parts: &Parts, job: &mut Job, wait: &Wait<'_>) -> Result<(), ReadError> {
        self.collected = false;
        let waiting = job.waiting();
        if job.has_destinations() {
            land::in_callers_memory(parts, job, &waiting);
            return Ok(());
        }
        // What got neither lease nor loan is counted, and not tried again.
        let leases = job.delivery.asks_for_leases();
        let (leased, mut lent): (Vec<u32>, Vec<u32>) = waiting
            .into_iter()
            .partition(|unit| leases && !self.unlent[*unit as usize]);
        lent.extend(land::leased(parts, job, &leased, wait)?);
        self.land_lent(parts, job, &lent)
    }

    fn calls(&mut self, job: &mut Job) -> Vec<Call> {
        let [direct, staged, registered] = job.take_ready();
        let (bounced, lent): (Vec<Transfer>, Vec<Transfer>) = staged
            .into_iter()
            .partition(|transfer| self.unlent[transfer.unit as usize]);
        let plain = |mode, transfers| job.cut(mode, transfers).into_iter().map(Call::Plain);
        let mut calls: Vec<Call> = plain(TransferMode::Direct, direct).collect();
        calls.extend(self.by_loan(job, lent).into_iter().map(Call::Lent));
        calls.extend(plain(TransferMode::Staged, bounced));
        calls.extend(plain(TransferMode::Registered, registered));
        calls
    }

    fn settle(&mut self, parts: &Parts, job: &mut Job, done: Vec<Done>) -> Result<Next, ReadError> {
        self.newly_unlent = 0;
        job.begin_round();
        // First, since such a unit starts over: what befell its other transfers no longer matters.
        let (unlent, ran): (Vec<Done>, Vec<Done>) = done.into_iter().partition(|done| done.unlent.is_some());
        unlent.into_iter().for_each(|done| self.without_loan(job, done));
        for Done { finished, .. } in ran {
            self.settle_one(job, finished);
        }
        job.end_round();
        if !job.has_failed() {
            self.count_unlent(parts, job)?;
        }
        let unfinished = 0 < self.newly_unlent || self.collected;
        Ok(match job.next() {
            Next::Deliver if unfinished => Next::Land { keys: 0, tries: 0 },
            next => next,
        })
    }
}

impl Lent {
    fn land_lent(&mut self, parts: &Parts, job: &mut Job, units: &[u32]) -> Result<(), ReadError> {
        let lens = |unit: u32| job.unit(unit).each_part().map(|(item, _)| job.items.len_of(item));
        let too_large = |unit: u32| lens(unit).any(|len| self.limits.bytes_max < len);
        let (registered, lent): (Vec<u32>, Vec<u32>) = units
            .iter()
            .partition(|unit| self.unlent[**unit as usize] || too_large(**unit));
        self.refuse_larger_than_a_loan(parts, job, &registered)?;
        let unlimited = GroupLimits {
            keys_max: usize::MAX,
            bytes_max: u64::MAX,
        };
        for batch in lent.chunks(self.limits.keys_max) {
            for region in job.of_one_dtype(batch) {
                land::in_mappings(parts, job, &region, TransferMode::Staged, unlimited)?;
            }
        }
        // Once, after what comes through loans: there may be more of them by then.
        self.collected = !registered.is_empty() && job.is_ready(TransferMode::Staged);
        if self.collected {
            return Ok(());
        }
        let limits = job.terms.registered_limits();
        for region in job.of_one_dtype(&registered) {
            land::in_mappings(parts, job, &region, TransferMode::Registered, limits)?;
        }
        Ok(())
    }

    fn refuse_larger_than_a_loan(&mut self, parts: &Parts, job: &Job, units: &[u32]) -> Result<(), ReadError> {
        let kind = FallbackKind::LoanTooLarge;
        let (mut values, mut larger) = (0, Vec::new());
        for unit in units {
            // Those that got no loan are counted, and so is what lands for the second time.
            if !mem::replace(&mut self.unlent[*unit as usize], true) {
                values += job.values_of(*unit);
                larger.push(*unit);
            }
        }
        if values == 0 {
            return Ok(());
        }
        if parts.options.strict {
            return Err(job.refusal(kind, &larger, ""));
        }
        Self::count_without_loan(parts, job, kind, values, None);
        Ok(())
    }

    /// One group per loan: batches of so many keys, each cut by the share, as Mooncake's own client counts them.
    fn by_loan(&self, job: &Job, transfers: Vec<Transfer>) -> Vec<Group> {
        let (LoanLimits { bytes_max, keys_max }, divisor) = (self.limits, job.divisor);
        let limits = GroupLimits {
            bytes_max: (bytes_max / divisor).max(1),
            keys_max: (keys_max / usize::try_from(divisor).unwrap_or(usize::MAX)).max(1),
        };
        let mut lens = Vec::new();
        for batch in transfers.chunks(keys_max) {
            let sizes: Vec<u64> = batch.iter().map(|transfer| transfer.len).collect();
            lens.extend(groups::group_lens(&cut_groups(&sizes, limits), batch));
        }
        groups::grouped(&job.items, TransferMode::Staged, transfers, lens)
    }

    /// It lands in memory that is registered for the call; the caller's own memory is filled through the bounce reserve.
    fn without_loan(&mut self, job: &mut Job, Done { finished, unlent }: Done) {
        let Finished { transfer, result } = finished;
        let unit = transfer.unit;
        if !mem::replace(&mut self.unlent[unit as usize], true) {
            if let (0, Some(kind), Err(fault)) = (self.newly_unlent, unlent, result) {
                self.first_unlent = (unit, kind, fault.message);
            }
            self.newly_unlent += job.values_of(unit);
        }
        if job.has_destinations() {
            Self::push_bounced(job, transfer);
        } else {
            job.displace(unit);
        }
    }

    fn settle_one(&self, job: &mut Job, Finished { transfer, result }: Finished) {
        let unit = transfer.unit;
        let Some((transfer, fault)) = job.judge(transfer, result) else {
            return;
        };
        match (self.unlent[unit as usize], job.mode_of(unit)) {
            // Another part of its value got no loan: the whole of it lands elsewhere.
            (true, None) => {}
            // From now on the whole value goes through the bounce reserve.
            (true, Some(TransferMode::Staged)) => {
                job.note_passing(&transfer, fault);
                Self::push_bounced(job, transfer);
            }
            _ => job.try_again(transfer, fault),
        }
    }

    /// What was cut by the engine's loans is cut again by the rounds of the bounce reserve, which may be smaller.
    fn push_bounced(job: &mut Job, transfer: Transfer) {
        let round = job.terms.round_bytes;
        if transfer.len <= round {
            job.push_ready(TransferMode::Staged, transfer);
        } else {
            job.push_cut(TransferMode::Staged, transfer, |_| round);
        }
    }

    /// Values that the engine lent nothing for go another way: counted, and under `strict` an error.
    fn count_unlent(&self, parts: &Parts, job: &Job) -> Result<(), ReadError> {
        if self.newly_unlent == 0 {
            return Ok(());
        }
        let (first, kind, cause) = &self.first_unlent;
        if parts.options.strict {
            return Err(job.refusal(*kind, &[*first], &format!(" ({cause})")));
        }
        Self::count_without_loan(parts, job, *kind, self.newly_unlent, Some(cause));
        Ok(())
    }

    /// What was to be leased is counted as a fallback by now.
    fn count_without_loan(parts: &Parts, job: &Job, kind: FallbackKind, values: u64, cause: Option<&str>) {
        let leased = job.delivery.asks_for_leases() && !job.has_destinations();
        if leased {
            parts.accounts.count_reason(kind, values, cause);
        } else {
            parts.accounts.count_fallback(kind, values, cause);
        }
    }
}
