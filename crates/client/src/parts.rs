//! The values that make up an open store, each of which keeps its own secrets.

use crate::{
    CallError, Options, Stats,
    accounts::Accounts,
    calls::{self, Calls, EngineCall},
    held::Memory,
    life::{Entered, Life},
    patience::Wait,
    terms::Terms,
};
use std::sync::Arc;

/// Shared by every handle of a store and by its running calls.
pub(crate) struct Parts {
    /// Before the memory: fields are dropped in this order, and an engine is let go before what is registered with it is unmapped.
    pub(crate) calls: Arc<Calls>,
    pub(crate) memory: Memory,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) life: Arc<Life>,
    pub(crate) options: Options,
    pub(crate) url: String,
}

impl Parts {
    /// Every call starts here; the guard ends it.
    pub(crate) fn enter(&self) -> Result<Entered, CallError> {
        let entered = self.life.enter()?;
        self.calls.check_alive()?;
        Ok(entered)
    }

    /// What a call plans by.
    pub(crate) fn terms(&self) -> Terms {
        let (claims, round_bytes) = (self.calls.claims(), self.memory.bounce_round_bytes());
        Terms {
            registers: self.calls.registers(),
            registration_bytes_max: claims.registration_bytes_max,
            piece_bytes: self.memory.registrations().piece_bytes(),
            staged_bytes_max: round_bytes,
            round_bytes,
            call: self.calls.limits(),
            large_read_bytes_min: claims.large_read_bytes_min,
            large_write_bytes_min: claims.large_write_bytes_min,
            workers: self.calls.workers().count(),
            copy_is_cheaper: self.accounts.copy_is_cheaper(),
            retries: self.options.retries,
        }
    }

    /// Runs the engine calls of a read or write, `at_once` of them at a time at most. What they bring comes back in no particular order.
    pub(crate) fn run<C: EngineCall<Context = Self>>(
        self: &Arc<Self>,
        calls: Vec<C>,
        at_once: usize,
        wait: &Wait<'_>,
    ) -> Result<Vec<C::Done>, CallError> {
        let bounced = calls.iter().filter(|call| call.bounces());
        if let Some(bytes) = bounced.map(EngineCall::bytes).max() {
            self.memory.make_reserve(bytes, || wait.slice())?;
        }
        calls::run(&self.calls, self, calls, at_once, wait)
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        if self.life.is_forked() {
            // A lock may have been held when this child was forked, by a thread that is not here to release it.
            return stats;
        }
        self.memory.report(&mut stats);
        stats.push("running_calls", self.life.calls_running() as u64);
        stats.push("abandoned_running_calls", self.calls.workers().abandoned() as u64);
        stats.push("local_reads", self.calls.engine().local_reads());
        self.accounts.counters().report(&mut stats);
        self.accounts.stages().report(&mut stats);
        stats
    }
}
