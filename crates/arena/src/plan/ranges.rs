//! Ranges of one object that is larger than a share.

use std::ops::Range;

/// Ranges of at most `share` that cover `0..len` in order, all but the last of that length.
///
/// # Panics
/// When `share` is 0, or the ranges are too many for memory.
pub fn split_ranges(len: u64, share: u64) -> Vec<Range<u64>> {
    assert!(share > 0, "a share of nothing covers nothing");
    let count = usize::try_from(len.div_ceil(share)).expect("ranges fit in memory");
    let mut ranges = Vec::with_capacity(count);
    let mut start = 0;
    while start < len {
        let end = start + share.min(len - start);
        ranges.push(start..end);
        start = end;
    }
    assert_eq!(ranges.len(), count);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_range_takes_the_rest() {
        assert_eq!(split_ranges(0, 4), []);
        assert_eq!(split_ranges(8, 4), [0..4, 4..8]);
        assert_eq!(split_ranges(9, 4), [0..4, 4..8, 8..9]);
        assert_eq!(split_ranges(3, u64::MAX), vec![Range { start: 0, end: 3 }]);
        assert_eq!(split_ranges(u64::MAX, 1 << 63), [0..1 << 63, 1 << 63..u64::MAX]);
    }

    proptest! {
        #[test]
        fn ranges_cover_exactly(len in 0_u64..10_000, share in 1_u64..300) {
            let ranges = split_ranges(len, share);
            let mut end = 0;
            for range in &ranges {
                prop_assert_eq!(range.start, end);
                prop_assert!(range.end > range.start && range.end - range.start <= share);
                end = range.end;
            }
            prop_assert_eq!(end, len);
            prop_assert_eq!(ranges.len() as u64, len.div_ceil(share));
        }
    }
}
