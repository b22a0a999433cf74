//! Blocks of the two pools, which grow by slabs; slabs that are given up.

use super::memory::Memory;
use crate::{CallError, FallbackKind, accounts::Accounts};
use std::{fmt, sync::Arc, time::Duration};
use tensorlease_arena::{AcquireError, SlabKind};
use tensorlease_engine::chained;
use tensorlease_memory::{GrowError, Growth, InFlight, SlabMemory, Ungrown, Unregistered};

/// Blocks got, in the order asked, and why the rest was not.
pub(crate) struct Acquired {
    pub(crate) blocks: Vec<InFlight>,
    pub(crate) refused: Option<Refused>,
}

/// Why the arena gave no more blocks. Shown as the detail that belongs to the words of its kind.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) kind: FallbackKind,
    error: AcquireError,
    /// Why there is no slab, where the budget allows one.
    cause: Option<Arc<GrowError>>,
}

impl Refused {
    /// Counts a fallback of `keys` values for this reason.
    pub(crate) fn count(&self, accounts: &Accounts, keys: u64) {
        accounts.count_fallback(self.kind, keys, self.cause().as_deref());
    }

    /// Why there is no slab, in words, where the budget allows one.
    pub(super) fn cause(&self) -> Option<String> {
        self.cause.as_ref().map(|cause| chained(cause))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            None => self.error.fmt(formatter),
            Some(cause) => formatter.write_str(&chained(cause)),
        }
    }
}

impl Memory {
    /// Blocks of the arena for `wanted` (bytes, alignment), in order until the first that can't be had. Makes slabs while the
    /// budget allows, and waits for them in slices. Never waits for a block.
    ///
    /// # Errors
    /// What `slice` says, or `Unavailable` where the memory is lent and its lender is gone.
    pub(crate) fn acquire(
        &self,
        kind: SlabKind,
        wanted: &[(u64, u64)],
        slice: impl Fn() -> Result<Duration, CallError>,
    ) -> Result<Acquired, CallError> {
        let grown = self.arena.acquire_growing(kind, wanted, &self.registrations, slice)?;
        let refused = grown.refused.map(|ungrown| self.refused(ungrown)).transpose()?;
        let blocks = grown.blocks;
        Ok(Acquired { blocks, refused })
    }

    /// One block of the arena, or why there is none.
    pub(crate) fn acquire_one(
        &self,
        kind: SlabKind,
        wanted: (u64, u64),
        slice: impl Fn() -> Result<Duration, CallError>,
    ) -> Result<Result<InFlight, Refused>, CallError> {
        let mut acquired = self.acquire(kind, &[wanted], slice)?;
        Ok(match acquired.refused {
            None => Ok(acquired.blocks.pop().expect("not refused, so there is a block")),
            Some(refused) => Err(refused),
        })
    }

    fn refused(&self, Ungrown { error, cause }: Ungrown) -> Result<Refused, CallError> {
        let kind = match (&error, cause.as_deref()) {
            (_, Some(GrowError::Gone { why })) => return Err(CallError::Unavailable { message: why.clone() }),
            (AcquireError::TooLarge { .. }, _) => FallbackKind::TooLarge,
            // Where the budget allows a slab and there is none, its lender has the reason.
            (AcquireError::NeedsSlab { .. }, None) if self.lends_slabs() => FallbackKind::HostFull,
            (_, None) => FallbackKind::Budget,
            (_, Some(GrowError::Register { .. } | GrowError::Lender { registration: true, .. })) => {
                FallbackKind::SlabNotRegistered
            }
            (_, Some(_)) => FallbackKind::SlabNotMapped,
        };
        Ok(Refused { kind, error, cause })
    }

    /// Recycled memory for copies, for the first of `wanted` that fit into its bound.
    pub(crate) fn copy_blocks(
        &self,
        wanted: &[(u64, u64)],
        slice: impl Fn() -> Result<Duration, CallError>,
    ) -> Result<Vec<InFlight>, CallError> {
        let grown = self
            .copies
            .acquire_growing(SlabKind::Lease, wanted, &Arc::new(Unregistered), slice)?;
        Ok(grown.blocks)
    }

    /// One more slab of at least `missing` bytes, as far as the budget allows.
    pub(crate) fn grow(
        &self,
        kind: SlabKind,
        missing: u64,
        slice: impl Fn() -> Result<Duration, CallError>,
    ) -> Result<Growth, CallError> {
        let largest = 1;
        self.arena.grow(kind, missing, largest, &self.registrations, slice)
    }

    /// Gives empty slabs back to the system, and forgets what was refused before. Returns the bytes given back.
    pub(crate) fn trim(&self) -> u64 {
        self.arena.forget_refusals();
        self.copies.forget_refusals();
        let copies = self.copies.take_empty_slabs();
        let copies: u64 = copies.iter().map(|slab| slab.len() as u64).sum();
        copies + self.give_up(self.arena.take_empty_slabs())
    }

    /// Gives empty slabs back to an engine that lends them. The bounce reserve stays: the next staged transfer needs it.
    pub(crate) fn give_up_empty_lent_slabs(&self) {
        self.give_up(self.arena.take_empty_slabs_of(SlabKind::Lease));
    }

    /// Bytes given back to the system.
    fn give_up(&self, slabs: Vec<SlabMemory>) -> u64 {
        let mut freed = 0;
        for slab in slabs {
            self.registrations.unregister_slab(slab.region());
            freed += slab.len() as u64;
        }
        freed
    }
}
