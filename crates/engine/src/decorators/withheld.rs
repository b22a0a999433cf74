//! Reads some of which leave no trace.
use crate::{Engine, Fault, ReadOp};
use tensorlease_memory::{CopyMode, Source, copy};

/// Runs one call on `inner` and then puts back what stood in the targets before, from byte `keep(index)` on; `None` keeps
/// all that was read.
///
/// A shorter call would be the plain way, but it can't be made from borrowed targets, and cutting the call into pieces would
/// change how often the inner engine is called.
pub(super) fn read_withholding(
    inner: &dyn Engine,
    reads: &[ReadOp<'_>],
    keep: impl Fn(usize) -> Option<usize>,
) -> Vec<Result<u64, Fault>> {
    let before: Vec<Option<(usize, Vec<u8>)>> = (0..reads.len())
        .map(|index| keep(index).map(|kept| (kept, reads[index].target.as_source().to_vec())))
        .collect();
    let results = inner.read_batch(reads);
    for ((read, before), result) in reads.iter().zip(before).zip(&results) {
        // Where the inner engine failed the memory is its affair.
        if let (Some((kept, mut bytes)), Ok(_)) = (before, result) {
            bytes[..kept].copy_from_slice(&read.target.as_source().slice(0..kept).to_vec());
            copy(Source::from(bytes.as_slice()), &read.target, CopyMode::Cached);
        }
    }
    results
}
