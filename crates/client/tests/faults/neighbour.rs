//! Another client of a program's host, which writes, removes and reads the same keys meanwhile. Nothing is wrong with its engine.

use crate::{
    model::{Outcome, Span},
    random::Random,
    run::Run,
    stack::{registered, tag},
    value::{Shape, Value},
};
use std::{thread, time::Duration};
use tensorlease::{
    CallerMemory,
    engine::{Engine, Fault, FaultKind, ReadOp, WriteOp},
};

/// What a neighbour does.
#[derive(Clone, Debug)]
pub(crate) enum Meddling {
    /// Only tensors that have bytes: the store alone knows how it keeps the others.
    Write {
        key: usize,
        shape: Shape,
        number: u64,
    },
    Remove {
        key: usize,
    },
    Look {
        key: usize,
    },
    Pause {
        micros: u64,
    },
}

impl Meddling {
    pub(crate) fn random(random: &mut Random, keys: usize, shapes: &[Shape]) -> Self {
        let key = random.index(keys);
        match random.below(8) {
            0..=2 => {
                let shape = random.pick(shapes);
                match shape {
                    Shape::Tensor(..) if 0 < shape.bytes() => Self::Write {
                        key,
                        shape,
                        number: random.number(),
                    },
                    _ => Self::Look { key },
                }
            }
            3 => Self::Remove { key },
            4..=6 => Self::Look { key },
            _ => Self::Pause {
                micros: random.below(2_000),
            },
        }
    }
}

impl Run<'_> {
    /// Does one thing.
    pub(crate) fn meddle(&self, engine: &dyn Engine, meddling: &Meddling) -> Result<(), String> {
        match meddling {
            Meddling::Write { key, shape, number } => self.meddling_write(engine, *key, shape, *number),
            Meddling::Remove { key } => self.meddling_remove(engine, *key),
            Meddling::Look { key } => self.meddling_look(engine, *key),
            Meddling::Pause { micros } => {
                thread::sleep(Duration::from_micros(*micros));
                Ok(())
            }
        }
    }

    fn meddling_write(&self, engine: &dyn Engine, key: usize, shape: &Shape, number: u64) -> Result<(), String> {
        let value = Value::new(shape, number);
        // A neighbour's values are its own: the program may put none that is so large.
        let is_too_large = self
            .program
            .base
            .host()
            .is_some_and(|terms| terms.max_bytes < value.len());
        let memory = CallerMemory::from_vec(value.bytes.to_vec());
        let begun = self.model.begin(key, Some(value));
        let write = WriteOp {
            key: &self.full_key(key),
            segments: &[memory.source(0..memory.len())],
            tag: &tag(shape),
        };
        let written = registered(engine, &memory, || engine.write_batch(&[write]).remove(0));
        self.tally.add("host/objects written by another client", 1);
        match written {
            Ok(()) => self.model.end(begun, Outcome::Done),
            Err(fault) => {
                // With the connection the answer may be lost, whatever became of the request.
                let outcome = match fault.kind {
                    FaultKind::Unavailable | FaultKind::Transient => Outcome::GivenUp,
                    _ => Outcome::Failed,
                };
                self.model.end(begun, outcome);
                let has_no_room = match fault.kind {
                    FaultKind::Full => self.grounds.writes.contains(&fault.kind),
                    FaultKind::TooLarge => is_too_large,
                    _ => false,
                };
                if !has_no_room {
                    return self.explain_meddling(&fault);
                }
            }
        }
        Ok(())
    }

    fn meddling_remove(&self, engine: &dyn Engine, key: usize) -> Result<(), String> {
        let begun = self.model.begin(key, None);
        let from = self.model.now();
        let removed = engine.remove_batch(&[&self.full_key(key)]).remove(0);
        let span = Span {
            from,
            to: self.model.now(),
        };
        self.tally.add("host/removals by another client", 1);
        let there = match removed {
            Ok(there) => there,
            Err(fault) => {
                self.model.end(begun, Outcome::GivenUp);
                return self.explain_meddling(&fault);
            }
        };
        self.model.end(begun, Outcome::Done);
        let possible = self.model.possible_beside(key, span, Some(begun));
        let explained = if there {
            !possible.values.is_empty()
        } else {
            possible.absent
        };
        if explained {
            return Ok(());
        }
        Err(format!("a neighbour's removal said {there}, which can't have been"))
    }

    /// Reads what is described, unless it is replaced in between.
    fn meddling_look(&self, engine: &dyn Engine, key: usize) -> Result<(), String> {
        let full = self.full_key(key);
        let from = self.model.now();
        let described = match engine.describe_batch(&[&full]).remove(0) {
            Ok(described) => described,
            Err(fault) => return self.explain_meddling(&fault),
        };
        let Some(info) = described else {
            let to = self.model.now();
            return self.may_be_absent(key, Span { from, to });
        };
        let len = usize::try_from(info.len).expect("a value of this suite is small");
        let memory = CallerMemory::from_vec(vec![0; len]);
        let read = ReadOp {
            key: &full,
            offset: 0,
            target: memory.target(0..len),
            object_len: info.len,
            tag: info.tag.as_ref(),
            by_transport: false,
        };
        let read = registered(engine, &memory, || engine.read_batch(&[read]).remove(0));
        let span = Span {
            from,
            to: self.model.now(),
        };
        self.tally.add("host/objects read by another client", 1);
        match read {
            Ok(_) => {
                let bytes = memory.source(0..len).to_vec();
                let possible = self.model.possible(key, span);
                let tag = info.tag.as_ref();
                if possible.values.iter().any(|value| value.is_stored_as(tag, &bytes)) {
                    return Ok(());
                }
                Err(format!(
                    "a neighbour read {len} bytes of {full:?} that nobody put there"
                ))
            }
            Err(fault) if fault.kind == FaultKind::NotFound => self.may_be_absent(key, span),
            Err(fault) if fault.kind == FaultKind::Mismatch => Ok(()),
            Err(fault) => self.explain_meddling(&fault),
        }
    }

    fn may_be_absent(&self, key: usize, span: Span) -> Result<(), String> {
        if self.model.possible(key, span).absent {
            return Ok(());
        }
        Err(format!(
            "{:?} is absent for a neighbour, which it can't have been",
            self.program.keys[key]
        ))
    }

    fn explain_meddling(&self, fault: &Fault) -> Result<(), String> {
        let stopped = self.stack.host.as_ref().is_some_and(crate::host::Host::is_stopped);
        let relayed = self.program.base.is_relayed();
        let explained = match fault.kind {
            FaultKind::Unavailable => stopped,
            // Memory to stage in.
            FaultKind::NoHandle => relayed && (self.grounds.scarce || stopped),
            // A transfer from or to staged memory whose end nobody knows.
            FaultKind::Transient => relayed && (stopped || self.program.writes_late()),
            // No registration is longer than the host's memory.
            FaultKind::Unregistered => relayed && self.grounds.scarce,
            _ => false,
        };
        if explained {
            return Ok(());
        }
        Err(format!("no reason for a neighbour's {fault:?}"))
    }
}
