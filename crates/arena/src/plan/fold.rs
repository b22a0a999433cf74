//! The same key twice is fetched once.

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};
use std::hash::{BuildHasher, Hash};

/// Keys without their repetitions.
#[derive(Debug, PartialEq, Eq)]
pub struct Folded {
    /// Position of the first use of each distinct key, ascending.
    pub unique: Vec<u32>,
    /// For each position, the index into `unique` of its key.
    pub slot: Vec<u32>,
}

/// Folds equal keys, so that each is fetched once and delivered as often as it was asked for: an engine may report success for
/// both and write only one.
///
/// # Panics
/// When there are 2^31 keys or more.
pub fn fold_duplicates<K: Hash + Eq>(keys: &[K]) -> Folded {
    assert!(keys.len() < 1 << 31, "{} keys in one call", keys.len());
    let hashing = RandomState::default();
    // The table holds indices into `unique`.
    let mut table: HashTable<u32> = HashTable::with_capacity(keys.len());
    let mut unique: Vec<u32> = Vec::with_capacity(keys.len());
    let mut slot = Vec::with_capacity(keys.len());
    for (position, key) in (0_u32..).zip(keys) {
        let known = |index: &u32| &keys[unique[*index as usize] as usize];
        let found = table.entry(
            hashing.hash_one(key),
            |index| known(index) == key,
            |index| hashing.hash_one(known(index)),
        );
        let index = match found {
            Entry::Occupied(found) => *found.get(),
            Entry::Vacant(free) => {
                let index = u32::try_from(unique.len()).expect("fewer than 2^31 keys");
                free.insert(index);
                unique.push(position);
                index
            }
        };
        slot.push(index);
    }
    Folded { unique, slot }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::hash::Hasher;

    #[test]
    fn repetitions_point_to_the_first_use() {
        let table: [(&[&str], &[u32], &[u32]); 5] = [
            (&[], &[], &[]),
            (&["a"], &[0], &[0]),
            (&["a", "b", "c"], &[0, 1, 2], &[0, 1, 2]),
            (&["a", "a", "a"], &[0], &[0, 0, 0]),
            (&["", "b", "", "c", "b"], &[0, 1, 3], &[0, 1, 0, 2, 1]),
        ];
        for (keys, unique, slot) in table {
            assert_eq!(
                fold_duplicates(keys),
                Folded {
                    unique: unique.to_vec(),
                    slot: slot.to_vec()
                },
                "{keys:?}"
            );
        }
    }

    /// Hashes to nothing at all.
    #[derive(PartialEq, Eq)]
    struct Colliding(u32);

    impl Hash for Colliding {
        fn hash<H: Hasher>(&self, _: &mut H) {}
    }

    #[test]
    fn keys_with_the_same_hash_stay_apart() {
        let keys: Vec<_> = (0..100).chain(0..100).map(Colliding).collect();
        let folded = fold_duplicates(&keys);
        assert_eq!(folded.unique, (0..100).collect::<Vec<_>>());
        assert_eq!(folded.slot, (0..100).chain(0..100).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn folding_round_trips(keys in prop::collection::vec(prop::collection::vec(0_u8..3, 0..12), 0..200)) {
            let Folded { unique, slot } = fold_duplicates(&keys);
            prop_assert_eq!(slot.len(), keys.len());
            prop_assert!(unique.is_sorted_by(|one, other| one < other));
            for (key, &index) in keys.iter().zip(&slot) {
                prop_assert_eq!(key, &keys[unique[index as usize] as usize]);
            }
            let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
            prop_assert_eq!(unique.len(), distinct.len());
        }
    }
}
