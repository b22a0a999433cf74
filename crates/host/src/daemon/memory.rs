//! The memory that the daemon hands out: blocks of sealed memory files. They are registered with the engine behind the
//! daemon.
use super::start::StartError;
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tensorlease_arena::{Budget, GRANULE_BYTES, SlabId, SlabKind};
use tensorlease_engine::{Engine, chained};
use tensorlease_memory::{
    GrowError, Growth, InFlight, Lease, Pool, Region, SealedSlabs, SlabKeeper, SlabMemory, Ungrown, limits,
};

/// Objects of this size and more have their pages to themselves, so that a process can map one without its neighbours.
const OWN_PAGES_BYTES_MIN: u64 = 64 << 10;

/// Length and alignment of a block, bytes.
type Wanted = (u64, u64);

/// Slice of a wait for a slab. A session waits as long as the engine takes to register it. The client ends its own wait
/// when it likes.
const SLICE: Duration = Duration::from_secs(1);

/// A longer reason is cut.
const REASON_CHARACTERS_MAX: usize = 1000;

/// One budget for all that clients hold and store.
pub(super) struct ArenaMemory {
    pool: Pool,
    keeper: Arc<Keeper>,
}

/// Registers every slab once, before a block of it is handed out.
#[derive(Clone)]
struct Keeper(Option<Arc<dyn Engine>>);

impl SlabKeeper for Keeper {
    fn register(&self, slab: Region) -> Result<(), Box<dyn Error + Send + Sync>> {
        match &self.0 {
            Some(engine) => Ok(engine.register(slab)?),
            None => Ok(()),
        }
    }

    fn unregister(&self, slab: Region) {
        if let Some(engine) = &self.0
            && let Err(error) = engine.unregister(slab)
        {
            log::warn!("cannot unregister {} bytes: {error}", slab.len);
        }
    }

    fn refused(&self, error: &GrowError, first: bool) {
        let level = if first { log::Level::Warn } else { log::Level::Debug };
        log::log!(level, "the host's arena can't grow: {}", self.words(error));
    }
}

impl Keeper {
    fn words(&self, error: &GrowError) -> String {
        match (error, &self.0) {
            (GrowError::Register { len, source }, Some(engine)) => {
                let (name, cause) = (engine.capabilities().name, chained(&**source));
                format!("the {name} engine refuses to register {len} bytes more: {cause}")
            }
            _ => chained(error),
        }
    }
}

impl ArenaMemory {
    /// Memory for objects and extents. With an engine behind the daemon every slab is registered, and is as large as
    /// one of its registrations may be. Without one a single slab has everything, so that no object fails at a border:
    /// a memory file takes no memory before it is touched.
    pub(super) fn new(max_bytes: u64, engine: Option<Arc<dyn Engine>>) -> Result<Self, StartError> {
        let refused = |message: String| StartError::Memory { max_bytes, message };
        if let Some(available) = limits::available_bytes().filter(|available| *available < max_bytes) {
            return Err(refused(format!(
                "this machine (or its cgroup) has {available} bytes left; lower it"
            )));
        }
        let page = limits::page_bytes() as u64;
        let budget = Budget::new(max_bytes, page).map_err(|error| refused(error.to_string()))?;
        let registration_max = |engine: &Arc<dyn Engine>| engine.capabilities().registration_bytes_max;
        let most = engine.as_ref().map_or(u64::MAX, registration_max);
        let slab_bytes = budget.max_bytes.min((most - most % page).max(page));
        let budget = Budget {
            slab_bytes_first: slab_bytes,
            slab_bytes_max: slab_bytes,
            ..budget.without_bounce()
        };
        let memory = Self {
            pool: Pool::with_source("host arena", budget, Arc::new(SealedSlabs)),
            keeper: Arc::new(Keeper(engine)),
        };
        // The first slab is made before any client comes. Where the system (`ulimit -v`, `ulimit -f`) or the engine
        // gives none, a client would be told that the arena is full.
        let Ok(grown) = memory.pool.grow(SlabKind::Lease, 1, 1, &memory.keeper, patiently);
        match grown {
            Growth::Made(_) => Ok(memory),
            Growth::NoRoom => Err(refused("it is less than one slab takes; raise it".to_owned())),
            Growth::Refused(error) => Err(refused(memory.keeper.words(&error))),
        }
    }

    /// A block for an object of each length.
    pub(super) fn blocks(&self, lens: &[u64]) -> Vec<Result<InFlight, Full>> {
        let wanted: Vec<Option<Wanted>> = lens.iter().map(|len| self.wanted(*len)).collect();
        // As many as there is room for without another slab are taken under one lock.
        let first: Vec<Wanted> = wanted.iter().map_while(|wanted| *wanted).collect();
        let got = self.pool.acquire(SlabKind::Lease, &first).blocks;
        let rest = wanted[got.len()..].iter();
        let rest: Vec<_> = rest.map(|wanted| self.acquire(*wanted)).collect();
        got.into_iter().map(Ok).chain(rest).collect()
    }

