//! Size of a tensor.

/// Bytes of a tensor of `shape` whose items take `item_bytes` each: a scalar (no dimensions) is one item, and a dimension of 0
/// makes it 0 whatever the others are. `None` past `isize::MAX`, which no object in memory exceeds.
pub fn tensor_bytes(shape: &[u64], item_bytes: u64) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let bytes = shape
        .iter()
        .try_fold(item_bytes, |bytes, &dimension| bytes.checked_mul(dimension))?;
    isize::try_from(bytes).is_ok().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        let table: [(&[u64], u64, Option<u64>); 8] = [
            (&[], 4, Some(4)),
            (&[0], 4, Some(0)),
            (&[4], 8, Some(32)),
            (&[3, 5, 7], 2, Some(210)),
            (&[u64::MAX, 0, u64::MAX], 8, Some(0)),
            (&[1 << 32, 1 << 32], 1, None),
            (&[1 << 62, 2], 1, None),
            (&[(1 << 63) - 1], 1, Some((1 << 63) - 1)),
        ];
        for (shape, item_bytes, expected) in table {
            assert_eq!(tensor_bytes(shape, item_bytes), expected, "{shape:?} x {item_bytes}");
        }
    }
}
