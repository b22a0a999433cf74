//! Regions: maximal runs of back-to-back destination memory.

use crate::Destination;
use std::collections::HashMap;

/// One copy of a copy-out plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRegion {
    /// Start within the source, bytes.
    pub source_offset: u64,
    /// Where it goes, with the length of the whole region.
    pub destination: Destination,
    /// First of the items it carries.
    pub first_item: usize,
    /// How many of them.
    pub items: usize,
}

impl CopyRegion {
    /// Whether an item at `source_offset` and `destination` lies right behind this region on both sides.
    fn is_followed_by(&self, source_offset: u64, destination: &Destination) -> bool {
        if self.source_offset.checked_add(self.destination.len()) != Some(source_offset) {
            return false;
        }
        match (self.destination, *destination) {
            (
                Destination::Arena { slab, offset, len },
                Destination::Arena {
                    slab: next_slab,
                    offset: next,
                    ..
                },
            ) => slab == next_slab && offset.checked_add(len) == Some(next),
            (Destination::Foreign { ptr, len }, Destination::Foreign { ptr: next, .. }) => {
                ptr.checked_add(len) == Some(next)
            }
            _ => false,
        }
    }

    fn extend(&mut self, added: u64) {
        match &mut self.destination {
            Destination::Arena { len, .. } | Destination::Foreign { len, .. } => *len += added,
        }
        self.items += 1;
    }
}

/// Copy-out plan: `sources` (offset and length of each item) and `destinations` in the same order, merged where both sides are
/// back to back, so that each region takes one copy. Order and bytes are kept.
///
/// # Panics
/// When the slices differ in length, or an item has two lengths.
pub fn merge_regions(sources: &[(u64, u64)], destinations: &[Destination]) -> Vec<CopyRegion> {
    assert_eq!(sources.len(), destinations.len(), "one destination per source");
    let mut regions: Vec<CopyRegion> = Vec::new();
    for (item, (&(source_offset, len), &destination)) in sources.iter().zip(destinations).enumerate() {
        assert_eq!(len, destination.len(), "item {item} has two lengths");
        match regions.last_mut() {
            Some(last) if last.is_followed_by(source_offset, &destination) => last.extend(len),
            _ => regions.push(CopyRegion {
                source_offset,
                destination,
                first_item: item,
                items: 1,
            }),
        }
    }
    regions
}

/// Item indices grouped by dtype, in the order of first use: one registration per group, not one per item.
pub fn dtype_regions(dtypes: &[u32]) -> Vec<Vec<usize>> {
    let mut regions: Vec<Vec<usize>> = Vec::new();
    let mut region_of: HashMap<u32, usize> = HashMap::new();
    for (item, &dtype) in dtypes.iter().enumerate() {
        let region = *region_of.entry(dtype).or_insert(regions.len());
        match regions.get_mut(region) {
            Some(items) => items.push(item),
            None => regions.push(vec![item]),
        }
    }
    debug_assert_eq!(regions.iter().map(Vec::len).sum::<usize>(), dtypes.len());
    regions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SlabId;
    use proptest::prelude::*;

    fn foreign(ptr: u64, len: u64) -> Destination {
        Destination::Foreign { ptr, len }
    }

    fn arena(slab: u32, offset: u64, len: u64) -> Destination {
        Destination::Arena {
            slab: SlabId(slab),
            offset,
            len,
        }
    }

    #[test]
    fn a_tightly_packed_column_is_one_region() {
        let sources: Vec<_> = (0..4096).map(|row| (row * 77, 77)).collect();
        let destinations: Vec<_> = (0..4096).map(|row| foreign(1000 + row * 77, 77)).collect();
        let whole = CopyRegion {
            source_offset: 0,
            destination: foreign(1000, 4096 * 77),
            first_item: 0,
            items: 4096,
        };
        assert_eq!(merge_regions(&sources, &destinations), [whole]);
    }

    #[test]
    fn a_gap_on_either_side_and_another_memory_start_a_region() {
        let sources = [(0, 8), (8, 8), (24, 8), (32, 8), (40, 8), (48, 8)];
        let destinations = [
            foreign(0, 8),
            foreign(8, 8),
            foreign(16, 8),
            arena(0, 24, 8),
            arena(1, 32, 8),
            arena(1, 48, 8),
        ];
        let items: Vec<_> = merge_regions(&sources, &destinations)
            .iter()
            .map(|region| region.items)
            .collect();
        assert_eq!(items, [2, 1, 1, 1, 1]);
    }

    #[test]
    fn one_region_per_dtype_in_the_order_of_first_use() {
        assert_eq!(dtype_regions(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(dtype_regions(&[7; 8]), [(0..8).collect::<Vec<_>>()]);
        assert_eq!(dtype_regions(&[3, 1, 3, 2, 1]), [vec![0, 2], vec![1, 4], vec![3]]);
    }

    proptest! {
        #[test]
        fn merging_conserves_bytes_and_order(
            items in prop::collection::vec((1_u64..5, 0_u64..2, 0_u64..2, 0_u32..8), 0..100),
        ) {
            // Gaps of 0 or 1 byte on each side, and now and then another slab.
            let (mut source, mut target, mut slab) = (0, 0, 0);
            let mut sources = Vec::new();
            let mut destinations = Vec::new();
            for (len, source_gap, target_gap, turn) in items {
                source += source_gap;
                target += target_gap;
                slab += u32::from(turn == 0);
                sources.push((source, len));
                destinations.push(arena(slab, target, len));
                source += len;
                target += len;
            }
            let mut split = Vec::new();
            let regions = merge_regions(&sources, &destinations);
            for region in &regions {
                let Destination::Arena { slab, mut offset, len } = region.destination else { unreachable!() };
                let (mut source, end) = (region.source_offset, offset + len);
                for &(_, len) in &sources[region.first_item..region.first_item + region.items] {
                    split.push(((source, len), Destination::Arena { slab, offset, len }));
                    (source, offset) = (source + len, offset + len);
                }
                prop_assert_eq!(offset, end);
            }
            prop_assert_eq!(split, sources.into_iter().zip(destinations).collect::<Vec<_>>());
            for pair in regions.windows(2) {
                prop_assert!(!pair[0].is_followed_by(pair[1].source_offset, &pair[1].destination), "runs are maximal");
            }
        }
    }
}
