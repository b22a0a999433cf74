//! Memory that the daemon's engine may move bytes in and out of: extents, and what the client registered.
use crate::lock::lock;
use crate::wire::Span;
use std::sync::Mutex;
use tensorlease_engine::RegisterError;
use tensorlease_memory::{Region, RegionMap};

/// Extents that this client has, by their addresses here.
#[derive(Debug, Default)]
pub(super) struct LentExtents {
    /// With the ticket of each.
    extents: Mutex<RegionMap<u64>>,
}

impl LentExtents {
    pub(super) fn add(&self, region: Region, ticket: u64) {
        lock(&self.extents).insert(region, ticket);
    }

    pub(super) fn remove(&self, region: Region) {
        lock(&self.extents).remove(region);
    }

    /// The region as the daemon knows it. None: it is not inside one extent.
    pub(super) fn span(&self, region: Region) -> Option<Span> {
        let extents = lock(&self.extents);
        let (extent, ticket) = extents.find(region)?;
        Some(Span {
            ticket: *ticket,
            offset: (region.addr - extent.addr) as u64,
            len: region.len as u64,
        })
    }
}

/// Regions that the client registered. No message is sent for them: the daemon's memory is registered already, and
/// other memory is staged in it.
#[derive(Debug, Default)]
pub(super) struct Registered {
    regions: Mutex<RegionMap>,
}

impl Registered {
    pub(super) fn register(&self, region: Region, limit: u64) -> Result<(), RegisterError> {
        if limit < region.len as u64 {
            return Err(RegisterError::TooLarge { len: region.len, limit });
        }
        let mut regions = lock(&self.regions);
        if regions.overlaps(region) {
            return Err(RegisterError::Overlap { addr: region.addr });
        }
        regions.insert(region, ());
        Ok(())
    }

    pub(super) fn unregister(&self, region: Region) -> Result<(), RegisterError> {
        let known = lock(&self.regions).remove(region);
        known.ok_or(RegisterError::Unknown { addr: region.addr })
    }

    /// Does one registration hold all of the region?
    pub(super) fn contains(&self, region: Region) -> bool {
        lock(&self.regions).contains(region)
    }

    pub(super) fn bytes(&self) -> u64 {
        lock(&self.regions).bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(addr: usize, len: usize) -> Region {
        Region { addr, len }
    }

    #[test]
    fn a_region_is_named_by_the_extent_that_holds_all_of_it() {
        let lent = LentExtents::default();
        lent.add(region(1000, 100), 7);
        lent.add(region(1100, 100), 8);
        let span = |addr, len| {
            lent.span(region(addr, len))
                .map(|span| (span.ticket, span.offset, span.len))
        };
        assert_eq!(span(1000, 100), Some((7, 0, 100)));
        assert_eq!(span(1150, 50), Some((8, 50, 50)));
        assert_eq!(span(1050, 100), None, "across two extents");
        assert_eq!((span(999, 2), span(1200, 1)), (None, None));
        lent.remove(region(1000, 100));
        assert_eq!(span(1000, 10), None);
    }
}
