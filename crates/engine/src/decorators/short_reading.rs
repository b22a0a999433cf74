//! An engine that reads fewer bytes than asked.
use super::Choice;
use super::choice::Chooser;
use super::withheld::read_withholding;
use crate::forward;
use crate::{Engine, Fault, ReadOp};
use std::sync::Arc;

/// Chosen reads write only the first half of their target (of one byte: nothing) and say so: `Ok` of fewer bytes.
///
/// The rest of the target stays as it was: a client that hands it out hands out old bytes.
pub struct ShortReading {
    inner: Arc<dyn Engine>,
    chooser: Chooser,
}

impl ShortReading {
    /// Cuts the reads that `choice` picks.
    pub fn new(inner: Arc<dyn Engine>, choice: Choice) -> Self {
        Self {
            inner,
            chooser: Chooser::new(choice),
        }
    }
}

impl Engine for ShortReading {
    forward!(
        capabilities,
        register,
        unregister,
        write_batch,
        remove_batch,
        remove_prefix
    );
    forward!(contains_batch, describe_batch, asides, close);

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        let chosen = self.chooser.choose(reads.iter().map(|read| read.key));
        let short = |index: usize| chosen[index].then(|| reads[index].target.len() / 2);
        let results = read_withholding(&*self.inner, reads, short);
        let cut = |(index, result): (usize, Result<u64, Fault>)| match short(index) {
            Some(kept) => result.map(|read| read.min(kept as u64)),
            None => result,
        };
        results.into_iter().enumerate().map(cut).collect()
    }
}
