//! Where objects live: blocks of a pool that grows by slabs up to the capacity.
use crate::{Fault, FaultKind};
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use tensorlease_arena::{AcquireError, Budget, GRANULE_BYTES, SlabKind};
use tensorlease_memory::{Admission, ForkPolicy, GrowError, InFlight, Lease, Pool, limits::page_bytes};

/// Smallest piece of a scattered object while more than that is missing: bounds how many pieces an object has.
const PIECE_BYTES_MIN: u64 = 4096;

/// A store of capacity C holds objects whose blocks sum to C: what finds no free block of its size is scattered over
/// several smaller ones, so that neither slab borders nor fragmentation lose any capacity.
#[derive(Debug)]
pub(super) struct ObjectMemory {
    pool: Pool,
    /// One writer makes a slab at a time; the others wait and then use it, instead of finding the budget taken.
    growing: Mutex<()>,
}

impl ObjectMemory {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        let page = page_bytes() as u64;
        let budget = Budget::new(capacity_bytes.max(page), page).expect("the capacity is at least one page");
        Self {
            pool: Pool::new("embedded store", budget.without_bounce(), ForkPolicy::Inherit),
            growing: Mutex::new(()),
        }
    }

    /// Blocks for the first of `lens`, as many as there are just now; none: the first finds no block of its size.
    pub(super) fn acquire(&self, lens: &[u64]) -> Vec<InFlight> {
        let wanted: Vec<(u64, u64)> = lens.iter().map(|&len| (len, GRANULE_BYTES)).collect();
        let admission = self.pool.acquire(SlabKind::Lease, &wanted);
        if !needs_slab(&admission) {
            return admission.blocks;
        }
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        // Another writer may have grown the store while this one waited.
        let admission = self.pool.acquire(SlabKind::Lease, &wanted);
        // Where the slab can't be made, the caller goes on to `acquire_scattered`, which reports why.
        if needs_slab(&admission) && self.grow(lens.iter().sum(), lens[0]).unwrap_or(false) {
            return self.pool.acquire(SlabKind::Lease, &wanted).blocks;
        }
        admission.blocks
    }

    /// Pieces that sum to `len`, largest first.
    pub(super) fn acquire_scattered(&self, len: u64) -> Result<Vec<InFlight>, Fault> {
        let free = self.free_bytes();
        if free < len {
            return Err(self.full(len, free));
        }
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pieces = Vec::new();
        let mut missing = len;
        let mut most = len;
        while missing > 0 {
            let least = if missing > PIECE_BYTES_MIN {
                PIECE_BYTES_MIN
            } else {
                missing.min(GRANULE_BYTES)
            };
            // Whole size classes only: rounding up would lose what is exactly enough.
            let piece = class_floor(most.min(missing));
            match self.acquire_piece(piece, missing) {
                Ok(Some(block)) => {
                    pieces.push(block);
                    missing -= piece;
                }
                Ok(None) if piece > least => most = (piece / 2).max(least),
                Ok(None) => {
                    drop(pieces);
                    return Err(self.full(len, self.free_bytes()));
                }
                Err(error) => return Err(no_memory(&error)),
            }
        }
        Ok(pieces)
    }

    fn acquire_piece(&self, piece: u64, missing: u64) -> Result<Option<InFlight>, GrowError> {
        let wanted = [(piece, GRANULE_BYTES)];
        let admission = self.pool.acquire(SlabKind::Lease, &wanted);
        if needs_slab(&admission) && self.grow(missing, piece)? {
            return Ok(self.pool.acquire(SlabKind::Lease, &wanted).blocks.pop());
        }
        Ok(admission.blocks.into_iter().next())
    }

    /// False: no slab for a block of `largest` bytes can be had. Caller holds `growing`.
    fn grow(&self, missing: u64, largest: u64) -> Result<bool, GrowError> {
        let made = self.pool.make_slab(SlabKind::Lease, missing, largest)?;
        Ok(made.map(|slab| self.pool.admit(slab)).is_some())
    }

    /// In flight while they are written, leased once they are an object's.
    pub(super) fn lease(&self, blocks: Vec<InFlight>) -> Vec<Lease> {
        self.pool.lease(blocks)
    }

    fn free_bytes(&self) -> u64 {
        let usage = self.pool.usage();
        let held = usage.leased_bytes + usage.in_flight_bytes;
        self.pool.budget().max_bytes.saturating_sub(held)
    }

    fn full(&self, asked: u64, free: u64) -> Fault {
        let capacity = self.pool.budget().max_bytes;
        if capacity < asked {
            let message = format!(
                "an object of {asked} bytes is larger than the whole store of {capacity}; open it with a larger capacity"
            );
            return Fault::new(FaultKind::Full, 0, message);
        }
        let in_bits = if free < asked {
            ""
        } else {
            " in pieces too small to use"
        };
        let message = format!(
            "the store is full: {asked} bytes asked, {free} free of {capacity}{in_bits}; \
             remove objects or open it with a larger capacity"
        );
        Fault::new(FaultKind::Full, 0, message)
    }

    /// Gives the memory back to the system. All objects have been dropped.
    pub(super) fn close(&self) {
        self.pool.close();
        drop(self.pool.take_empty_slabs());
    }
}

/// Nothing could be had because the store must grow first.
fn needs_slab(admission: &Admission) -> bool {
    admission.blocks.is_empty() && matches!(admission.refused, Some(AcquireError::NeedsSlab { .. }))
}

/// The capacity is not used up, but the machine has no memory for it.
fn no_memory(error: &GrowError) -> Fault {
    let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    let message = format!("the store cannot grow: {error}{cause}; open it with a smaller capacity or free memory");
    Fault::new(FaultKind::Full, 0, message)
}

/// Largest size class of at most `len` bytes; `len` itself below one granule.
fn class_floor(len: u64) -> u64 {
    if len < GRANULE_BYTES {
        return len;
    }
    // Three bits below the leading one, in whole granules.
    let step = (1 << len.ilog2().saturating_sub(3)).max(GRANULE_BYTES);
    len / step * step
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlease_arena::block_len;

    #[test]
    fn class_floor_is_the_largest_class_below() {
        for len in (64..5000).chain([(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 250 << 20, 225 << 20]) {
            let floor = class_floor(len);
            assert!(floor <= len);
            assert_eq!(block_len(floor), Some(floor), "{len} -> {floor} is a class");
            assert!(
                block_len(floor + 1).expect("no overflow") > len,
                "{floor} is the largest class within {len}"
            );
        }
    }
}
