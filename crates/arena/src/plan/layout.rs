//! Layouts: items back to back.

/// Lays items back to back, with no padding except each item's `align` (1 for a tight layout). Returns their offsets and the
/// total, bytes; `None` when the total does not fit in 64 bits.
///
/// # Panics
/// When the slices differ in length or an `align` is 0.
pub fn pack(lens: &[u64], align: &[u64]) -> Option<(Vec<u64>, u64)> {
    assert_eq!(lens.len(), align.len(), "one alignment per item");
    let mut offsets = Vec::with_capacity(lens.len());
    let mut end = 0_u64;
    for (&len, &align) in lens.iter().zip(align) {
        assert!(align > 0, "an alignment of 0");
        let offset = end.checked_next_multiple_of(align)?;
        offsets.push(offset);
        end = offset.checked_add(len)?;
    }
    Some((offsets, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn items_touch_unless_their_alignment_says_otherwise() {
        assert_eq!(pack(&[], &[]), Some((vec![], 0)));
        assert_eq!(pack(&[3, 5, 0, 2], &[1, 1, 1, 1]), Some((vec![0, 3, 8, 8], 10)));
        assert_eq!(pack(&[3, 8, 1], &[1, 8, 2]), Some((vec![0, 8, 16], 17)));
    }

    #[test]
    fn a_total_past_64_bits_is_refused() {
        assert_eq!(pack(&[u64::MAX, 1], &[1, 1]), None);
        assert_eq!(pack(&[u64::MAX, 0], &[1, 2]), None);
        assert_eq!(pack(&[u64::MAX, 0], &[1, 1]), Some((vec![0, u64::MAX], u64::MAX)));
    }

    proptest! {
        #[test]
        fn offsets_are_aligned_and_items_do_not_overlap(
            items in prop::collection::vec((0_u64..1000, 0_u32..7), 0..100),
        ) {
            let lens: Vec<_> = items.iter().map(|&(len, _)| len).collect();
            let aligns: Vec<_> = items.iter().map(|&(_, shift)| 1 << shift).collect();
            let (offsets, total) = pack(&lens, &aligns).unwrap();
            let mut end = 0;
            for ((offset, len), align) in offsets.iter().zip(&lens).zip(&aligns) {
                prop_assert_eq!(offset % align, 0);
                prop_assert!(*offset >= end && offset - end < *align, "padding is less than the alignment");
                end = offset + len;
            }
            prop_assert_eq!(end, total);
        }
    }
}
