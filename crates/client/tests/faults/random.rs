//! Random numbers from a seed: a program is the same wherever it is made.

/// The splitmix64 generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `bound` - 1. The bias of a remainder is of no account for bounds this small.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A place in a list of this length.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a length that is a usize")
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        // 53 bits are what a double holds exactly.
        let uniform = (self.number() >> 11) as f64 / (1_u64 << 53) as f64;
        uniform < probability
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())].clone()
    }

    /// `count` different places in a list of `len`, or all where there are fewer.
    pub(crate) fn places(&mut self, count: usize, len: usize) -> Vec<usize> {
        let mut places: Vec<usize> = (0..len).collect();
        let count = count.min(len);
        for at in 0..count {
            let other = at + self.index(len - at);
            places.swap(at, other);
        }
        places.truncate(count);
        places
    }
}
