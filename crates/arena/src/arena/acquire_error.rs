//! Why no block was handed out.

/// Why [`Arena::acquire`](crate::Arena::acquire) handed out no block. All sizes are bytes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Existing slabs have no fitting range, but the budget allows another slab that holds it.
    #[error("no free block of {asked} bytes, and no new slab for one")]
    NeedsSlab {
        /// As asked.
        asked: u64,
        /// What the budget still allows this kind.
        growable_bytes: u64,
    },
    /// Existing slabs have no fitting range and the rest of the budget holds no slab for it.
    #[error("no free block of {asked} bytes: {free} bytes free, largest {largest}, {held} held")]
    Exhausted {
        /// As asked.
        asked: u64,
        /// Free in slabs of this kind.
        free: u64,
        /// Largest free range of this kind.
        largest: u64,
        /// Held by blocks of this kind, quarantined ones too.
        held: u64,
    },
    /// Larger than the budget of this kind can ever serve.
    #[error("{asked} bytes can never fit, at most {most} do")]
    TooLarge {
        /// As asked.
        asked: u64,
        /// All that the budget gives this kind.
        most: u64,
    },
    /// A value without bytes needs no block.
    #[error("a block of 0 bytes can't be acquired; set zero-byte values aside")]
    ZeroBytes,
}
