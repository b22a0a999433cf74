//! How much memory may be held, and for what.

use crate::GRANULE_BYTES;

const MIB: u64 = 1 << 20;
const BOUNCE_BYTES_MIN: u64 = 8 * MIB;
const SLAB_BYTES_FIRST: u64 = 64 * MIB;
const SLAB_BYTES_MAX: u64 = 1024 * MIB;

/// Limits of one arena, bytes. The fields are public for reading and tuning; [`Arena::new`](crate::Arena::new) checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most bytes of all slabs together, whole pages.
    pub max_bytes: u64,
    /// Part of `max_bytes` kept for copied reads and write staging: slabs of kind `Bounce` only. Whole pages.
    pub bounce_bytes: u64,
    /// Length of the first lease slab; later ones double up to `slab_bytes_max`.
    pub slab_bytes_first: u64,
    /// Length at which lease slabs stop doubling. A block that is larger gets a slab of its own size all the same.
    pub slab_bytes_max: u64,
    /// Page size of this machine: slabs are whole pages.
    pub page_bytes: u64,
}

/// Limits that contradict each other.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// The arena could hold no slab at all.
    #[error("max_bytes is {max_bytes}, less than one page; ask for at least {page_bytes} bytes")]
    BelowOnePage {
        /// As asked.
        max_bytes: u64,
        /// One page.
        page_bytes: u64,
    },
    /// The reserve would be larger than what it is part of.
    #[error("bounce_bytes is {bounce_bytes}; ask for at most max_bytes, which is {max_bytes}")]
    BounceAboveMax {
        /// As asked.
        bounce_bytes: u64,
        /// All of the arena.
        max_bytes: u64,
    },
    /// Not a page size of any machine.
    #[error("page_bytes is {page_bytes}; pass a power of two of at least {GRANULE_BYTES} bytes")]
    BadPage {
        /// As passed.
        page_bytes: u64,
    },
}

impl Budget {
    /// Limits with their defaults: `max_bytes` rounded down to whole pages; bounce reserve an eighth of it, at least 8 MiB, at
    /// most half of it (whole pages; with one page all of it is bounce); first slab 64 MiB, largest 1 GiB.
    ///
    /// # Errors
    /// [`BudgetError::BelowOnePage`], [`BudgetError::BadPage`].
    pub fn new(max_bytes: u64, page_bytes: u64) -> Result<Self, BudgetError> {
        if !page_bytes.is_power_of_two() || page_bytes < GRANULE_BYTES {
            return Err(BudgetError::BadPage { page_bytes });
        }
        if max_bytes < page_bytes {
            return Err(BudgetError::BelowOnePage { max_bytes, page_bytes });
        }
        let max_bytes = max_bytes - max_bytes % page_bytes;
        let bounce = (max_bytes / 8).max(BOUNCE_BYTES_MIN).min(max_bytes / 2);
        let bounce_bytes = (bounce - bounce % page_bytes).max(page_bytes);
        assert!(bounce_bytes <= max_bytes);
        Ok(Self {
            max_bytes,
            bounce_bytes,
            slab_bytes_first: SLAB_BYTES_FIRST.min(max_bytes),
            slab_bytes_max: SLAB_BYTES_MAX.min(max_bytes),
            page_bytes,
        })
    }

    /// The same limits with another bounce reserve, rounded up to whole pages. 0 is an arena without one.
    ///
    /// # Errors
    /// [`BudgetError::BounceAboveMax`].
    pub fn with_bounce(self, bounce_bytes: u64) -> Result<Self, BudgetError> {
        let max_bytes = self.max_bytes;
        match bounce_bytes.checked_next_multiple_of(self.page_bytes) {
            Some(rounded) if rounded <= max_bytes => Ok(Self {
                bounce_bytes: rounded,
                ..self
            }),
            _ => Err(BudgetError::BounceAboveMax {
                bounce_bytes,
                max_bytes,
            }),
        }
    }

    /// The same limits without a bounce reserve (the copy cache).
    pub fn without_bounce(self) -> Self {
        Self {
            bounce_bytes: 0,
            ..self
        }
    }