    /// A block of whole pages.
    pub(super) fn pages(&self, len: u64) -> Result<InFlight, Full> {
        self.acquire(self.whole_pages(len))
    }

    fn wanted(&self, len: u64) -> Option<Wanted> {
        let page = self.pool.budget().page_bytes;
        if OWN_PAGES_BYTES_MIN <= len {
            return self.whole_pages(len);
        }
        let align = if len < page { GRANULE_BYTES } else { page };
        self.possible((len, align))
    }

    fn whole_pages(&self, len: u64) -> Option<Wanted> {
        let page = self.pool.budget().page_bytes;
        self.possible((len.checked_next_multiple_of(page)?, page))
    }

    /// No transfer may cross from one registration into the next.
    fn possible(&self, wanted: Wanted) -> Option<Wanted> {
        (0 < wanted.0 && wanted.0 <= self.longest_block_bytes()).then_some(wanted)
    }

    /// `None` asks for a block that can't exist.
    fn acquire(&self, wanted: Option<Wanted>) -> Result<InFlight, Full> {
        let Some(wanted) = wanted else {
            return Err(self.full(None));
        };
        let Ok(mut grown) = self
            .pool
            .acquire_growing(SlabKind::Lease, &[wanted], &self.keeper, patiently);
        let refusal = |Ungrown { cause, .. }| {
            let cause = cause?;
            Some(Refusal {
                why: self.keeper.words(&cause).chars().take(REASON_CHARACTERS_MAX).collect(),
                registration: matches!(*cause, GrowError::Register { .. }),
            })
        };
        let block = grown.blocks.pop();
        block.ok_or_else(|| self.full(grown.refused.and_then(refusal)))
    }

    /// Longest block, bytes.
    pub(super) fn longest_block_bytes(&self) -> u64 {
        self.pool.budget().slab_bytes_max
    }

    /// Every slab's region, to be unregistered.
    pub(super) fn regions(&self) -> Vec<Region> {
        self.pool.regions()
    }

    /// Blocks are in flight while they are filled. They are leased once they are objects or extents.
    pub(super) fn lease(&self, blocks: Vec<InFlight>) -> Vec<Lease> {
        self.pool.lease(blocks)
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

    fn full(&self, refusal: Option<Refusal>) -> Full {
        Full {
            free: self.capacity_bytes().saturating_sub(self.held_bytes()),
            refusal,
        }
    }
}

fn patiently() -> Result<Duration, Infallible> {
    Ok(SLICE)
}

/// There is no block of that length now.
#[derive(Debug)]
pub(super) struct Full {
    /// Bytes that are free, perhaps in pieces.
    pub(super) free: u64,
    /// Why the arena does not grow, where its bound allows it.
    pub(super) refusal: Option<Refusal>,
}

/// Why the arena does not grow.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// The engine refused to register more memory. Otherwise the system has none.
    pub(super) registration: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ArenaMemory {
        fn block(&self, len: u64) -> Result<InFlight, Full> {
            self.blocks(&[len]).remove(0)
        }
    }

    #[test]
    fn blocks_are_had_in_order_and_each_that_is_not_says_so() {
        let memory = ArenaMemory::new(1 << 20, None).unwrap();
        let got = memory.blocks(&[100, 0, 512 << 10, u64::MAX, 768 << 10, 200]);
        let had: Vec<bool> = got.iter().map(Result::is_ok).collect();
        assert_eq!(had, [true, false, true, false, false, true]);
        let lens = got.iter().flatten().map(|block| block.len() as u64);
        assert_eq!(lens.collect::<Vec<_>>(), [100, 512 << 10, 200]);
    }

    #[test]
    fn large_objects_have_their_pages_to_themselves() {
        let memory = ArenaMemory::new(8 << 20, None).unwrap();
        let page = limits::page_bytes() as u64;
        let small = memory.block(100).unwrap();
        let large = memory.block(OWN_PAGES_BYTES_MIN + 1).unwrap();
        assert_eq!(small.block().len, 128);
        assert!(large.block().offset.is_multiple_of(page) && large.block().len.is_multiple_of(page));
        assert_eq!(memory.held_bytes(), small.block().len + large.block().len);
    }

    #[test]
    fn an_arena_whose_first_slab_is_being_made_is_not_full() {
        for _ in 0..50 {
            let memory = ArenaMemory::new(8 << 20, None).unwrap();
            let barrier = std::sync::Barrier::new(8);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        barrier.wait();
                        memory.block(100).unwrap();
                    });
                }
            });
        }
    }

    #[test]
    fn a_full_arena_says_what_is_free_and_takes_blocks_again() {
        let memory = ArenaMemory::new(1 << 20, None).unwrap();
        let half = memory.block(512 << 10).unwrap();
        let refused = memory.block(768 << 10).unwrap_err();
        assert_eq!(refused.free, 512 << 10);
        assert!(memory.block(u64::MAX).is_err() && memory.block(0).is_err());
        drop(half);
        assert!(memory.block(1 << 20).is_ok());
    }
}
