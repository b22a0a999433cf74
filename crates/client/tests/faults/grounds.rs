//! What a program gives its store reason to fail with: any other error is a difference.

use crate::{
    host::{Blow, Terms},
    program::{Fault, Program},
    steps::{Act, Impatience, Step},
    value::{Shape, WRONG_BYTES_MAX},
};
use std::collections::HashSet;
use tensorlease::{
    CallError, KeyFailure,
    engine::{Capabilities, FaultKind},
};

/// Reasons for errors, by what is called.
#[derive(Debug, Default)]
pub(crate) struct Grounds {
    pub(crate) reads: HashSet<FaultKind>,
    pub(crate) writes: HashSet<FaultKind>,
    pub(crate) removals: HashSet<FaultKind>,
    pub(crate) questions: HashSet<FaultKind>,
    /// Calls may be given up while the engine works on them.
    pub(crate) hangs: bool,
    /// Memory may be in quarantine.
    pub(crate) late: bool,
    /// The arena may be refused memory.
    pub(crate) scarce: bool,
    /// The connection to the host may end.
    pub(crate) severed: bool,
    pub(crate) strict: bool,
    pub(crate) describes: bool,
}

impl Grounds {
    pub(crate) fn of(program: &Program, engine: &Capabilities) -> Self {
        let mut grounds = Self {
            hangs: steps(program).any(|step| !matches!(step.patience, Impatience::Never)),
            strict: program.options.strict,
            describes: engine.describes,
            ..Self::default()
        };
        for fault in &program.faults {
            grounds.add(fault, engine);
        }
        grounds.add_limits(program, engine);
        grounds
    }

    fn add(&mut self, fault: &Fault, engine: &Capabilities) {
        match fault {
            Fault::Fail { kind, on, .. } => {
                self.reads.extend(on.reads.then_some(*kind));
                self.writes.extend(on.writes.then_some(*kind));
                self.removals.extend(on.removes.then_some(*kind));
                if *kind == FaultKind::MayStillWrite && (on.reads || on.writes) {
                    self.add_late();
                }
            }
            Fault::Short { .. } => {
                self.reads.insert(FaultKind::Mismatch);
            }
            Fault::Late { .. } => {
                self.reads.insert(FaultKind::MayStillWrite);
                self.add_late();
            }
            Fault::Panic { .. } => {
                let kind = if engine.late_writes {
                    FaultKind::MayStillWrite
                } else {
                    FaultKind::Refused
                };
                for kinds in [
                    &mut self.reads,
                    &mut self.writes,
                    &mut self.removals,
                    &mut self.questions,
                ] {
                    kinds.insert(kind);
                }
                if engine.late_writes {
                    self.add_late();
                }
            }
            Fault::LoseAnswer { .. } => {
                self.writes.insert(FaultKind::Transient);
                self.removals.insert(FaultKind::Transient);
            }
            Fault::RefuseRegistration { .. } => self.add_everywhere(&[FaultKind::Unregistered, FaultKind::NoHandle]),
            Fault::Lose { .. } | Fault::Slow { .. } | Fault::Stall { .. } => {}
            Fault::RefuseLoan { .. } | Fault::OverflowLoans => {
                self.reads.insert(FaultKind::NoLoan);
            }
        }
    }

    /// The staging block of a late transfer is in quarantine, its key may be tried again, and there may be no block left.
    fn add_late(&mut self) {
        self.late = true;
        self.add_everywhere(&[FaultKind::Transient, FaultKind::NoHandle]);
    }

    fn add_everywhere(&mut self, kinds: &[FaultKind]) {
        self.reads.extend(kinds);
        self.writes.extend(kinds);
    }

    /// What does not fit, or finds no room, without anything being wrong.
    fn add_limits(&mut self, program: &Program, engine: &Capabilities) {
        let largest = largest_value(program);
        let page = 4096;
        let piece = engine.registration_bytes_max / page * page;
        if piece < largest {
            self.add_everywhere(&[FaultKind::Unregistered]);
        }
        if self.hangs || program.options.bounce_bytes == Some(0) {
            self.add_everywhere(&[FaultKind::NoHandle]);
        }
        if program.base.lends().is_some() {
            self.reads.insert(FaultKind::NoLoan);
        }
        if let Some(terms) = program.base.host() {
            self.add_host(program, terms);
        }
        let has_capacity = program.base.host().is_none_or(|terms| terms.relayed);
        if has_capacity && program.capacity_bytes < 1 << 20 {
            self.writes.insert(FaultKind::Full);
        }
    }

    /// All that is stored and leased shares one budget, behind one connection.
    fn add_host(&mut self, program: &Program, terms: Terms) {
        let ends = |step: &Step| matches!(step.act, Act::Strike(Blow::Disconnect | Blow::StopDaemon));
        self.severed = steps(program).any(ends);
        self.scarce = self.severed || terms.is_scarce();
        if terms.is_scarce() && !terms.relayed {
            self.writes.insert(FaultKind::Full);
            // A value that is larger than the whole host.
            if terms.max_bytes < largest_value(program) {
                self.writes.insert(FaultKind::TooLarge);
            }
        }
        if self.severed && terms.relayed {
            // Of a transfer whose answer was lost nobody knows whether it still runs.
            self.add_everywhere(&[FaultKind::MayStillWrite]);
            self.add_late();
        }
        if self.scarce {
            self.add_everywhere(&[FaultKind::NoHandle]);
        }
        if self.severed {
            self.add_everywhere(&[FaultKind::Unavailable]);
            self.removals.insert(FaultKind::Unavailable);
            self.questions.insert(FaultKind::Unavailable);
        }
    }

    /// Does any program of these grounds close its store while calls run, or let them hang? Then it may be unavailable.
    pub(crate) fn explain_call(&self, error: &CallError, patience: Impatience, closing: bool) -> Result<(), String> {
        let explained = match error {
            CallError::Closed => closing,
            CallError::Timeout { .. } => matches!(patience, Impatience::Deadline { .. }),
            CallError::Interrupted => matches!(patience, Impatience::Interrupt { .. }),
            CallError::Unavailable { .. } => self.hangs || closing || self.may_be_unavailable(),
            _ => false,
        };
        if explained {
            Ok(())
        } else {
            Err(format!("no reason for {error:?}"))
        }
    }

    fn may_be_unavailable(&self) -> bool {
        [&self.reads, &self.writes, &self.removals]
            .iter()
            .any(|kinds| kinds.contains(&FaultKind::Unavailable))
    }

    pub(crate) fn explain_failure(
        kinds: &HashSet<FaultKind>,
        failure: &KeyFailure,
        closing: bool,
    ) -> Result<(), String> {
        let closed = matches!(failure.kind, FaultKind::Unavailable | FaultKind::NoHandle);
        if kinds.contains(&failure.kind) || (closing && closed) {
            return Ok(());
        }
        Err(format!("no reason for {failure:?}"))
    }
}

fn steps(program: &Program) -> impl Iterator<Item = &Step> {
    program.threads.iter().flatten()
}

fn largest_value(program: &Program) -> u64 {
    // A kept value may be a whole batch.
    if steps(program).any(|step| matches!(step.act, Act::PutKept { .. })) {
        return u64::MAX;
    }
    let put = steps(program).flat_map(|step| match &step.act {
        Act::Put { items, .. } => items.iter().map(|item| item.shape.bytes()).collect(),
        Act::PutFromArena { item } => vec![item.shape.bytes()],
        _ => Vec::new(),
    });
    let stored = program.stored.iter().flatten().map(Shape::bytes);
    put.chain(stored).chain([WRONG_BYTES_MAX]).max().unwrap_or_default()
}
