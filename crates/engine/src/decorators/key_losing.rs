//! An engine that loses objects.
use super::choice::{happens, splitmix64};
use super::withheld::read_withholding;
use crate::forward;
use crate::{Engine, Fault, FaultKind, ObjectInfo, ReadOp};
use std::sync::Arc;

/// Some keys vanish as soon as they are written: they read as `NotFound`, are not contained, and have no description.
///
/// Whether a key vanishes depends on the key and the seed only, so it stays lost.
pub struct KeyLosing {
    inner: Arc<dyn Engine>,
    probability: f64,
    seed: u64,
}

impl KeyLosing {
    /// Loses each key with this probability (0 to 1).
    pub fn new(inner: Arc<dyn Engine>, probability: f64, seed: u64) -> Self {
        Self {
            inner,
            probability,
            seed,
        }
    }

    /// Is this key lost? For tests that need to know.
    pub fn loses(&self, key: &str) -> bool {
        let mix = |hash: u64, byte: u8| splitmix64(hash ^ u64::from(byte));
        happens(self.probability, key.bytes().fold(splitmix64(self.seed), mix))
    }
}

impl Engine for KeyLosing {
    forward!(
        capabilities,
        register,
        unregister,
        write_batch,
        remove_prefix,
        asides,
        close
    );

    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        let lost: Vec<bool> = reads.iter().map(|read| self.loses(read.key)).collect();
        let results = read_withholding(&*self.inner, reads, |index| lost[index].then_some(0));
        let lose = |(result, lost): (Result<u64, Fault>, bool)| {
            // A fault of the whole engine comes first: a closed engine does not know what it lost.
            let found = result?;
            if lost {
                Err(Fault::new(
                    FaultKind::NotFound,
                    0,
                    "no such object (lost on purpose by a test)",
                ))
            } else {
                Ok(found)
            }
        };
        results.into_iter().zip(lost).map(lose).collect()
    }

    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        let found = self.inner.remove_batch(keys).into_iter().zip(keys);
        found.map(|(found, key)| Ok(found? && !self.loses(key))).collect()
    }

    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>> {
        let found = self.inner.contains_batch(keys).into_iter().zip(keys);
        found.map(|(found, key)| Ok(found? && !self.loses(key))).collect()
    }

    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>> {
        let found = self.inner.describe_batch(keys).into_iter().zip(keys);
        found
            .map(|(found, key)| Ok(found?.filter(|_| !self.loses(key))))
            .collect()
    }
}
