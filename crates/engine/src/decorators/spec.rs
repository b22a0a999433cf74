//! Decorators from a text, for tests that only have a URL.
use super::{Choice, FailOn, Failing, Hanging, KeyLosing, LateWriting, ShortReading, Slow};
use crate::{Engine, FaultKind};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Why a text names no decorators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No decorator of that name.
    #[error("unknown fault `{name}`; known: slow, hang, fail, short, late, lose")]
    UnknownFault {
        /// What was given.
        name: String,
    },
    /// A part is missing, wrong or too many.
    #[error("`{part}` in `{fault}` is not {wanted}")]
    Part {
        /// The fault that it belongs to, as given.
        fault: String,
        /// What was given; empty where it is missing.
        part: String,
        /// What is allowed there.
        wanted: &'static str,
    },
}

/// Wraps `inner` in the decorators that `spec` names, the first one innermost, joined by `+`:
///
/// | text | decorator |
/// |---|---|
/// | `slow:50ms` | [`Slow`]: every call pauses (`us`, `ms` or `s`) |
/// | `hang:5s` | [`Hanging`]: every registration takes so long |
/// | `hang:5s:call2` | the same, but exactly the second registration |
/// | `fail:transient:0.1:seed7` | [`Failing`]: reads, writes and removals of a key fail with this probability |
/// | `fail:full:call3` | the same, but exactly the third call |
/// | `short:0.05:seed1` | [`ShortReading`] |
/// | `late:200ms:0.5:seed3` | [`LateWriting`] |
/// | `lose:0.01:seed2` | [`KeyLosing`] |
///
/// The seed may be left out (0). Kinds of `fail`: `notfound`, `mismatch`, `nohandle`, `noloan`, `expired`, `full`, `transient`,
/// `maystillwrite`, `unregistered`, `unavailable`, `refused`.
///
/// # Errors
/// [`SpecError`] names the part that can't be read and what is allowed there.
///
/// ```
/// # use std::sync::Arc;
/// # use tensorlease_engine::{Embedded, EmbeddedOptions, Engine, decorators::from_spec};
/// let store = Arc::new(Embedded::new(&EmbeddedOptions { capacity_bytes: 1 << 20, pinned: false })?);
/// let engine = from_spec("fail:transient:0.1:seed7+slow:1ms", store)?;
/// assert_eq!(engine.contains_batch(&["key"]), [Ok(false)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn from_spec(spec: &str, inner: Arc<dyn Engine>) -> Result<Arc<dyn Engine>, SpecError> {
    spec.split('+').try_fold(inner, |inner, fault| decorate(fault, inner))
}

fn decorate(fault: &str, inner: Arc<dyn Engine>) -> Result<Arc<dyn Engine>, SpecError> {
    let mut parts = Parts {
        fault,
        rest: fault.split(':'),
    };
    let engine: Arc<dyn Engine> = match parts.rest.next().unwrap_or_default() {
        "slow" => Arc::new(Slow::new(inner, parts.duration()?)),
        "hang" => Arc::new(Hanging::new(inner, parts.duration()?, parts.call()?)),
        "fail" => Arc::new(Failing::new(inner, parts.kind()?, FailOn::ALL, parts.choice()?)),
        "short" => Arc::new(ShortReading::new(inner, parts.choice()?)),
        "late" => Arc::new(LateWriting::new(inner, parts.duration()?, parts.choice()?)),
        "lose" => Arc::new(KeyLosing::new(inner, parts.probability()?, parts.seed()?)),
        name => return Err(SpecError::UnknownFault { name: name.to_owned() }),
    };
    match parts.rest.next() {
        None => Ok(engine),
        Some(part) => Err(parts.wrong(part, "expected; there are too many parts")),
    }
}

struct Parts<'a> {
    fault: &'a str,
    rest: std::str::Split<'a, char>,
}

impl<'a> Parts<'a> {
    fn wrong(&self, part: &str, wanted: &'static str) -> SpecError {
        SpecError::Part {
            fault: self.fault.to_owned(),
            part: part.to_owned(),
            wanted,
        }
    }

    fn next(&mut self) -> &'a str {
        self.rest.next().unwrap_or_default()
    }

    fn duration(&mut self) -> Result<Duration, SpecError> {
        let part = self.next();
        let digits = part.trim_end_matches(|unit: char| unit.is_ascii_lowercase());
        let of_unit: fn(u64) -> Duration = match &part[digits.len()..] {
            "us" => Duration::from_micros,
            "ms" => Duration::from_millis,
            "s" => Duration::from_secs,
            _ => return Err(self.wrong(part, "a duration such as 50ms (us, ms or s)")),
        };
        let number = u32::from_str(digits).map_err(|_| self.wrong(part, "a duration such as 50ms (us, ms or s)"))?;
        Ok(of_unit(number.into()))
    }

    fn kind(&mut self) -> Result<FaultKind, SpecError> {
        Ok(match self.next() {
            "notfound" => FaultKind::NotFound,
            "mismatch" => FaultKind::Mismatch,
            "nohandle" => FaultKind::NoHandle,
            "noloan" => FaultKind::NoLoan,
            "expired" => FaultKind::Expired,
            "full" => FaultKind::Full,
            "transient" => FaultKind::Transient,
            "maystillwrite" => FaultKind::MayStillWrite,
            "unregistered" => FaultKind::Unregistered,
            "unavailable" => FaultKind::Unavailable,
            "refused" => FaultKind::Refused,
            part => {
                let kinds = "a kind: notfound, mismatch, nohandle, noloan, expired, full, transient, maystillwrite, \
                             unregistered, unavailable or refused";
                return Err(self.wrong(part, kinds));
            }
        })
    }

    fn choice(&mut self) -> Result<Choice, SpecError> {
        if let Some(number) = self.call()? {
            return Ok(Choice::Call(number));
        }
        Ok(Choice::Chance {
            probability: self.probability()?,
            seed: self.seed()?,
        })
    }

    fn call(&mut self) -> Result<Option<u64>, SpecError> {
        let part = self.rest.clone().next().unwrap_or_default();
        let Some(call) = part.strip_prefix("call") else {
            return Ok(None);
        };
        let number = u64::from_str(call).ok().filter(|&number| number > 0);
        let number = number.ok_or_else(|| self.wrong(part, "a call counted from 1, such as call3"))?;
        self.next();
        Ok(Some(number))
    }

    fn probability(&mut self) -> Result<f64, SpecError> {
        let part = self.next();
        let probability = f64::from_str(part).ok().filter(|number| (0.0..=1.0).contains(number));
        probability.ok_or_else(|| self.wrong(part, "a probability from 0 to 1"))
    }

    fn seed(&mut self) -> Result<u64, SpecError> {
        let Some(part) = self.rest.next() else {
            return Ok(0);
        };
        let seed = part.strip_prefix("seed").and_then(|number| u64::from_str(number).ok());
        seed.ok_or_else(|| self.wrong(part, "a seed such as seed7"))
    }
}
