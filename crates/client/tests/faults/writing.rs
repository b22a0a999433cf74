//! Writes and removals of a program, and what they do to its model.

use crate::{
    grounds::Grounds,
    memory::Guarded,
    model::{Begun, Outcome, Span},
    random::Random,
    run::Run,
    steps::{From, Impatience, NewValue},
    value::Value,
};
use std::{collections::HashSet, sync::Arc};
use tensorlease::{
    CallError, DType, KeyFailure, ObjectKind, PutItem, PutMode, ReadError, RemoveError, Segment, TensorSpec,
    WriteError, engine::FaultKind,
};

/// What became of a call as a whole.
enum Fate<'a> {
    /// Every key that is not among these was served.
    Served(&'a [KeyFailure]),
    /// Nothing is known of any key, but it is over.
    Over,
    /// The engine may still work on it.
    GivenUp,
}

impl Run<'_> {
    pub(crate) fn put(
        &self,
        items: &[NewValue],
        mode: PutMode,
        patience: Impatience,
        random: &mut Random,
    ) -> Result<(), String> {
        let keys: Vec<usize> = items.iter().map(|item| item.key).collect();
        let values: Vec<Value> = items.iter().map(|item| Value::new(&item.shape, item.number)).collect();
        let put = items.iter().zip(&values).map(|(item, value)| PutItem {
            key: self.program.keys[item.key].clone(),
            segments: self.segments(item.from, value, random),
            kind: value.kind.clone(),
        });
        let put = put.collect();
        self.put_items(&keys, values, put, mode, patience)
    }

    /// The bytes of a value in the memory that the program names.
    fn segments(&self, from: From, value: &Value, random: &mut Random) -> Vec<Segment> {
        match from {
            From::Owned => vec![Segment::Owned(value.bytes.to_vec())],
            From::CallerMemory => {
                let memory = Guarded::holding(&value.bytes, random);
                let given = memory.give();
                self.holdings.add_source(memory);
                vec![Segment::Caller(given)]
            }
            From::Pieces => {
                let memory = Guarded::holding(&value.bytes, random);
                let one = random.index(value.bytes.len() + 1);
                let two = one + random.index(value.bytes.len() + 1 - one);
                let segments = vec![
                    Segment::Caller(memory.give_part(0..one)),
                    Segment::Owned(Vec::new()),
                    Segment::Owned(value.bytes[one..two].to_vec()),
                    Segment::Caller(memory.give_part(two..value.bytes.len())),
                ];
                self.holdings.add_source(memory);
                segments
            }
        }
    }

    pub(crate) fn put_from_arena(&self, item: &NewValue, patience: Impatience) -> Result<(), String> {
        let value = Value::new(&item.shape, item.number);
        let (block, span) = self.timed("empty", Impatience::Never, |patience| {
            self.store.empty(value.len(), patience)
        });
        let mut block = match block {
            Ok(block) => block,
            Err(ReadError::ArenaExhausted { .. }) => return Ok(()),
            Err(ReadError::Call(error)) => {
                return self
                    .grounds
                    .explain_call(&error, Impatience::Never, self.was_closing(span));
            }
            Err(error) => return Err(format!("no reason for {error:?}")),
        };
        let region = block.region();
        let overlap = if block.is_empty() {
            Ok(())
        } else {
            self.holdings.admit(region)
        };
        block.as_mut_slice().copy_from_slice(&value.bytes);
        let block = Arc::new(block);
        let put = self.put_buffer(item.key, value, &block, patience);
        self.holdings.dismiss(region);
        overlap.and(put)
    }

    pub(crate) fn put_kept(&self, key: usize, patience: Impatience, random: &mut Random) -> Result<(), String> {
        let Some(kept) = self.holdings.take(random.number()) else {
            return Ok(());
        };
        let spec = TensorSpec::new(DType::U8, &[kept.bytes.len() as u64]).expect("a small value");
        let value = Value {
            kind: ObjectKind::Tensor(Arc::new(spec)),
            bytes: Arc::clone(&kept.bytes),
        };
        let put = self.put_buffer(key, value, &kept.buffer, patience);
        self.holdings.keep(kept);
        put
    }

    fn put_buffer(
        &self,
        key: usize,
        value: Value,
        buffer: &Arc<tensorlease::Buffer>,
        patience: Impatience,
    ) -> Result<(), String> {
        self.holdings.note_given(buffer);
        let item = PutItem {
            key: self.program.keys[key].clone(),
            segments: vec![Segment::Buffer(Arc::clone(buffer))],
            kind: value.kind.clone(),
        };
        self.put_items(&[key], vec![value], vec![item], PutMode::Staged, patience)
    }

    fn put_items(
        &self,
        keys: &[usize],
        values: Vec<Value>,
        items: Vec<PutItem>,
        mode: PutMode,
        patience: Impatience,
    ) -> Result<(), String> {
        let begin = |(key, value): (&usize, Value)| (*key, self.model.begin(*key, Some(value)));
        let begun: Vec<(usize, Begun)> = keys.iter().zip(values).map(begin).collect();
        let name = if mode == PutMode::Staged {
            "put"
        } else {
            "put, register-per-call"
        };
        let (result, span) = self.timed(name, patience, |patience| self.store.put_by(items, mode, patience));
        let (fate, explained) = match &result {
            Ok(()) => (Fate::Served(&[]), Ok(())),
            Err(error) => self.judge_write(error, span, patience),
        };
        self.settle(&begun, keys, &fate)?;
        explained
    }

    fn judge_write<'a>(
        &self,
        error: &'a WriteError,
        span: Span,
        patience: Impatience,
    ) -> (Fate<'a>, Result<(), String>) {
        let closing = self.was_closing(span);
        match error {
            WriteError::Call(error) => (fate_of(error), self.grounds.explain_call(error, patience, closing)),
            WriteError::Transfer { failures, .. } | WriteError::StoreFull { failures, .. } => {
                let no_room = |failure: &KeyFailure| matches!(failure.kind, FaultKind::Full | FaultKind::TooLarge);
                let full = failures.iter().any(no_room);
                let named = full == matches!(error, WriteError::StoreFull { .. }) && !failures.is_empty();
                let explain = |failure| Grounds::explain_failure(&self.grounds.writes, failure, closing);
                let explained = failures.iter().try_for_each(explain);
                let misnamed = || Err(format!("{error:?} is not the error of its failures"));
                (Fate::Served(failures), if named { explained } else { misnamed() })
            }
            WriteError::Fallback { .. } if self.grounds.strict => (Fate::Over, Ok(())),
            WriteError::ArenaExhausted { .. } if self.grounds.late || self.grounds.scarce => (Fate::Over, Ok(())),
            error => (Fate::Over, Err(format!("no reason for {error:?}"))),
        }
    }

    /// Tells the model what became of each key.
    fn settle(&self, begun: &[(usize, Begun)], keys: &[usize], fate: &Fate<'_>) -> Result<(), String> {
        let failed = match fate {
            Fate::Served(failures) => {
                let key = |failure: &KeyFailure| self.key_of(&failure.key, keys);
                failures.iter().map(key).collect::<Result<HashSet<usize>, String>>()
            }
            Fate::Over | Fate::GivenUp => Ok(HashSet::new()),
        };
        for (key, begun) in begun {
            let outcome = match (fate, &failed) {
                (Fate::Served(_), Ok(failed)) if !failed.contains(key) => Outcome::Done,
                // With its connection an answer may be lost, and what it answers may be done later.
                (Fate::Served(_) | Fate::Over, _) if self.grounds.severed => Outcome::GivenUp,
                (Fate::Served(_) | Fate::Over, _) => Outcome::Failed,
                (Fate::GivenUp, _) => Outcome::GivenUp,
            };
            self.model.end(*begun, outcome);
        }
        failed.map(|_| ())
    }

    pub(crate) fn remove(&self, keys: &[usize], patience: Impatience) -> Result<(), String> {
        let begun: Vec<(usize, Begun)> = keys.iter().map(|key| (*key, self.model.begin(*key, None))).collect();
        let names = self.key_names(keys);
        let (result, span) = self.timed("remove", patience, |patience| self.store.remove(&names, patience));
        let (fate, explained) = match &result {
            Ok(count) => (Fate::Served(&[]), self.check_count(&begun, *count, span)),
            Err(error) => self.judge_removal(error, span, patience),
        };
        self.settle(&begun, keys, &fate)?;
        explained
    }

    pub(crate) fn clear(&self, patience: Impatience) -> Result<(), String> {
        let all: Vec<usize> = (0..self.program.keys.len()).collect();
        let begun: Vec<(usize, Begun)> = all.iter().map(|key| (*key, self.model.begin(*key, None))).collect();
        let (result, span) = self.timed("clear", patience, |patience| self.store.clear(patience));
        let (fate, explained) = match &result {
            Ok(_) => (Fate::Served(&[]), Ok(())),
            // A failure names the namespace, so nothing is known of any key.
            Err(RemoveError::Transfer { failures, .. }) => (
                Fate::Over,
                explain_all(&self.grounds.removals, failures, self.was_closing(span)),
            ),
            Err(error) => self.judge_removal(error, span, patience),
        };
        self.settle(&begun, &all, &fate)?;
        explained
    }

    fn judge_removal<'a>(
        &self,
        error: &'a RemoveError,
        span: Span,
        patience: Impatience,
    ) -> (Fate<'a>, Result<(), String>) {
        let closing = self.was_closing(span);
        match error {
            RemoveError::Call(error) => (fate_of(error), self.grounds.explain_call(error, patience, closing)),
            RemoveError::Transfer { failures, .. } => (
                Fate::Served(failures),
                explain_all(&self.grounds.removals, failures, closing),
            ),
            error => (Fate::Over, Err(format!("no reason for {error:?}"))),
        }
    }

    /// A removal counts each key that was there, and no other.
    fn check_count(&self, begun: &[(usize, Begun)], count: u64, span: Span) -> Result<(), String> {
        let (mut least, mut most) = (0, 0);
        for (key, own) in begun {
            let possible = self.model.possible_beside(*key, span, Some(*own));
            let there = !possible.values.is_empty() && !self.loses(*key);
            most += u64::from(there);
            least += u64::from(there && !possible.absent);
        }
        if (least..=most).contains(&count) {
            return Ok(());
        }
        Err(format!(
            "a removal counted {count} keys, of {least} to {most} that were there"
        ))
    }
}

/// Calls that did not wait to the end leave the engine at work.
fn fate_of(error: &CallError) -> Fate<'static> {
    match error {
        CallError::Timeout { .. } | CallError::Interrupted | CallError::Closed => Fate::GivenUp,
        _ => Fate::Over,
    }
}

fn explain_all(kinds: &HashSet<FaultKind>, failures: &[KeyFailure], closing: bool) -> Result<(), String> {
    failures
        .iter()
        .try_for_each(|failure| Grounds::explain_failure(kinds, failure, closing))
}
