//! What a pool knows of its memory: the slabs, and who has which block.

use crate::fork::ForkPolicy;
use crate::growing::Growing;
use crate::leased_blocks::LeasedBlocks;
use crate::slab::{Hold, Slab, to_usize};
use crate::sync::{Mutex, MutexGuard};
use crate::{ReturnList, SlabMemory, SlabSource};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StaticMutex, PoisonError};
use tensorlease_arena::{AcquireError, Arena, BlockId, Budget, SlabId, SlabKind};

/// Slabs of pools that went while some of their blocks were quarantined. Never emptied.
static KEPT_MAPPED: StaticMutex<Vec<Arc<Slab>>> = StaticMutex::new(Vec::new());

/// What all handles of a pool share.
pub(crate) struct Shared {
    pub(crate) name: &'static str,
    pub(crate) budget: Budget,
    pub(crate) fork: ForkPolicy,
    /// None: each slab is a mapping of its own.
    pub(crate) source: Option<Arc<dyn SlabSource>>,
    pub(crate) returns: Arc<ReturnList>,
    pub(crate) books: Mutex<Books>,
    pub(crate) growing: Growing,
}

/// Everything under the lock.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) arena: Arena,
    pub(crate) slabs: BTreeMap<SlabId, Arc<Slab>>,
    pub(crate) leased: LeasedBlocks,
    /// One entry per quarantined block: its slab must stay mapped, come what may.
    pub(crate) quarantined: Vec<Arc<Slab>>,
    pub(crate) stale_returns: u64,
    pub(crate) closed: bool,
}

impl Shared {
    /// A panic while the lock was held does not make the pool unusable: each change of the books is one call of the arena,
    /// which checks before it changes anything, so the books are whole between any two.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_drained(&self) -> MutexGuard<'_, Books> {
        let mut books = self.lock();
        self.returns.drain(|id| books.give_back(id));
        books
    }

    /// In flight -> leased, all under one lock. The blocks are this pool's.
    pub(crate) fn lease<'b>(&self, blocks: impl Iterator<Item = &'b Hold>) {
        let mut books = self.lock();
        for block in blocks {
            books.lease(block);
        }
    }

    pub(crate) fn check_own(self: &Arc<Self>, block: &Hold) {
        let pool = block.slab().pool();
        assert!(
            std::ptr::eq(pool.as_ptr(), Arc::as_ptr(self)),
            "a block goes back to the pool it came from, not to the {}",
            self.name
        );
    }
}

impl Books {
    pub(crate) fn acquire(&mut self, kind: SlabKind, len: u64, align: u64) -> Result<Hold, AcquireError> {
        if self.closed {
            let usage = self.arena.usage();
            return Err(AcquireError::Exhausted {
                asked: len,
                free: 0,
                largest: 0,
                held: usage.leased_bytes + usage.in_flight_bytes + usage.quarantined_bytes,
            });
        }
        let block = self.arena.acquire(kind, len, align)?;
        let slab = self.slabs.get(&block.slab).expect("a block lies in an admitted slab");
        Ok(Hold::new(Arc::clone(slab), block, to_usize(len)))
    }

    fn lease(&mut self, block: &Hold) {
        let id = block.block().id;
        let leased = self.arena.lease(id);
        leased.expect("a block stays in flight while its InFlight lives");
        self.leased.insert(id.index, block.region());
    }

    fn give_back(&mut self, id: BlockId) {
        match self.arena.release(id) {
            Ok(()) => self.leased.remove(id.index),
            Err(stale) => {
                debug_assert!(false, "a block is handed out once and comes back once: {stale}");
                self.stale_returns += 1;
            }
        }
    }

    /// Of at most `most` bytes, but long enough for `largest`.
    pub(crate) fn reserve_slab(
        &mut self,
        kind: SlabKind,
        missing_bytes: u64,
        largest: u64,
        most: u64,
    ) -> Option<(SlabId, u64)> {
        let page = self.arena.budget().page_bytes;
        let len = self.arena.next_slab_len(kind, missing_bytes, largest)?;
        let len = len.min((most - most % page).max(shortest_slab(largest, page)));
        Some((self.arena.reserve_slab(kind, len)?, len))
    }

    pub(crate) fn take_empty_slabs(&mut self, wanted: impl Fn(SlabKind) -> bool) -> Vec<SlabMemory> {
        let mut taken = Vec::new();
        for (id, kind, _) in self.arena.empty_slabs() {
            if wanted(kind) {
                taken.extend(self.take_slab(id));
            }
        }
        taken
    }

    /// None: blocks of it are out, or it is being made and its memory is its reservation's.
    pub(crate) fn take_slab(&mut self, slab: SlabId) -> Option<SlabMemory> {
        self.arena.remove_slab(slab).ok()?;
        let memory = self.slabs.remove(&slab)?;
        Some(memory.memory().clone())
    }
}

impl Drop for Books {
    fn drop(&mut self) {
        // Rule 4 of the crate documentation: an abandoned transfer may still write these.
        let mut kept = KEPT_MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        kept.append(&mut self.quarantined);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Shared")
            .field("name", &self.name)
            .field("books", &self.books)
            .finish_non_exhaustive()
    }
}

/// Whole pages that hold a block of `largest` bytes.
pub(crate) fn shortest_slab(largest: u64, page_bytes: u64) -> u64 {
    largest.max(1).next_multiple_of(page_bytes)
}