    /// Bytes that lease slabs may take together: all that is not bounce reserve.
    pub fn lease_bytes(&self) -> u64 {
        self.max_bytes.saturating_sub(self.bounce_bytes)
    }

    /// Most bytes one of `readers` may hold of the bounce reserve at once: an equal part in whole pages, at least one page.
    /// Zero readers count as one.
    pub fn share_bytes(&self, readers: u32) -> u64 {
        let part = self.bounce_bytes / u64::from(readers.max(1));
        (part - part % self.page_bytes).max(self.page_bytes)
    }

    /// Limits an arena can work with; the fields are public, so a caller may have broken them.
    pub(crate) fn check(&self) {
        assert!(
            self.page_bytes.is_power_of_two() && self.page_bytes >= GRANULE_BYTES,
            "bad page size: {self:?}"
        );
        assert!(self.max_bytes >= self.page_bytes, "no page at all: {self:?}");
        assert!(
            self.max_bytes.is_multiple_of(self.page_bytes),
            "max_bytes is no whole number of pages: {self:?}"
        );
        assert!(
            self.bounce_bytes.is_multiple_of(self.page_bytes),
            "bounce_bytes is no whole number of pages: {self:?}"
        );
        assert!(
            self.bounce_bytes <= self.max_bytes,
            "bounce_bytes above max_bytes: {self:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn the_bounce_reserve_is_an_eighth_within_its_bounds() {
        let table = [
            (1024 * MIB, 128 * MIB),
            (64 * MIB, 8 * MIB),
            (32 * MIB, 8 * MIB),
            (16 * MIB, 8 * MIB),
            (8 * MIB, 4 * MIB),
            (3 * PAGE, PAGE),
            (2 * PAGE, PAGE),
            (PAGE, PAGE),
        ];
        for (max_bytes, bounce_bytes) in table {
            let budget = Budget::new(max_bytes, PAGE).unwrap();
            assert_eq!(budget.bounce_bytes, bounce_bytes, "max_bytes {max_bytes}");
            assert_eq!(budget.lease_bytes(), max_bytes - bounce_bytes);
            budget.check();
        }
    }

    #[test]
    fn max_bytes_is_rounded_down_to_whole_pages() {
        assert_eq!(Budget::new(3 * PAGE - 1, PAGE).unwrap().max_bytes, 2 * PAGE);
        assert_eq!(Budget::new(u64::MAX, PAGE).unwrap().max_bytes, u64::MAX - (PAGE - 1));
    }

    #[test]
    fn contradicting_limits_are_refused() {
        assert_eq!(
            Budget::new(PAGE - 1, PAGE),
            Err(BudgetError::BelowOnePage {
                max_bytes: PAGE - 1,
                page_bytes: PAGE
            })
        );
        for page_bytes in [0, 32, 4097] {
            assert_eq!(Budget::new(MIB, page_bytes), Err(BudgetError::BadPage { page_bytes }));
        }
        let budget = Budget::new(16 * MIB, PAGE).unwrap();
        for bounce_bytes in [16 * MIB + 1, u64::MAX] {
            let refused = BudgetError::BounceAboveMax {
                bounce_bytes,
                max_bytes: 16 * MIB,
            };
            assert_eq!(budget.with_bounce(bounce_bytes), Err(refused));
        }
        assert_eq!(budget.with_bounce(1).unwrap().bounce_bytes, PAGE);
        assert_eq!(budget.without_bounce().lease_bytes(), 16 * MIB);
    }

    #[test]
    fn a_share_is_whole_pages_and_at_least_one() {
        let budget = Budget::new(1024 * MIB, PAGE).unwrap();
        assert_eq!(budget.share_bytes(4), 32 * MIB);
        assert_eq!(budget.share_bytes(3), (128 * MIB / 3) / PAGE * PAGE);
        assert_eq!(budget.share_bytes(0), 128 * MIB);
        assert_eq!(budget.share_bytes(u32::MAX), PAGE);
    }
}
