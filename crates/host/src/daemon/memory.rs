//! The memory that the daemon hands out: blocks of sealed memory files.
use super::{StartError, lock_of};
use std::sync::{Arc, Mutex};
use tensorlease_arena::{AcquireError, Budget, GRANULE_BYTES, SlabId, SlabKind};
use tensorlease_memory::{InFlight, Lease, Pool, SealedSlabs, SlabMemory, limits};

/// Objects of this size and more have their pages to themselves, so that a process can map one without its neighbours.
const OWN_PAGES_BYTES_MIN: u64 = 64 << 10;

/// One budget for all that clients hold and store.
#[derive(Debug)]
pub(super) struct ArenaMemory {
    pool: Pool,
    /// One session makes a slab at a time; the others wait and then use it.
    growing: Mutex<()>,
}

impl ArenaMemory {
    pub(super) fn new(max_bytes: u64) -> Result<Self, StartError> {
        let refused = |message: String| StartError::Memory { max_bytes, message };
        if let Some(available) = limits::available_bytes().filter(|available| *available < max_bytes) {
            return Err(refused(format!(
                "this machine (or its cgroup) has {available} bytes left; lower it"
            )));
        }
        let page = limits::page_bytes() as u64;
        let budget = Budget::new(max_bytes, page).map_err(|error| refused(error.to_string()))?;
        // A memory file takes no memory before it is touched: one for everything, so that no object fails for a border.
        let budget = Budget {
            slab_bytes_first: budget.max_bytes,
            slab_bytes_max: budget.max_bytes,
            ..budget.without_bounce()
        };
        Ok(Self {
            pool: Pool::with_source("host arena", budget, Arc::new(SealedSlabs)),
            growing: Mutex::new(()),
        })
    }

    /// A block for an object of `len` bytes.
    pub(super) fn block(&self, len: u64) -> Result<InFlight, Full> {
        let page = self.pool.budget().page_bytes;
        if len < page {
            self.acquire(len, GRANULE_BYTES)
        } else if len < OWN_PAGES_BYTES_MIN {
            self.acquire(len, page)
        } else {
            self.pages(len)
        }
    }

    /// A block of whole pages.
    pub(super) fn pages(&self, len: u64) -> Result<InFlight, Full> {
        let page = self.pool.budget().page_bytes;
        match len.checked_next_multiple_of(page) {
            Some(whole) => self.acquire(whole, page),
            None => Err(self.full()),
        }
    }

    fn acquire(&self, len: u64, align: u64) -> Result<InFlight, Full> {
        if len == 0 {
            return Err(self.full());
        }
        let wanted = [(len, align)];
        let acquired = || {
            let admission = self.pool.acquire(SlabKind::Lease, &wanted);
            admission.blocks.into_iter().next().ok_or(admission.refused)
        };
        if let Ok(block) = acquired() {
            return Ok(block);
        }
        let _growing = lock_of(&self.growing);
        // Whatever the refusal was: a slab that another session was making is missing from the budget before blocks can be cut from it.
        match acquired() {
            Ok(block) => return Ok(block),
            Err(Some(AcquireError::NeedsSlab { .. })) => {}
            Err(_) => return Err(self.full()),
        }
        match self.pool.make_slab(SlabKind::Lease, len, len) {
            Ok(Some(slab)) => {
                self.pool.admit(slab);
            }
            Ok(None) => {}
            Err(error) => log::warn!("the host's arena can't grow: {error}"),
        }
        acquired().map_err(|_| self.full())
    }

    /// In flight while they are filled, leased once they are an object's or an extent.
    pub(super) fn lease(&self, block: InFlight) -> Lease {
        self.pool.lease(vec![block]).remove(0)
    }

    pub(super) fn slab(&self, slab: SlabId) -> Option<SlabMemory> {
        self.pool.slab(slab)
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.pool.budget().max_bytes
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let usage = self.pool.usage();
        usage.leased_bytes + usage.in_flight_bytes
    }

    fn full(&self) -> Full {
        Full {
            free: self.capacity_bytes().saturating_sub(self.held_bytes()),
        }
    }
}

/// There is no such block now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    /// Bytes that are free, perhaps in pieces.
    pub(super) free: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn large_objects_have_their_pages_to_themselves() {
        let memory = ArenaMemory::new(8 << 20).unwrap();
        let page = limits::page_bytes() as u64;
        let small = memory.block(100).unwrap();
        let large = memory.block(OWN_PAGES_BYTES_MIN + 1).unwrap();
        assert_eq!(small.block().len, 128);
        assert!(large.block().offset.is_multiple_of(page) && large.block().len.is_multiple_of(page));
        assert_eq!(memory.held_bytes(), small.block().len + large.block().len);
    }

    #[test]
    fn of_many_that_come_to_an_empty_arena_at_once_nobody_finds_it_full() {
        for _ in 0..200 {
            let memory = ArenaMemory::new(8 << 20).unwrap();
            let start = Barrier::new(8);
            let come = || {
                start.wait();
                memory.block(100).map(drop)
            };
            let served = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(come)).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect::<Vec<_>>()
            });
            assert_eq!(served, [Ok(()); 8]);
        }
    }

    #[test]
    fn a_full_arena_says_what_is_free_and_takes_blocks_again() {
        let memory = ArenaMemory::new(1 << 20).unwrap();
        let half = memory.block(512 << 10).unwrap();
        let refused = memory.block(768 << 10).unwrap_err();
        assert_eq!(refused.free, 512 << 10);
        assert!(memory.block(u64::MAX).is_err() && memory.block(0).is_err());
        drop(half);
        assert!(memory.block(1 << 20).is_ok());
    }
}
