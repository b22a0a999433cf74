//! Size classes of blocks: floating-point numbers with a mantissa of 3 bits, in units of [`GRANULE_BYTES`].
//!
//! Up to 8 granules every length is a class of its own; above that, 8 classes lie between two powers of two, so rounding up
//! costs less than one part in eight. A class number is small enough to be a bit in a two-level bitmap.

/// Smallest step of a block, bytes: one cache line, so that every dtype is aligned.
pub const GRANULE_BYTES: u64 = 64;

const MANTISSA_BITS: u32 = 3;

/// Classes which share one exponent: the width of one leaf of the bitmap.
pub(crate) const MANTISSAS: u32 = 1 << MANTISSA_BITS;

/// Most granules that a `u64` of bytes can name.
const GRANULES_MAX: u64 = u64::MAX / GRANULE_BYTES;

/// Classes of all lengths up to twice `u64::MAX` bytes: a block and the slack for its alignment can be added and rounded up.
pub(crate) const CLASSES: u32 = (u64::BITS - GRANULE_BYTES.ilog2() - MANTISSA_BITS + 3) * MANTISSAS;

/// Bytes of the whole block that a request of `len` bytes takes: rounded up to a size class (worst case +12.5 %, or up to the
/// next granule for requests of a few granules). 250 MiB takes 256 MiB, 225 MiB takes 240 MiB, powers of two from one granule
/// on stay as they are.
///
/// `None` when `len` is 0 or the block would not fit in 64 bits.
pub fn block_len(len: u64) -> Option<u64> {
    if len == 0 {
        return None;
    }
    let block = class_granules(class_ceil(granules(len))).checked_mul(GRANULE_BYTES)?;
    debug_assert!(block >= len, "a block holds what was asked");
    debug_assert!(
        block - len < GRANULE_BYTES + len / 8 + 1,
        "rounding up wastes at most an eighth"
    );
    Some(block)
}

/// Granules that hold `len` bytes.
pub(crate) fn granules(len: u64) -> u64 {
    len.div_ceil(GRANULE_BYTES)
}

/// Largest class whose length is at most `granules`: the class under which a free range is kept.
pub(crate) fn class_floor(granules: u64) -> u32 {
    debug_assert!(granules <= 2 * (GRANULES_MAX + 1));
    if granules < u64::from(MANTISSAS) {
        return u32::try_from(granules).expect("fewer than 8 granules");
    }
    let exponent = granules.ilog2() - MANTISSA_BITS;
    let mantissa = u32::try_from((granules >> exponent) & u64::from(MANTISSAS - 1)).expect("3 bits");
    let class = (exponent + 1) * MANTISSAS + mantissa;
    debug_assert!(class < CLASSES);
    class
}

/// Smallest class whose length is at least `granules`: every range kept under it, or above it, is long enough.
pub(crate) fn class_ceil(granules: u64) -> u32 {
    let floor = class_floor(granules);
    if class_granules(floor) == granules {
        floor
    } else {
        floor + 1
    }
}

/// Length of a class, in granules.
pub(crate) fn class_granules(class: u32) -> u64 {
    debug_assert!(class < CLASSES);
    if class < MANTISSAS {
        return u64::from(class);
    }
    let exponent = class / MANTISSAS - 1;
    u64::from(MANTISSAS | (class % MANTISSAS)) << exponent
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn requests_round_up_to_their_class() {
        let table = [
            (1, Some(64)),
            (64, Some(64)),
            (65, Some(128)),
            (448, Some(448)),
            (512, Some(512)),
            (513, Some(576)),
            (1000, Some(1024)),
            (8 * KIB, Some(8 * KIB)),
            (225 * MIB, Some(240 * MIB)),
            (240 * MIB, Some(240 * MIB)),
            (240 * MIB + 1, Some(256 * MIB)),
            (250 * MIB, Some(256 * MIB)),
            (1 << 63, Some(1 << 63)),
            (15 << 60, Some(15 << 60)),
            ((15 << 60) + 1, None),
            (u64::MAX, None),
            (0, None),
        ];
        for (len, expected) in table {
            assert_eq!(block_len(len), expected, "block_len({len})");
        }
    }

    #[test]
    fn powers_of_two_stay() {
        for shift in 6..64 {
            assert_eq!(block_len(1 << shift), Some(1 << shift));
        }
    }

    #[test]
    fn classes_are_strictly_ascending_and_their_own_floor_and_ceiling() {
        for class in 1..CLASSES - MANTISSAS {
            let len = class_granules(class);
            assert!(len > class_granules(class - 1));
            assert_eq!((class_floor(len), class_ceil(len)), (class, class));
        }
    }

    proptest! {
        #[test]
        fn floor_and_ceiling_enclose_every_length(shift in 0u32..58, raw in any::<u64>()) {
            let granules = (raw >> 6 >> shift).max(1);
            let (floor, ceil) = (class_floor(granules), class_ceil(granules));
            prop_assert!(class_granules(floor) <= granules && granules <= class_granules(ceil));
            prop_assert!(ceil - floor <= 1);
            prop_assert!(class_granules(ceil) - granules <= granules / 8);
        }

        #[test]
        fn a_block_is_a_class_of_its_own(len in 1u64..=(15 << 60)) {
            let block = block_len(len).unwrap();
            prop_assert_eq!(block_len(block), Some(block));
        }
    }
}
