//! Address ranges that don't overlap: what a transport knows, for example.

use crate::Region;
use std::collections::BTreeMap;

/// Regions by their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSet {
    /// Address to length.
    regions: BTreeMap<usize, usize>,
}

impl RegionSet {
    /// Does the region share a byte with one of them?
    pub fn overlaps(&self, region: Region) -> bool {
        let before = self.regions.range(..region.end()).next_back();
        before.is_some_and(|(addr, len)| region.addr < addr + len)
    }

    /// Does one of them hold all of the region?
    pub fn contains(&self, region: Region) -> bool {
        let before = self.regions.range(..=region.addr).next_back();
        before.is_some_and(|(addr, len)| Region { addr: *addr, len: *len }.contains(region))
    }

    /// Adds one; the caller has seen that it overlaps none.
    pub fn insert(&mut self, region: Region) {
        self.regions.insert(region.addr, region.len);
    }

    /// Forgets exactly this region; `false`: it is none of them.
    pub fn remove(&mut self, region: Region) -> bool {
        let known = self.regions.get(&region.addr) == Some(&region.len);
        if known {
            self.regions.remove(&region.addr);
        }
        known
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.regions.values().map(|len| *len as u64).sum()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.regions.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn region(addr: usize, len: usize) -> Region {
        Region { addr, len }
    }

    #[test]
    fn neighbours_neither_overlap_nor_hold_what_lies_across_them() {
        let mut set = RegionSet::default();
        set.insert(region(1000, 100));
        set.insert(region(1100, 100));
        assert!(set.overlaps(region(1199, 1)) && set.overlaps(region(900, 101)));
        assert!(!set.overlaps(region(1200, 5)) && !set.overlaps(region(900, 100)));
        assert!(set.contains(region(1000, 100)) && set.contains(region(1150, 50)));
        assert!(!set.contains(region(1050, 100)) && !set.contains(region(usize::MAX, 5)));
        assert_eq!((set.len(), set.bytes()), (2, 200));
    }

    #[test]
    fn only_a_region_that_is_known_is_forgotten() {
        let mut set = RegionSet::default();
        set.insert(region(1000, 100));
        assert!(!set.remove(region(1000, 99)) && !set.remove(region(1001, 99)));
        assert!(set.remove(region(1000, 100)) && !set.remove(region(1000, 100)));
        assert!(set.is_empty());
        set.insert(region(7, 1));
        set.clear();
        assert_eq!(set, RegionSet::default());
    }
}
