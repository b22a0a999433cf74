//! Groups: what one engine call takes.

use std::ops::Range;

/// Bounds of one engine call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Most items, at least 1.
    pub keys_max: usize,
    /// Most bytes.
    pub bytes_max: u64,
}

/// Cuts items, in order, into groups of at most `keys_max` items and `bytes_max` bytes. An item larger than that is a group
/// alone; no group is empty.
///
/// # Panics
/// When `keys_max` is 0.
pub fn cut_groups(lens: &[u64], limits: GroupLimits) -> Vec<Range<usize>> {
    assert!(limits.keys_max > 0, "a group holds at least one item");
    let mut groups = Vec::new();
    let (mut start, mut bytes) = (0, 0_u64);
    for (index, &len) in lens.iter().enumerate() {
        let sum = bytes.checked_add(len).filter(|&sum| sum <= limits.bytes_max);
        let full = sum.is_none() || index - start == limits.keys_max;
        if full && index > start {
            groups.push(start..index);
            (start, bytes) = (index, len);
        } else {
            bytes = sum.unwrap_or(len);
        }
    }
    if start < lens.len() {
        groups.push(start..lens.len());
    }
    assert_eq!(groups.last().map_or(0, |group| group.end), lens.len());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::split_ranges;
    use proptest::prelude::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn groups_are_cut_by_keys_by_bytes_and_around_large_items() {
        let cut = |lens: &[u64], keys_max, bytes_max| cut_groups(lens, GroupLimits { keys_max, bytes_max });
        let table = [
            (cut(&[], 4, 10), vec![]),
            (cut(&[1, 1, 1, 1, 1], 2, 10), vec![0..2, 2..4, 4..5]),
            (cut(&[5, 5, 1], 4, 10), vec![0..2, 2..3]),
            (cut(&[11, 1, 1, 11, 11], 4, 10), vec![0..1, 1..3, 3..4, 4..5]),
            (cut(&[u64::MAX, u64::MAX, 1], 4, u64::MAX), vec![0..1, 1..2, 2..3]),
            (cut(&[0, 0, 0], 2, 0), vec![0..2, 2..3]),
        ];
        for (found, expected) in table {
            assert_eq!(found, expected);
        }
    }

    /// Leases of a read in the manner of the reference: batches of 400 keys, each cut by the share.
    fn lease_count(keys: u64, len: u64, share: u64) -> usize {
        let batches = split_ranges(keys, 400);
        let limits = GroupLimits {
            keys_max: 400,
            bytes_max: share,
        };
        let groups = batches.into_iter().map(|batch| {
            let lens = vec![len; usize::try_from(batch.end - batch.start).unwrap()];
            cut_groups(&lens, limits).len()
        });
        groups.sum()
    }

    #[test]
    fn rounds_of_the_reference_table() {
        let table = [(64, 25, 50), (256, 7, 13), (1024, 2, 4), (4096, 1, 1)];
        for (pool_mib, at_full_split, at_half_share) in table {
            let pool = pool_mib * MIB;
            assert_eq!(
                lease_count(400, MIB, pool / 4),
                at_full_split,
                "full split of {pool_mib} MiB"
            );
            assert_eq!(
                lease_count(400, MIB, pool / 8),
                at_half_share,
                "half share of {pool_mib} MiB"
            );
        }
    }

    #[test]
    fn lease_counts_of_the_reference() {
        let quarter = 1024 * MIB / 4;
        let eighth = 1024 * MIB / 8;
        let table = [
            (64, 16 * MIB, 4, 8),
            (1024, MIB, 5, 10),
            (4096, MIB, 21, 41),
            (16384, 64 * KIB, 41, 41),
        ];
        for (keys, len, at_quarter, at_eighth) in table {
            assert_eq!(
                lease_count(keys, len, quarter),
                at_quarter,
                "{keys} x {len} at a quarter"
            );
            assert_eq!(lease_count(keys, len, eighth), at_eighth, "{keys} x {len} at an eighth");
        }
    }

    proptest! {
        #[test]
        fn groups_cover_all_in_order_within_limits(
            lens in prop::collection::vec(0_u64..100, 0..200), keys_max in 1_usize..20, bytes_max in 0_u64..300,
        ) {
            let groups = cut_groups(&lens, GroupLimits { keys_max, bytes_max });
            let covered: Vec<_> = groups.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..lens.len()).collect::<Vec<_>>());
            for group in &groups {
                let bytes: u64 = lens[group.clone()].iter().sum();
                prop_assert!(!group.is_empty() && group.len() <= keys_max);
                prop_assert!(bytes <= bytes_max || group.len() == 1);
            }
            for pair in groups.windows(2) {
                let longer: u64 = lens[pair[0].start..=pair[1].start].iter().sum();
                prop_assert!(pair[0].len() == keys_max || longer > bytes_max, "no group ends early");
            }
        }
    }
}
