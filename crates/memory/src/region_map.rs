//! Address ranges that don't overlap, with what is known of each.

use crate::Region;
use std::collections::BTreeMap;

/// What is known of regions, by their addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionMap<V = ()> {
    /// Address to length and value.
    regions: BTreeMap<usize, (usize, V)>,
}

impl<V> Default for RegionMap<V> {
    fn default() -> Self {
        Self {
            regions: BTreeMap::new(),
        }
    }
}

impl<V> RegionMap<V> {
    /// Does the region share a byte with one of them?
    pub fn overlaps(&self, region: Region) -> bool {
        let before = self.regions.range(..region.end()).next_back();
        before.is_some_and(|(addr, (len, _))| region.addr < addr + len)
    }

    /// The one that holds all of the region.
    pub fn find(&self, region: Region) -> Option<(Region, &V)> {
        let (&addr, (len, value)) = self.regions.range(..=region.addr).next_back()?;
        let known = Region { addr, len: *len };
        known.contains(region).then_some((known, value))
    }

    /// Does one of them hold all of the region?
    pub fn contains(&self, region: Region) -> bool {
        self.find(region).is_some()
    }

    /// Adds one; the caller has seen that it overlaps none.
    pub fn insert(&mut self, region: Region, value: V) {
        self.regions.insert(region.addr, (region.len, value));
    }

    /// Forgets exactly this region; `None`: it is none of them.
    pub fn remove(&mut self, region: Region) -> Option<V> {
        let known = self
            .regions
            .get(&region.addr)
            .is_some_and(|(len, _)| *len == region.len);
        known
            .then(|| self.regions.remove(&region.addr))?
            .map(|(_, value)| value)
    }

    /// All of them, by address.
    pub fn iter(&self) -> impl Iterator<Item = (Region, &V)> {
        let each = self.regions.iter();
        each.map(|(&addr, (len, value))| (Region { addr, len: *len }, value))
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.regions.values().map(|(len, _)| *len as u64).sum()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.regions.len()
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
        let mut map = RegionMap::default();
        map.insert(region(1000, 100), 'a');
        map.insert(region(1100, 100), 'b');
        assert!(map.overlaps(region(1199, 1)) && map.overlaps(region(900, 101)));
        assert!(!map.overlaps(region(1200, 5)) && !map.overlaps(region(900, 100)));
        assert!(map.contains(region(1000, 100)));
        assert_eq!(map.find(region(1150, 50)), Some((region(1100, 100), &'b')));
        assert!(!map.contains(region(1050, 100)) && !map.contains(region(usize::MAX, 5)));
        assert_eq!((map.len(), map.bytes()), (2, 200));
        let each: Vec<_> = map.iter().map(|(region, value)| (region.addr, *value)).collect();
        assert_eq!(each, [(1000, 'a'), (1100, 'b')]);
    }

    #[test]
    fn only_a_region_that_is_known_is_forgotten() {
        let mut map = RegionMap::default();
        map.insert(region(1000, 100), 7);
        assert_eq!(
            (map.remove(region(1000, 99)), map.remove(region(1001, 99))),
            (None, None)
        );
        assert_eq!(map.remove(region(1000, 100)), Some(7));
        assert_eq!(map.remove(region(1000, 100)), None);
        assert_eq!(map.len(), 0);
        map.insert(region(7, 1), 1);
        map.clear();
        assert_eq!(map, RegionMap::default());
    }
}
