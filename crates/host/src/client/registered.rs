//! Memory that the daemon's engine may move bytes in and out of: extents, and what the client registered.
use crate::wire::Span;
use tensorlease_engine::RegisterError;
use tensorlease_memory::{Region, RegionMap};

/// The region as the daemon knows it. None: it is not inside one extent. `extents` has the ticket of each.
pub(super) fn span(extents: &RegionMap<u64>, region: Region) -> Option<Span> {
    let (extent, ticket) = extents.find(region)?;
    Some(Span {
        ticket: *ticket,
        offset: (region.addr - extent.addr) as u64,
        len: region.len as u64,
    })
}

/// Registers a region of the client's. No message is sent for it: the daemon's memory is registered already, and other
/// memory is staged in it.
pub(super) fn register(registered: &mut RegionMap, region: Region, limit: u64) -> Result<(), RegisterError> {
    if limit < region.len as u64 {
        return Err(RegisterError::TooLarge { len: region.len, limit });
    }
    if registered.overlaps(region) {
        return Err(RegisterError::Overlap { addr: region.addr });
    }
    registered.insert(region, ());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(addr: usize, len: usize) -> Region {
        Region { addr, len }
    }

    #[test]
    fn a_region_is_named_by_the_extent_that_holds_all_of_it() {
        let mut lent = RegionMap::default();
        lent.insert(region(1000, 100), 7);
        lent.insert(region(1100, 100), 8);
        let at = |addr, len| span(&lent, region(addr, len)).map(|span| (span.ticket, span.offset, span.len));
        assert_eq!(at(1000, 100), Some((7, 0, 100)));
        assert_eq!(at(1150, 50), Some((8, 50, 50)));
        assert_eq!(at(1050, 100), None, "across two extents");
        assert_eq!((at(999, 2), at(1200, 1)), (None, None));
        lent.remove(region(1000, 100));
        assert_eq!(span(&lent, region(1000, 10)), None);
    }
}
