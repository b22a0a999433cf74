//! Which calls or keys a decorator spoils.
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Which calls or keys are spoiled.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// Every key of the n-th call (from 1), and no other.
    Call(u64),
    /// These keys, in every call.
    Keys(HashSet<String>),
    /// Each key of each call with this probability (0 to 1), drawn anew each time: a retry may succeed.
    Chance {
        /// 0: never; 1: always.
        probability: f64,
        /// The same seed and the same order of calls give the same draws.
        seed: u64,
    },
}

impl Choice {
    /// These keys, in every call.
    pub fn keys<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self::Keys(keys.into_iter().map(Into::into).collect())
    }

    /// Every key of every call.
    pub fn always() -> Self {
        Self::Chance {
            probability: 1.0,
            seed: 0,
        }
    }

    /// No key of any call: the transparent setting.
    pub fn never() -> Self {
        Self::Chance {
            probability: 0.0,
            seed: 0,
        }
    }
}

/// A choice at work: counts calls and draws.
#[derive(Debug)]
pub(super) struct Chooser {
    choice: Choice,
    calls: AtomicU64,
    draws: AtomicU64,
}

impl Chooser {
    pub(super) fn new(choice: Choice) -> Self {
        Self {
            choice,
            calls: AtomicU64::new(0),
            draws: AtomicU64::new(0),
        }
    }

    /// One flag per key of one call.
    pub(super) fn choose<'k>(&self, keys: impl Iterator<Item = &'k str>) -> Vec<bool> {
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        keys.map(|key| match &self.choice {
            Choice::Call(chosen) => call == *chosen,
            Choice::Keys(chosen) => chosen.contains(key),
            Choice::Chance { probability, seed } => {
                let draw = self.draws.fetch_add(1, Relaxed);
                happens(*probability, splitmix64(splitmix64(*seed) ^ draw))
            }
        })
        .collect()
    }
}

/// Does an event of this probability happen, given one random number?
pub(super) fn happens(probability: f64, random: u64) -> bool {
    // 53 bits are what a double holds exactly: uniform in [0, 1), so that 0 never and 1 always happens.
    let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
    uniform < probability
}

/// One step of the splitmix64 generator: a good random number from any number.
pub(super) fn splitmix64(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(choice: Choice, calls: usize) -> Vec<Vec<bool>> {
        let chooser = Chooser::new(choice);
        (0..calls)
            .map(|_| chooser.choose(["a", "b", "c"].into_iter()))
            .collect()
    }

    #[test]
    fn the_nth_call_is_chosen_whole_and_alone() {
        let flags = chosen(Choice::Call(2), 3);
        assert_eq!(flags, [[false; 3], [true; 3], [false; 3]]);
    }

    #[test]
    fn named_keys_are_chosen_in_every_call() {
        let flags = chosen(Choice::keys(["b"]), 2);
        assert_eq!(flags, [[false, true, false]; 2]);
    }

    #[test]
    fn chance_is_repeatable_by_seed_and_near_its_probability() {
        let choice = |seed| Choice::Chance {
            probability: 0.25,
            seed,
        };
        assert_eq!(chosen(choice(7), 100), chosen(choice(7), 100));
        assert_ne!(chosen(choice(7), 100), chosen(choice(8), 100));
        let hits = chosen(choice(1), 4000).iter().flatten().filter(|&&hit| hit).count();
        assert!((2700..3300).contains(&hits), "{hits} of 12,000 at 0.25");
    }

    #[test]
    fn never_and_always_are_exact() {
        assert!(chosen(Choice::never(), 1000).iter().flatten().all(|&hit| !hit));
        assert!(chosen(Choice::always(), 1000).iter().flatten().all(|&hit| hit));
    }
}
