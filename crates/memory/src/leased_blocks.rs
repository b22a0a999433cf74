//! Which leased block does an address lie in? A write uses memory of the arena in place.

use crate::{Region, RegionMap};

/// The leased blocks of a pool. The index by address is made at the first question and kept from then on: a process that
/// only reads never pays for it.
#[derive(Debug, Default)]
pub(crate) struct LeasedBlocks {
    by_index: Vec<Option<Region>>,
    by_address: Option<RegionMap>,
}

impl LeasedBlocks {
    pub(crate) fn insert(&mut self, index: u32, region: Region) {
        let index = index as usize;
        if index >= self.by_index.len() {
            self.by_index.resize(index + 1, None);
        }
        self.by_index[index] = Some(region);
        if let Some(by_address) = &mut self.by_address {
            by_address.insert(region, ());
        }
    }

    /// The block with this index is free again; it may not have been leased at all.
    pub(crate) fn remove(&mut self, index: u32) {
        let Some(region) = self.by_index.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        if let Some(by_address) = &mut self.by_address {
            by_address.remove(region);
        }
    }

    pub(crate) fn contains(&mut self, region: Region) -> bool {
        let by_address = self.by_address.get_or_insert_with(|| {
            let mut leased = RegionMap::default();
            self.by_index
                .iter()
                .flatten()
                .for_each(|block| leased.insert(*block, ()));
            leased
        });
        by_address.contains(region)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn region(addr: usize, len: usize) -> Region {
        Region { addr, len }
    }

    #[test]
    fn a_range_inside_one_block_is_found_before_and_after_the_index_exists() {
        let mut leased = LeasedBlocks::default();
        leased.insert(3, region(1000, 64));
        leased.insert(0, region(1064, 64));
        assert!(leased.contains(region(1000, 64)));
        leased.insert(7, region(5000, 10));
        for inside in [region(1010, 20), region(1064, 64), region(5000, 10), region(5009, 1)] {
            assert!(leased.contains(inside), "{inside:?}");
        }
        for outside in [
            region(999, 2),
            region(1060, 8),
            region(1128, 1),
            region(5000, 11),
            region(0, 1),
        ] {
            assert!(!leased.contains(outside), "{outside:?}");
        }
    }

    #[test]
    fn a_removed_block_is_found_no_more() {
        let mut leased = LeasedBlocks::default();
        leased.insert(0, region(1000, 64));
        leased.insert(1, region(2000, 64));
        leased.remove(0);
        assert!(!leased.contains(region(1000, 1)));
        leased.remove(1);
        leased.remove(1);
        leased.remove(99);
        assert!(!leased.contains(region(2000, 1)));
    }
}
