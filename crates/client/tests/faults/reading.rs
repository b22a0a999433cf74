//! Reads of a program, and whether what they brought, or their error, is explained.

use crate::{
    grounds::Grounds,
    holdings::{Destination, Kept},
    memory::Guarded,
    model::Span,
    random::Random,
    run::Run,
    steps::{Get, Impatience},
    value::{Shape, Value, WRONG_BYTES_MAX, expected},
};
use std::{collections::HashMap, sync::Arc};
use tensorlease::{
    Buffer, Expected, KeyFailure, ObjectKind, ReadError, ReadItem, ReadOutput, ReadRequest, engine::FaultKind,
};

/// One key and what its read asks for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) key: usize,
    pub(crate) kind: ObjectKind,
    pub(crate) len: u64,
    pub(crate) described: bool,
    /// Is the object's tag compared with what is asked for?
    pub(crate) tagged: bool,
}

impl Run<'_> {
    pub(crate) fn get(&self, get: &Get, patience: Impatience, random: &mut Random) -> Result<(), String> {
        let mut asked = self.ask(&get.keys, random);
        asked.iter_mut().for_each(|asked| asked.described = get.described);
        let request = ReadRequest {
            items: self.items(&asked),
            batches: get.batches.clone(),
            delivery: get.delivery,
            ..ReadRequest::default()
        };
        let name = if get.batches.is_empty() { "get" } else { "get_batch" };
        let (result, span) = self.timed(name, patience, |patience| self.store.get(request, patience));
        match result {
            Ok(output) => self.take_in(get, &mut asked, output, span),
            Err(error) => self.explain_read(&error, &asked, span, patience),
        }
    }

    pub(crate) fn get_into(
        &self,
        keys: &[usize],
        direct: bool,
        patience: Impatience,
        random: &mut Random,
    ) -> Result<(), String> {
        let asked = self.ask(keys, random);
        let memory: Vec<Guarded> = asked
            .iter()
            .map(|asked| Guarded::untouched(index(asked.len), random))
            .collect();
        let request = ReadRequest {
            items: self.items(&asked),
            into: memory.iter().map(Guarded::give).collect(),
            direct,
            ..ReadRequest::default()
        };
        let name = if direct { "get_into, direct" } else { "get_into" };
        let (result, span) = self.timed(name, patience, |patience| self.store.get(request, patience));
        let mut checked = Ok(());
        for (asked, memory) in asked.iter().zip(memory) {
            let bytes = memory.bytes();
            let as_it_should_be = match &result {
                Ok(_) => self.check_value(asked, &bytes, span),
                Err(_) if direct => Ok(()),
                Err(_) => self.check_half_filled(asked, &memory, span),
            };
            checked = checked.and(as_it_should_be);
            self.holdings.add_destination(Destination {
                memory,
                settled: (result.is_ok() || !direct).then_some(bytes),
                what: format!("{:?} ({name})", self.program.keys[asked.key]),
            });
        }
        checked?;
        result.map_or_else(|error| self.explain_read(&error, &asked, span, patience), |_| Ok(()))
    }

    /// What to ask for: mostly what may be there, now and then something else.
    pub(crate) fn ask(&self, keys: &[usize], random: &mut Random) -> Vec<Asked> {
        let now = Span {
            from: self.model.now(),
            to: self.model.now(),
        };
        let mut known: HashMap<usize, Asked> = HashMap::new();
        let ask = |key: &usize| {
            let asked = known.entry(*key).or_insert_with(|| {
                let possible = self.model.possible(*key, now).values;
                let (kind, len) = if possible.is_empty() || random.one_in(15) {
                    let shape = Shape::random(random, WRONG_BYTES_MAX);
                    (shape.kind(), shape.bytes())
                } else {
                    let value: Value = random.pick(&possible);
                    let len = value.len();
                    (value.kind, len)
                };
                let key = *key;
                Asked {
                    key,
                    kind,
                    len,
                    described: false,
                    tagged: self.grounds.describes,
                }
            });
            asked.clone()
        };
        keys.iter().map(ask).collect()
    }

    pub(crate) fn items(&self, asked: &[Asked]) -> Vec<ReadItem> {
        let item = |asked: &Asked| ReadItem {
            key: self.program.keys[asked.key].clone(),
            expected: if asked.described {
                Expected::Described
            } else {
                expected(&asked.kind, asked.len)
            },
        };
        asked.iter().map(item).collect()
    }

    /// Not direct, and failed: each byte is as it was, or one of a value's.
    fn check_half_filled(&self, asked: &Asked, memory: &Guarded, span: Span) -> Result<(), String> {
        let possible = self.model.possible(asked.key, span).values.into_iter();
        let fitting = possible.filter_map(|value| value.read_as(&asked.kind, asked.len, self.grounds.describes));
        let fitting: Vec<Value> = fitting.collect();
        if memory.is_untouched_or(&fitting) {
            return Ok(());
        }
        let name = &self.program.keys[asked.key];
        Err(format!(
            "the destination of {name:?}, whose read failed, holds bytes of no value of its own"
        ))
    }

    /// Checks what a read brought, value by value, and keeps it where the program says so.
    fn take_in(&self, get: &Get, asked: &mut [Asked], output: ReadOutput, span: Span) -> Result<(), String> {
        if output.values.len() != asked.len() || output.batches.len() != get.batches.len() {
            return Err("a read brought another number of values than it was asked for".to_owned());
        }
        let mut buffers = Vec::new();
        for (at, value) in output.values.into_iter().enumerate() {
            let asked = &mut asked[at];
            let in_batch = get.batches.iter().any(|batch| batch.contains(&at));
            if asked.described {
                asked.kind = value.kind;
                asked.len = described_len(&asked.kind, value.buffer.as_ref());
            } else if asked.kind != value.kind {
                return Err(format!(
                    "{:?} came as {:?}, asked for {asked:?}",
                    self.program.keys[asked.key], value.kind
                ));
            }
            match value.buffer {
                Some(buffer) if in_batch || asked.len == 0 => {
                    return Err(format!("{} bytes came for an item that has no buffer", buffer.len()));
                }
                Some(buffer) => {
                    self.check_alone(asked, &buffer, span)?;
                    buffers.push((self.program.keys[asked.key].clone(), buffer));
                }
                None if in_batch => {}
                None if asked.len == 0 => self.check_value(asked, &[], span)?,
                None => return Err(format!("no bytes came for {asked:?}")),
            }
        }
        for (range, buffer) in get.batches.iter().zip(output.batches) {
            self.check_batch(&asked[range.clone()], buffer.as_ref(), span)?;
            buffers.extend(buffer.map(|buffer| (format!("the batch {range:?}"), buffer)));
        }
        self.hold(buffers, get.keeps)
    }

    fn check_alone(&self, asked: &Asked, buffer: &Buffer, span: Span) -> Result<(), String> {
        if buffer.len() as u64 != asked.len {
            return Err(format!("{} bytes came for {asked:?}", buffer.len()));
        }
        if let ObjectKind::Tensor(spec) = &asked.kind {
            let item = index(spec.dtype().item_bytes());
            if !buffer.region().addr.is_multiple_of(item) {
                return Err(format!(
                    "{asked:?} lies at {:#x}, not aligned to {item} bytes",
                    buffer.region().addr
                ));
            }
        }
        self.check_value(asked, buffer.as_slice(), span)
    }

    /// Rows back to back. A batch with described packed rows can't be cut into them, so it is passed over.
    fn check_batch(&self, rows: &[Asked], buffer: Option<&Buffer>, span: Span) -> Result<(), String> {
        let bytes = buffer.map(Buffer::as_slice).unwrap_or_default();
        let total: u64 = rows.iter().map(|row| row.len).sum();
        if rows.iter().any(|row| row.described && row.kind == ObjectKind::Packed) {
            return Ok(());
        }
        if bytes.len() as u64 != total || buffer.is_some_and(Buffer::is_empty) {
            return Err(format!("a batch of {total} bytes came with {}", bytes.len()));
        }
        let mut start = 0;
        for row in rows {
            let end = start + index(row.len);
            self.check_value(row, &bytes[start..end], span)?;
            start = end;
        }
        Ok(())
    }

    /// What was handed out overlaps nothing that anybody holds, and is kept or dropped.
    fn hold(&self, buffers: Vec<(String, Buffer)>, keep: bool) -> Result<(), String> {
        let mut overlaps = Ok(());
        let mut held = Vec::new();
        for (what, buffer) in buffers {
            let admitted = self.holdings.admit(buffer.region());
            overlaps = overlaps.and(admitted);
            let bytes = if keep {
                Arc::new(buffer.to_vec())
            } else {
                Arc::default()
            };
            held.push(Kept {
                buffer: Arc::new(buffer),
                bytes,
                what,
            });
        }
        for kept in held {
            if keep {
                self.holdings.keep(kept);
            } else {
                self.holdings.drop_kept(kept);
            }
        }
        overlaps
    }

    pub(crate) fn explain_read(
        &self,
        error: &ReadError,
        asked: &[Asked],
        span: Span,
        patience: Impatience,
    ) -> Result<(), String> {
        let closing = self.was_closing(span);
        let failures = match error {
            ReadError::Call(tensorlease::CallError::Invalid { .. })
                if asked[0].described && !self.grounds.describes =>
            {
                return Ok(());
            }
            ReadError::Call(error) => return self.grounds.explain_call(error, patience, closing),
            ReadError::ArenaExhausted { .. } if self.grounds.late || self.grounds.scarce => return Ok(()),
            ReadError::Fallback { .. } if self.grounds.strict => return Ok(()),
            ReadError::KeyNotFound { failures, .. } if has(failures, FaultKind::NotFound) => failures,
            ReadError::SizeMismatch { failures, .. } if has(failures, FaultKind::Mismatch) => failures,
            ReadError::Transfer { failures, .. } if !failures.is_empty() => failures,
            _ => return Err(format!("no reason for {error:?}")),
        };
        let keys: Vec<usize> = asked.iter().map(|asked| asked.key).collect();
        for failure in failures {
            let key = self.key_of(&failure.key, &keys)?;
            let of = asked
                .iter()
                .find(|asked| asked.key == key)
                .expect("one of those asked for");
            self.explain_read_failure(failure, of, span, closing)?;
        }
        Ok(())
    }

    fn explain_read_failure(
        &self,
        failure: &KeyFailure,
        asked: &Asked,
        span: Span,
        closing: bool,
    ) -> Result<(), String> {
        let possible = self.model.possible(asked.key, span);
        let another =
            |value: &Value| asked.described || value.clone().read_as(&asked.kind, asked.len, asked.tagged).is_none();
        let explained = match failure.kind {
            FaultKind::NotFound => possible.absent || self.loses(asked.key),
            FaultKind::Mismatch => possible.values.iter().any(another),
            // Its parts were of several values each time.
            FaultKind::Transient => self.stack.watching.read_in_parts(&self.full_key(asked.key)),
            _ => false,
        };
        let mut kinds = self.grounds.reads.clone();
        if asked.described || asked.len == 0 {
            kinds.extend(&self.grounds.questions);
        }
        if explained {
            Ok(())
        } else {
            Grounds::explain_failure(&kinds, failure, closing)
        }
    }
}

/// The size of what the engine described. Of packed rows of a batch nothing tells it.
fn described_len(kind: &ObjectKind, buffer: Option<&Buffer>) -> u64 {
    match kind {
        ObjectKind::Tensor(spec) => spec.bytes(),
        ObjectKind::Packed => buffer.map_or(0, |buffer| buffer.len() as u64),
    }
}

fn has(failures: &[KeyFailure], kind: FaultKind) -> bool {
    failures.iter().any(|failure| failure.kind == kind)
}

fn index(len: u64) -> usize {
    usize::try_from(len).expect("a value of this suite is small")
}
