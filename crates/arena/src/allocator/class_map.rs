//! Two-level bitmap of the size classes: finds the next class with a free range in a handful of instructions.

use crate::size_class::{CLASSES, MANTISSAS};

const EXPONENTS: usize = (CLASSES / MANTISSAS) as usize;

const _: () = assert!(EXPONENTS < u64::BITS as usize, "one word holds the upper level");
const _: () = assert!(MANTISSAS == u8::BITS, "one byte holds a leaf");

/// A set of classes.
#[derive(Clone, Debug)]
pub(super) struct ClassMap {
    /// Bit per exponent whose leaf is not empty.
    exponents: u64,
    leaves: [u8; EXPONENTS],
}

impl Default for ClassMap {
    fn default() -> Self {
        Self {
            exponents: 0,
            leaves: [0; EXPONENTS],
        }
    }
}

impl ClassMap {
    pub(super) fn insert(&mut self, class: u32) {
        let exponent = class / MANTISSAS;
        self.leaves[exponent as usize] |= 1 << (class % MANTISSAS);
        self.exponents |= 1 << exponent;
    }

    pub(super) fn remove(&mut self, class: u32) {
        let exponent = class / MANTISSAS;
        let leaf = &mut self.leaves[exponent as usize];
        debug_assert!(*leaf & (1 << (class % MANTISSAS)) != 0);
        *leaf &= !(1 << (class % MANTISSAS));
        if *leaf == 0 {
            self.exponents &= !(1 << exponent);
        }
    }

    /// Smallest class of the set that is at least `class`.
    pub(super) fn first_from(&self, class: u32) -> Option<u32> {
        let exponent = class / MANTISSAS;
        let leaf = self.leaves.get(exponent as usize)? & (u8::MAX << (class % MANTISSAS));
        if leaf != 0 {
            return Some(exponent * MANTISSAS + leaf.trailing_zeros());
        }
        let above = self.exponents & (u64::MAX << (exponent + 1));
        if above == 0 {
            return None;
        }
        let exponent = above.trailing_zeros();
        let leaf = self.leaves[exponent as usize];
        debug_assert_ne!(leaf, 0, "both levels agree");
        Some(exponent * MANTISSAS + leaf.trailing_zeros())
    }

    /// Largest class of the set.
    pub(super) fn last(&self) -> Option<u32> {
        let exponent = self.exponents.checked_ilog2()?;
        let leaf = self.leaves[exponent as usize];
        debug_assert_ne!(leaf, 0, "both levels agree");
        Some(exponent * MANTISSAS + leaf.ilog2())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_answers_like_an_ordered_set(steps in prop::collection::vec((any::<bool>(), 0..CLASSES), 0..200), from in 0..=CLASSES) {
            let mut map = ClassMap::default();
            let mut set = BTreeSet::new();
            for (insert, class) in steps {
                if insert {
                    map.insert(class);
                    set.insert(class);
                } else if set.remove(&class) {
                    map.remove(class);
                }
                prop_assert_eq!(map.first_from(from), set.range(from..).next().copied());
                prop_assert_eq!(map.first_from(class), set.range(class..).next().copied());
                prop_assert_eq!(map.last(), set.last().copied());
            }
        }
    }
}
