//! An engine whose calls fail.
use super::Choice;
use super::choice::Chooser;
use super::withheld::read_withholding;
use crate::forward;
use crate::{Capabilities, Engine, Fault, FaultKind, ReadOp, WriteOp};
use std::sync::Arc;

/// Which kinds of calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailOn {
    /// `read_batch`.
    pub reads: bool,
    /// `write_batch`.
    pub writes: bool,
    /// `remove_batch`.
    pub removes: bool,
}

impl FailOn {
    /// Reads, writes and removals.
    pub const ALL: Self = Self::of(true, true, true);
    /// Reads only.
    pub const READS: Self = Self::of(true, false, false);
    /// Writes only.
    pub const WRITES: Self = Self::of(false, true, false);
    /// Removals only.
    pub const REMOVES: Self = Self::of(false, false, true);

    const fn of(reads: bool, writes: bool, removes: bool) -> Self {
        Self { reads, writes, removes }
    }
}

/// Chosen keys fail with one kind of fault: their targets stay as they were, their objects are neither written nor removed.
///
/// Calls are counted over reads, writes and removals together, as far as they are to fail.
pub struct Failing {
    inner: Arc<dyn Engine>,
    capabilities: Capabilities,
    kind: FaultKind,
    on: FailOn,
    chooser: Chooser,
}

impl Failing {
    /// Faults carry this code, so that a test can tell them from the inner engine's.
    pub const CODE: i32 = -7001;

    /// Fails what `choice` picks of the calls in `on`. With `MayStillWrite` the capability `late_writes` is claimed, though
    /// nothing is ever written late.
    pub fn new(inner: Arc<dyn Engine>, kind: FaultKind, on: FailOn, choice: Choice) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.late_writes |= kind == FaultKind::MayStillWrite;
        Self {
            inner,
            capabilities,
            kind,
            on,
            chooser: Chooser::new(choice),
        }
    }

    fn fault(&self) -> Fault {
        Fault::new(self.kind, Self::CODE, "failed on purpose by a test")
    }

    /// `run` gets what is not chosen, in one call; the rest fails.
    fn without_chosen<O: Copy, T>(
        &self,
        ops: &[O],
        key: impl Fn(&O) -> &str,
        run: impl FnOnce(&[O]) -> Vec<Result<T, Fault>>,
    ) -> Vec<Result<T, Fault>> {
        let chosen = self.chooser.choose(ops.iter().map(key));
        let kept: Vec<O> = ops
            .iter()
            .zip(&chosen)
            .filter(|(_, hit)| !**hit)
            .map(|(op, _)| *op)
            .collect();
        let mut served = if kept.is_empty() { Vec::new() } else { run(&kept) }.into_iter();
        let one_each = "an engine returns one result per key";
        let result = |hit| {
            if hit {
                Err(self.fault())
            } else {
                served.next().expect(one_each)
            }
        };
        chosen.into_iter().map(result).collect()
    }
}

impl Engine for Failing {
    forward!(
        register,
        unregister,
        remove_prefix,
        contains_batch,
        describe_batch,
        asides,
        close
    );

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        if !self.on.reads {
            return self.inner.read_batch(reads);
        }
        let chosen = self.chooser.choose(reads.iter().map(|read| read.key));
        if !chosen.is_empty() && chosen.iter().all(|&hit| hit) {
            return chosen.iter().map(|_| Err(self.fault())).collect();
        }
        let results = read_withholding(&*self.inner, reads, |index| chosen[index].then_some(0));
        let spoil = |(result, hit): (Result<u64, Fault>, bool)| match result {
            // Nothing may hide that memory may still be written.
            Err(fault) if fault.kind == FaultKind::MayStillWrite => Err(fault),
            _ if hit => Err(self.fault()),
            result => result,
        };
        results.into_iter().zip(chosen).map(spoil).collect()
    }

    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        if !self.on.writes {
            return self.inner.write_batch(writes);
        }
        self.without_chosen(writes, |write| write.key, |kept| self.inner.write_batch(kept))
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        if !self.on.removes {
            return self.inner.remove_batch(keys);
        }
        self.without_chosen(keys, |key| *key, |kept| self.inner.remove_batch(kept))
    }
}
