//! A cheap hasher for the keys of one call, where nobody gains from making keys collide.

use std::hash::Hasher;

/// Arbitrary odd factor with about half of its bits set.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Start value; not 0, so that leading zero words count.
const START: u64 = 0xd1b5_4a32_d192_ed03;

/// Multiplies each word in and folds the upper half of the product onto the lower, so that every bit of the key reaches both
/// the place and the tag of the table.
pub(super) struct KeyHasher(u64);

impl Default for KeyHasher {
    fn default() -> Self {
        Self(START)
    }
}

impl KeyHasher {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "takes the two halves of the product apart"
    )]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        // The old state is added because a product of 0 would forget it.
        self.0 = ((product as u64) ^ ((product >> 64) as u64)).wrapping_add(self.0.rotate_left(23));
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.mix(u64::from_le_bytes(word.try_into().expect("8 bytes")));
        }
        let rest = words.remainder();
        if !rest.is_empty() {
            // The length goes in with the rest, in the byte that a rest never fills.
            let tail = rest
                .iter()
                .rev()
                .fold(rest.len() as u64, |tail, &byte| (tail << 8) | u64::from(byte));
            self.mix(tail);
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.mix(u64::from(byte));
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    fn finish(&self) -> u64 {
        // One more round: the last word has gone through a single multiplication only.
        let mut last = Self(self.0);
        last.mix(START);
        last.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::Hash;

    fn hash(key: &str) -> u64 {
        let mut hasher = KeyHasher::default();
        key.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn keys_that_differ_in_one_digit_spread_over_places_and_tags() {
        let keys: Vec<_> = (0..1 << 14)
            .map(|number| format!("rollout/step_{number:08}/input_ids"))
            .collect();
        let places: HashSet<_> = keys.iter().map(|key| hash(key) & 0x7fff).collect();
        let tags: HashSet<_> = keys.iter().map(|key| hash(key) >> 32).collect();
        // A random function reaches 0.787 of half as many places, and repeats no tag to speak of.
        assert!(places.len() > 12_000, "{} places", places.len());
        assert!(tags.len() > 16_300, "{} tags", tags.len());
    }

    #[test]
    fn trailing_zeros_count() {
        let hashes: HashSet<_> = (0..40)
            .map(|len| {
                let mut hasher = KeyHasher::default();
                hasher.write(&vec![0; len]);
                hasher.finish()
            })
            .collect();
        assert_eq!(hashes.len(), 40);
    }
}
