//! Slabs + arena bookkeeping + the return list: hands out blocks of memory.

use crate::books::{Books, Shared, shortest_slab};
use crate::fork::ForkPolicy;
use crate::growing::{GrowError, Growing};
use crate::leased_blocks::LeasedBlocks;
use crate::slab::{Slab, to_usize};
use crate::sync::Mutex;
use crate::{InFlight, Lease, Mapping, MappingKind, NoSlab, Region, ReturnList, SlabMemory, SlabSource};
use std::collections::BTreeMap;
use std::sync::Arc;
use tensorlease_arena::{AcquireError, Arena, Budget, SlabId, SlabKind, Usage};

/// Result of [`Pool::acquire`].
#[derive(Debug)]
pub struct Admission {
    /// The blocks got, in the order of the requests.
    pub blocks: Vec<InFlight>,
    /// Why the request after the last block was refused. None: all were served.
    pub refused: Option<AcquireError>,
}

/// Hands out blocks of memory. Clone = another handle of the same pool.
///
/// One lock guards the books; it is held for index arithmetic only, never while memory is mapped, populated or copied. In
/// a forked child a pool must not be used (the lock may have been held by a thread that is not there).
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool without slabs. `name` is for messages ("arena", "copy cache").
    pub fn new(name: &'static str, budget: Budget, fork: ForkPolicy) -> Self {
        Self::made(name, budget, fork, None)
    }

    /// The same, with slabs that come from `source`, which decides what a fork and a first touch cost.
    pub fn with_source(name: &'static str, budget: Budget, source: Arc<dyn SlabSource>) -> Self {
        Self::made(name, budget, ForkPolicy::Inherit, Some(source))
    }

    fn made(name: &'static str, budget: Budget, fork: ForkPolicy, source: Option<Arc<dyn SlabSource>>) -> Self {
        let books = Books {
            arena: Arena::new(budget),
            slabs: BTreeMap::new(),
            leased: LeasedBlocks::default(),
            quarantined: Vec::new(),
            stale_returns: 0,
            closed: false,
        };
        let shared = Shared {
            name,
            budget,
            fork,
            source,
            returns: Arc::new(ReturnList::new()),
            books: Mutex::new(books),
            growing: Growing::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The name given at birth.
    pub fn name(&self) -> &'static str {
        self.shared.name
    }

    /// The limits.
    pub fn budget(&self) -> Budget {
        self.shared.budget
    }

    /// Drains the return list, then acquires one block per `(len, align)` in order until the first that can't be had. One
    /// lock. Panics on a length of 0.
    pub fn acquire(&self, kind: SlabKind, wanted: &[(u64, u64)]) -> Admission {
        assert!(wanted.iter().all(|&(len, _)| len > 0), "a block has at least one byte");
        let mut blocks = Vec::with_capacity(wanted.len());
        let mut books = self.shared.lock_drained();
        let mut refused = None;
        for &(len, align) in wanted {
            match books.acquire(kind, len, align) {
                Ok(hold) => blocks.push(InFlight::new(hold, to_usize(len))),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        // Before any of the blocks leaves this function, and so before any can be pushed.
        self.shared.returns.reserve(books.arena.block_index_limit());
        Admission { blocks, refused }
    }

    /// Reserves budget, then maps and populates a slab for what is missing (outside the lock, in this thread). None: the budget
    /// allows none, the source of the slabs has no room, or the pool is closed. The caller registers `region()` with its engine, then admits it.
    ///
    /// # Errors
    /// [`GrowError`]; the budget is given back.
    pub fn make_slab(
        &self,
        kind: SlabKind,
        missing_bytes: u64,
        largest: u64,
    ) -> Result<Option<SlabReservation>, GrowError> {
        match self.make(kind, missing_bytes, largest)? {
            Made::Slab(slab) => Ok(Some(slab)),
            Made::NoRoom { cause: Some(cause), .. } => Err(cause),
            Made::NoRoom { cause: None, .. } => Ok(None),
        }
    }

    pub(crate) fn make(&self, kind: SlabKind, missing_bytes: u64, largest: u64) -> Result<Made, GrowError> {
        let mut most = u64::MAX;
        loop {
            let reserved = {
                let mut books = self.shared.lock_drained();
                let open = !books.closed;
                open.then(|| books.reserve_slab(kind, missing_bytes, largest, most))
                    .flatten()
            };
            let Some((slab, len)) = reserved else {
                return Ok(Made::NoRoom {
                    left: u64::MAX,
                    cause: None,
                });
            };
            let mut reservation = SlabReservation {
                pool: self.clone(),
                slab,
                memory: None,
                admitted: false,
            };
            let (left, cause) = match self.map(len) {
                Ok(memory) => {
                    reservation.memory = Some(memory);
                    return Ok(Made::Slab(reservation));
                }
                Err(NoSlab::Map(source)) => return Err(GrowError::Map { len, source }),
                Err(NoSlab::Gone { why }) => return Err(GrowError::Gone { why }),
                Err(NoSlab::Full { free }) => (free, None),
                Err(NoSlab::Refused { why, registration }) => (0, Some(GrowError::Lender { why, registration })),
            };
            drop(reservation);
            // A source that has no room for this one may have it for a shorter one.
            if len <= shortest_slab(largest, self.shared.budget.page_bytes) {
                return Ok(Made::NoRoom { left, cause });
            }
            most = len / 2;
        }
    }

    /// From now on blocks are cut from the slab. Panics on another pool's slab.
    pub fn admit(&self, slab: SlabReservation) -> SlabId {
        self.admitted(slab, &mut self.shared.lock())
    }

    /// As [`Pool::admit`]; gives it back where the pool was closed meanwhile.
    pub(crate) fn admit_if_open(&self, slab: SlabReservation) -> Result<SlabId, SlabReservation> {
        let mut books = self.shared.lock();
        if books.closed {
            drop(books);
            return Err(slab);
        }
        Ok(self.admitted(slab, &mut books))
    }

    fn admitted(&self, mut slab: SlabReservation, books: &mut Books) -> SlabId {
        assert!(
            Arc::ptr_eq(&self.shared, &slab.pool.shared),
            "a slab is admitted to the pool that made it, not to the {}",
            self.shared.name
        );
        let memory = slab
            .memory
            .take()
            .expect("a reservation holds its memory until it is admitted");
        let memory = Slab::new(memory, Arc::clone(&self.shared.returns), Arc::downgrade(&self.shared));
        books.arena.admit_slab(slab.slab);
        books.slabs.insert(slab.slab, Arc::new(memory));
        slab.admitted = true;
        slab.slab
    }

    /// In flight -> leased, all under one lock, order kept. Panics on another pool's block.
    pub fn lease(&self, blocks: Vec<InFlight>) -> Vec<Lease> {
        for block in &blocks {
            self.shared.check_own(block.hold());
        }
        self.shared.lease(blocks.iter().map(InFlight::hold));
        blocks.into_iter().map(Lease::new).collect()
    }

    /// In flight -> quarantined: a transfer may still write the block. Its memory stays mapped and is not reused until
    /// [`Pool::end_quarantine`]; if the pool goes before that, the slab's memory is kept for good. How much may be
    /// quarantined is the caller's to compare with [`Usage::quarantined_bytes`]: the block is quarantined in any case. Takes the lock, so it is for workers, not for deleters. Panics on another pool's block.
    pub fn quarantine(&self, block: InFlight) {
        self.shared.check_own(block.hold());
        let mut books = self.shared.lock();
        let quarantined = books.arena.quarantine(block.block().id);
        quarantined.expect("a block stays in flight while its InFlight lives");
        books.quarantined.push(block.into_hold().into_slab());
    }

    /// Quarantined -> free, all of them: whatever might still have written is closed. Returns the bytes.
    pub fn end_quarantine(&self) -> u64 {
        let mut books = self.shared.lock();
        books.quarantined.clear();
        books.arena.end_quarantine()
    }

    /// Removes slabs without blocks; their memory is returned so that the caller can unregister it before it drops.
    pub fn take_empty_slabs(&self) -> Vec<SlabMemory> {
        self.shared.lock_drained().take_empty_slabs(|_| true)
    }

    /// As [`Pool::take_empty_slabs`], of one kind: what makes room for a larger slab of that kind.
    pub fn take_empty_slabs_of(&self, kind: SlabKind) -> Vec<SlabMemory> {
        self.shared.lock_drained().take_empty_slabs(|other| other == kind)
    }

    /// Removes the empty slabs whose release makes room for a block of `largest` bytes; none where there is room, or where all
    /// of them are too little. `left`: bytes that the source of the slabs has free.
    pub(crate) fn take_slabs_for(&self, kind: SlabKind, largest: u64, left: u64) -> Vec<SlabMemory> {
        let mut books = self.shared.lock_drained();
        let given_up = books.arena.slabs_to_give_up(kind, largest, left).unwrap_or_default();
        given_up.into_iter().filter_map(|slab| books.take_slab(slab)).collect()
    }

    /// May there be a slab for a block of `largest` bytes, in place of empty ones where it must?
    pub(crate) fn may_grow(&self, kind: SlabKind, largest: u64) -> bool {
        let books = self.shared.lock();
        !books.closed && books.arena.slabs_to_give_up(kind, largest, u64::MAX).is_some()
    }

    pub(crate) fn growing(&self) -> &Growing {
        &self.shared.growing
    }

    /// Has it a slab of that kind?
    pub fn has_slab(&self, kind: SlabKind) -> bool {
        0 < self.shared.lock().arena.usage_of(kind).slabs
    }

    /// All slabs' regions (for unregistering at close).
    pub fn regions(&self) -> Vec<Region> {
        let books = self.shared.lock();
        books.slabs.values().map(|slab| slab.memory().region()).collect()
    }

    /// The memory of one slab. None: there is no such slab.
    pub fn slab(&self, slab: SlabId) -> Option<SlabMemory> {
        let books = self.shared.lock();
        books.slabs.get(&slab).map(|slab| slab.memory().clone())
    }

    /// Is this range inside one live (leased) block of this pool? Then a write may use it in place.
    pub fn contains(&self, region: Region) -> bool {
        let mut books = self.shared.lock_drained();
        // Most memory that is written is not the pool's, and needs no index of the blocks to say so.
        let in_slab = books.slabs.values().any(|slab| slab.memory().region().contains(region));
        in_slab && books.leased.contains(region)
    }

    /// Drains the return list, then reports.
    pub fn usage(&self) -> Usage {
        self.shared.lock_drained().arena.usage()
    }

    /// Returned blocks that the books did not know as handed out: always 0, or this crate has a bug.
    pub fn stale_returns(&self) -> u64 {
        self.shared.lock_drained().stale_returns
    }

    /// From now on every acquire is refused as exhausted and no slab is made; leases stay valid.
    pub fn close(&self) {
        self.shared.lock().closed = true;
    }

    /// Is it closed?
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    fn map(&self, len: u64) -> Result<SlabMemory, NoSlab> {
        if let Some(source) = &self.shared.source {
            return source.make(to_usize(len));
        }
        let mapping = Mapping::new(MappingKind::Anonymous, to_usize(len))?;
        if self.shared.fork == ForkPolicy::Exclude {
            mapping.exclude_from_fork()?;
        }
        mapping.populate()?;
        Ok(SlabMemory::whole(Arc::new(mapping)))
    }
}

/// What became of a slab that was to be made.
#[derive(Debug)]
pub(crate) enum Made {
    /// Its memory is there.
    Slab(SlabReservation),
    /// There is no room for it.
    NoRoom {
        /// Bytes that the source of the slabs has free, perhaps in pieces.
        left: u64,
        /// Why the source has none.
        cause: Option<GrowError>,
    },
}

/// Budget taken for a slab that is being made, and its memory. Dropped without `admit`, both are given back.
#[derive(Debug)]
pub struct SlabReservation {
    pool: Pool,
    slab: SlabId,
    /// None only before the memory is made and once it is admitted.
    memory: Option<SlabMemory>,
    admitted: bool,
}

impl SlabReservation {
    /// The memory to register.
    pub fn region(&self) -> Region {
        self.memory().region()
    }

    /// Length, bytes.
    pub fn len(&self) -> u64 {
        self.memory().len() as u64
    }

    fn memory(&self) -> &SlabMemory {
        self.memory.as_ref().expect("whoever has a reservation has its memory")
    }
}

impl Drop for SlabReservation {
    fn drop(&mut self) {
        if !self.admitted {
            // The memory goes before its budget does, so that the two together never exceed the limit.
            drop(self.memory.take());
            self.pool.shared.lock().arena.cancel_slab(self.slab);
        }
    }
}
