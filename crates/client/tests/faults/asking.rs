//! Questions of a program about its keys, and what it does with values that it kept.

use crate::{
    grounds::Grounds,
    model::Span,
    random::Random,
    run::Run,
    stack::Stored,
    steps::Impatience,
    trial,
    value::{Shape, Value},
};
use std::{sync::Arc, time::Duration};
use tensorlease::{CallError, Described, Patience, QueryError};

impl Run<'_> {
    pub(crate) fn contains(&self, keys: &[usize], patience: Impatience) -> Result<(), String> {
        let names = self.key_names(keys);
        let (result, span) = self.timed("contains", patience, |patience| self.store.contains(&names, patience));
        match result {
            Ok(there) => keys
                .iter()
                .zip(there)
                .try_for_each(|(key, there)| self.check_there(*key, there, span)),
            Err(error) => self.explain_question(&error, span, patience),
        }
    }

    pub(crate) fn wait(&self, keys: &[usize], micros: u64) -> Result<(), String> {
        let names = self.key_names(keys);
        let patience = Impatience::Deadline { micros };
        let within = Duration::from_micros(micros);
        let (result, span) = self.timed("wait", patience, |_| self.store.wait(&names, Patience::within(within)));
        match result {
            Ok(()) => keys.iter().try_for_each(|key| self.check_there(*key, true, span)),
            Err(QueryError::NotThere { failures, .. }) => failures.iter().try_for_each(|failure| {
                let key = self.key_of(&failure.key, keys)?;
                self.check_there(key, false, span)
            }),
            Err(error) => self.explain_question(&error, span, patience),
        }
    }

    fn check_there(&self, key: usize, there: bool, span: Span) -> Result<(), String> {
        let possible = self.model.possible(key, span);
        let explained = if there {
            !possible.values.is_empty() && !self.loses(key)
        } else {
            possible.absent || self.loses(key)
        };
        let said = if there { "there" } else { "absent" };
        let name = &self.program.keys[key];
        if explained {
            Ok(())
        } else {
            Err(format!("{name:?} is said to be {said}, which it can't have been"))
        }
    }

    pub(crate) fn describe(&self, keys: &[usize], patience: Impatience) -> Result<(), String> {
        let names = self.key_names(keys);
        let (result, span) = self.timed("describe", patience, |patience| self.store.describe(&names, patience));
        match result {
            Ok(described) => keys
                .iter()
                .zip(described)
                .try_for_each(|(key, it)| self.check_description(*key, it.as_ref(), span)),
            Err(QueryError::Call(CallError::Invalid { .. })) if !self.grounds.describes => Ok(()),
            Err(error) => self.explain_question(&error, span, patience),
        }
    }

    fn check_description(&self, key: usize, described: Option<&Described>, span: Span) -> Result<(), String> {
        let Some(described) = described else {
            return self.check_there(key, false, span);
        };
        self.check_there(key, true, span)?;
        let same = |value: &Value| value.kind == described.kind && value.len() == described.bytes;
        if self.model.possible(key, span).values.iter().any(same) {
            return Ok(());
        }
        Err(format!(
            "{:?} is described as {described:?}, which it can't have been",
            self.program.keys[key]
        ))
    }

    fn explain_question(&self, error: &QueryError, span: Span, patience: Impatience) -> Result<(), String> {
        let closing = self.was_closing(span);
        match error {
            QueryError::Call(error) => self.grounds.explain_call(error, patience, closing),
            QueryError::Transfer { failures, .. } => failures
                .iter()
                .try_for_each(|failure| Grounds::explain_failure(&self.grounds.questions, failure, closing)),
            error => Err(format!("no reason for {error:?}")),
        }
    }

    /// Every value that is held is as it was handed out.
    pub(crate) fn look_again(&self) -> Result<(), String> {
        let (complaints, bytes) = self.holdings.complaints();
        self.tally.add("verified/bytes held", bytes);
        if complaints.is_empty() {
            Ok(())
        } else {
            Err(complaints.join("\n    "))
        }
    }

    /// Owners may change what they hold: it is theirs alone.
    pub(crate) fn scribble(&self, number: u64, random: &mut Random) -> Result<(), String> {
        let Some(mut kept) = self.holdings.take(random.number()) else {
            return Ok(());
        };
        let whole = kept.is_as_it_was();
        // A put that was given up may still read it.
        if let Some(buffer) = Arc::get_mut(&mut kept.buffer) {
            let value = Value::new(&Shape::Packed(buffer.len() as u64), number);
            buffer.as_mut_slice().copy_from_slice(&value.bytes);
            kept.bytes = value.bytes;
            kept.what = format!("{}, changed by its owner,", kept.what);
            self.tally.add("calls/change of a held value", 1);
        }
        let complaint = format!("{} changed while it was held", kept.what);
        self.holdings.keep(kept);
        if whole { Ok(()) } else { Err(complaint) }
    }

    pub(crate) fn drop_some(&self, random: &mut Random) {
        for _ in 0..random.between(1, 4) {
            if let Some(kept) = self.holdings.take(random.number()) {
                self.tally.add("calls/drop", 1);
                self.holdings.drop_kept(kept);
            }
            self.holdings.drop_view(random.number());
        }
    }

    /// What the engine holds in the end, past everything that is wrong with it, is what the model allows.
    pub(crate) fn check_engine(&self) -> Result<(), String> {
        let now = Span {
            from: self.model.now(),
            to: self.model.now(),
        };
        for key in 0..self.program.keys.len() {
            let possible = self.model.possible(key, now);
            let name = &self.program.keys[key];
            let Some(Stored { tag, bytes }) = self.stack.stored(&self.full_key(key))? else {
                if possible.absent {
                    continue;
                }
                return Err(format!("{name:?} is not in the engine, though it was stored"));
            };
            let same = |value: &Value| value.is_stored_as(tag.as_ref(), &bytes);
            if !possible.values.iter().any(same) {
                return Err(format!(
                    "{name:?} is in the engine as {} bytes that nobody put there",
                    bytes.len()
                ));
            }
        }
        trial::check_beside(self.stack)
    }
}
