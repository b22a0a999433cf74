//! Which memory Mooncake knows: what its transport would refuse is refused here, and reported as what it is.
use std::collections::BTreeMap;

/// Registered regions, address to length. They don't overlap.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    regions: BTreeMap<usize, usize>,
}

impl Registrations {
    /// Does the region overlap one that is registered?
    pub(super) fn overlaps(&self, addr: usize, len: usize) -> bool {
        let end = addr.saturating_add(len);
        let before = self.regions.range(..end).next_back();
        before.is_some_and(|(start, held)| addr < start + held)
    }

    /// Does one registration hold all of the region?
    pub(super) fn contains(&self, addr: usize, len: usize) -> bool {
        let before = self.regions.range(..=addr).next_back();
        before.is_some_and(|(start, held)| addr.saturating_add(len) <= start + held)
    }

    pub(super) fn insert(&mut self, addr: usize, len: usize) {
        self.regions.insert(addr, len);
    }

    /// Forgets exactly this region; `false`: there is none.
    pub(super) fn remove(&mut self, addr: usize, len: usize) -> bool {
        if self.regions.get(&addr) != Some(&len) {
            return false;
        }
        self.regions.remove(&addr);
        true
    }

    pub(super) fn bytes(&self) -> u64 {
        self.regions.values().map(|len| *len as u64).sum()
    }

    pub(super) fn clear(&mut self) {
        self.regions.clear();
    }
}
