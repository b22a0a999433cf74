//! Regions: maximal runs of back-to-back destination memory.

use std::collections::HashMap;

/// One copy out of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRegion {
    /// Start within the source, bytes.
    pub source_offset: u64,
    /// Which memory it goes to.
    pub landing: usize,
    /// Start within that memory, bytes.
    pub landing_offset: u64,
    /// Length, bytes.
    pub len: u64,
}

impl CopyRegion {
    /// Does `next` lie right behind this region on both sides?
    fn is_followed_by(&self, next: &Self) -> bool {
        self.landing == next.landing
            && self.source_offset.checked_add(self.len) == Some(next.source_offset)
            && self.landing_offset.checked_add(self.len) == Some(next.landing_offset)
    }
}

/// Merges copies that lie back to back on both sides, so that each region takes one copy. Order and bytes are kept.
pub fn merge_regions(copies: impl IntoIterator<Item = CopyRegion>) -> Vec<CopyRegion> {
    let mut regions: Vec<CopyRegion> = Vec::new();
    for copy in copies {
        match regions.last_mut() {
            Some(last) if last.is_followed_by(&copy) => last.len += copy.len,
            _ => regions.push(copy),
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
    use proptest::prelude::*;

    fn copy(source_offset: u64, landing: usize, landing_offset: u64, len: u64) -> CopyRegion {
        CopyRegion {
            source_offset,
            landing,
            landing_offset,
            len,
        }
    }

    #[test]
    fn a_tightly_packed_column_is_one_region() {
        let rows = (0..4096).map(|row| copy(row * 77, 0, 1000 + row * 77, 77));
        assert_eq!(merge_regions(rows), [copy(0, 0, 1000, 4096 * 77)]);
    }

    #[test]
    fn a_gap_on_either_side_and_another_memory_start_a_region() {
        let copies = [
            copy(0, 0, 0, 8),
            copy(8, 0, 8, 8),
            copy(24, 0, 16, 8),
            copy(32, 1, 24, 8),
            copy(40, 2, 32, 8),
            copy(48, 2, 48, 8),
        ];
        let lens: Vec<u64> = merge_regions(copies).iter().map(|region| region.len).collect();
        assert_eq!(lens, [16, 8, 8, 8, 8]);
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
            // Gaps of 0 or 1 byte on each side, and now and then another memory.
            let (mut from, mut to, mut landing) = (0, 0, 0);
            let mut copies = Vec::new();
            for (len, source_gap, landing_gap, turn) in items {
                from += source_gap;
                to += landing_gap;
                landing += usize::from(turn == 0);
                copies.push(copy(from, landing, to, len));
                from += len;
                to += len;
            }
            let bytes = |copies: &[CopyRegion]| -> Vec<(u64, usize, u64)> {
                let each = |copy: &CopyRegion| {
                    let CopyRegion { source_offset, landing, landing_offset, len } = *copy;
                    (0..len).map(move |at| (source_offset + at, landing, landing_offset + at))
                };
                copies.iter().flat_map(each).collect()
            };
            let regions = merge_regions(copies.iter().copied());
            prop_assert_eq!(bytes(&regions), bytes(&copies));
            for pair in regions.windows(2) {
                prop_assert!(!pair[0].is_followed_by(&pair[1]), "runs are maximal");
            }
        }
    }
}
