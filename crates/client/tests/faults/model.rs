//! What a store may show: for each key the writes so far, when they ran, and whether they surely took effect.
//!
//! Calls are ordered by a clock that ticks when a call begins and when it ends. A write may take effect at any moment in
//! between; one that failed may have taken effect or not; one that was given up may still take effect later.

use crate::value::Value;
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// A moment on the model's clock.
pub(crate) type Moment = u64;

/// The end of what has not ended.
const NEVER: Moment = u64::MAX;

/// From when to when a call ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from: Moment,
    pub(crate) to: Moment,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It took effect.
    Done,
    /// It took effect or not, and is over.
    Failed,
    /// It took effect, or will at any time, or never.
    GivenUp,
    /// It was refused before anything happened.
    Refused,
}

#[derive(Clone, Debug)]
struct Write {
    from: Moment,
    to: Moment,
    /// `None`: a removal.
    value: Option<Value>,
    sure: bool,
    refused: bool,
    /// A failed replace may have cost the old value.
    may_lose: bool,
}

/// All keys of a program.
#[derive(Debug)]
pub(crate) struct Model {
    clock: AtomicU64,
    keys: Vec<Mutex<Vec<Write>>>,
    /// After a failed replace the old value is still there.
    describes: bool,
}

/// A write that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    key: usize,
    at: usize,
}

/// What a key may have shown during a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Possible {
    pub(crate) values: Vec<Value>,
    pub(crate) absent: bool,
}

impl Model {
    /// Keys without values.
    pub(crate) fn new(keys: usize, describes: bool) -> Self {
        let model = Self {
            clock: AtomicU64::new(1),
            keys: (0..keys).map(|_| Mutex::default()).collect(),
            describes,
        };
        for key in 0..keys {
            let begun = model.begin(key, None);
            model.end(begun, Outcome::Done);
        }
        model
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.fetch_add(1, SeqCst)
    }

    /// A put (or, without a value, a removal) of this key begins.
    pub(crate) fn begin(&self, key: usize, value: Option<Value>) -> Begun {
        let mut writes = self.writes(key);
        writes.push(Write {
            from: self.now(),
            to: NEVER,
            value,
            sure: false,
            refused: false,
            may_lose: false,
        });
        Begun {
            key,
            at: writes.len() - 1,
        }
    }

    pub(crate) fn end(&self, begun: Begun, outcome: Outcome) {
        let now = self.now();
        let mut writes = self.writes(begun.key);
        let write = &mut writes[begun.at];
        write.sure = outcome == Outcome::Done;
        write.refused = outcome == Outcome::Refused;
        write.may_lose = !self.describes && !write.sure;
        if outcome != Outcome::GivenUp {
            write.to = now;
        }
    }

    /// What a call that ran from `span.from` to `span.to` may have seen under this key.
    pub(crate) fn possible(&self, key: usize, span: Span) -> Possible {
        self.possible_beside(key, span, None)
    }

    /// The same without what one write itself did: what it may have found.
    pub(crate) fn possible_beside(&self, key: usize, span: Span, own: Option<Begun>) -> Possible {
        let writes = self.writes(key);
        let own = own.map(|own| own.at);
        let mut possible = Possible::default();
        for (at, write) in writes.iter().enumerate() {
            let replaced = |other: &Write| other.sure && write.to <= other.from && other.to <= span.from;
            if Some(at) == own || write.refused || span.to < write.from || writes.iter().any(replaced) {
                continue;
            }
            possible.absent |= write.value.is_none() || write.may_lose;
            possible.values.extend(write.value.clone());
        }
        possible
    }

    fn writes(&self, key: usize) -> MutexGuard<'_, Vec<Write>> {
        self.keys[key].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The model's own rules, checked on small histories.
pub(crate) mod rules {
    use super::{Model, Outcome, Span};
    use crate::value::{Shape, Value};
    use std::sync::Arc;

    fn value(number: u64) -> Value {
        Value::new(&Shape::Packed(8), number)
    }

    fn seen(model: &Model, span: Span) -> (Vec<u64>, bool) {
        let possible = model.possible(0, span);
        let numbers = [1, 2, 3].map(value);
        let number = |value: &Value| numbers.iter().position(|known| Arc::clone(&known.bytes) == value.bytes);
        let seen = possible.values.iter().filter_map(number).map(|at| at as u64 + 1);
        (seen.collect(), possible.absent)
    }

    fn now(model: &Model) -> Span {
        Span {
            from: model.now(),
            to: model.now(),
        }
    }

    pub(crate) fn a_value_that_was_stored_is_all_that_may_be_seen() {
        let model = Model::new(1, true);
        assert_eq!(seen(&model, now(&model)), (vec![], true));
        model.end(model.begin(0, Some(value(1))), Outcome::Done);
        assert_eq!(seen(&model, now(&model)), (vec![1], false));
        model.end(model.begin(0, Some(value(2))), Outcome::Done);
        assert_eq!(seen(&model, now(&model)), (vec![2], false));
        model.end(model.begin(0, None), Outcome::Done);
        assert_eq!(seen(&model, now(&model)), (vec![], true));
    }

    pub(crate) fn beside_a_running_write_the_old_and_the_new_value_may_be_seen() {
        let model = Model::new(1, true);
        model.end(model.begin(0, Some(value(1))), Outcome::Done);
        let early = model.now();
        let second = model.begin(0, Some(value(2)));
        let before = Span { from: early, to: early };
        assert_eq!(seen(&model, now(&model)), (vec![1, 2], false));
        model.end(second, Outcome::Done);
        assert_eq!(seen(&model, before), (vec![1], false));
        let across = Span {
            from: early,
            to: model.now(),
        };
        assert_eq!(seen(&model, across), (vec![1, 2], false));
    }

    pub(crate) fn a_failed_write_may_have_happened_until_the_next_one_is_done() {
        for (describes, may_be_lost) in [(true, false), (false, true)] {
            let model = Model::new(1, describes);
            model.end(model.begin(0, Some(value(1))), Outcome::Done);
            model.end(model.begin(0, Some(value(2))), Outcome::Failed);
            assert_eq!(seen(&model, now(&model)), (vec![1, 2], may_be_lost));
            model.end(model.begin(0, Some(value(3))), Outcome::Done);
            assert_eq!(seen(&model, now(&model)), (vec![3], false));
        }
    }

    pub(crate) fn a_write_that_was_given_up_may_happen_at_any_time() {
        let model = Model::new(1, true);
        model.end(model.begin(0, Some(value(1))), Outcome::GivenUp);
        model.end(model.begin(0, Some(value(2))), Outcome::Done);
        assert_eq!(seen(&model, now(&model)), (vec![1, 2], false));
        model.end(model.begin(0, Some(value(3))), Outcome::Refused);
        assert_eq!(seen(&model, now(&model)), (vec![1, 2], false));
    }
}
