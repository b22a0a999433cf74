//! A pool grows by one slab of a kind at a time. Callers wait for it as long as they like, and nothing that comes late is lost.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};
use tensorlease_arena::{AcquireError, Budget, SlabKind};
use tensorlease_memory::{
    ForkPolicy, GrowError, Grown, Growth, Mapping, MappingKind, NoSlab, Pool, Region, SlabKeeper, SlabMemory,
    SlabSource, Unregistered, limits,
};

const MIB: u64 = 1 << 20;
const KIND: SlabKind = SlabKind::Lease;
/// Long enough for anything that ends at all.
const SOON: Duration = Duration::from_secs(20);

fn budget(max_bytes: u64) -> Budget {
    let budget = Budget::new(max_bytes, limits::page_bytes() as u64).unwrap();
    Budget {
        slab_bytes_first: MIB,
        slab_bytes_max: 4 * MIB,
        ..budget.without_bounce()
    }
}

fn pool(max_bytes: u64) -> Pool {
    Pool::new("arena", budget(max_bytes), ForkPolicy::Inherit)
}

/// Does with slabs what a test says, and takes note of it.
#[derive(Default)]
struct Keeper {
    /// Registrations wait while this is set.
    hangs: AtomicBool,
    refuses: AtomicBool,
    panics: AtomicBool,
    registrations: AtomicU64,
    registered: Mutex<Vec<Region>>,
    rebuilt: AtomicU64,
    /// Whether each refusal was told as the first.
    refusals: Mutex<Vec<bool>>,
}

impl SlabKeeper for Keeper {
    fn register(&self, slab: Region) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.registrations.fetch_add(1, SeqCst);
        while self.hangs.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!self.panics.load(SeqCst), "as the test wants it");
        if self.refuses.load(SeqCst) {
            return Err("no locked memory".into());
        }
        self.registered.lock().unwrap().push(slab);
        Ok(())
    }

    fn unregister(&self, slab: Region) {
        let mut registered = self.registered.lock().unwrap();
        let at = registered.iter().position(|known| *known == slab);
        registered.remove(at.expect("only what is registered is unregistered"));
    }

    fn made(&self, _bytes: u64, rebuilt: bool) {
        self.rebuilt.fetch_add(u64::from(rebuilt), SeqCst);
    }

    fn refused(&self, _error: &GrowError, first: bool) {
        self.refusals.lock().unwrap().push(first);
    }
}

fn patiently() -> Result<Duration, Infallible> {
    Ok(SOON)
}

fn get(pool: &Pool, wanted: &[u64], keeper: &Arc<Keeper>) -> Grown {
    let wanted: Vec<(u64, u64)> = wanted.iter().map(|len| (*len, 64)).collect();
    let Ok(grown) = pool.acquire_growing(KIND, &wanted, keeper, patiently);
    grown
}

/// Waits at most for `patience`.
fn get_within(pool: &Pool, len: u64, keeper: &Arc<Keeper>, patience: Duration) -> Option<Grown> {
    let until = Instant::now() + patience;
    let slice = || {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(()) } else { Ok(left) }
    };
    pool.acquire_growing(KIND, &[(len, 64)], keeper, slice).ok()
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_caller_waits_no_longer_than_it_wants_and_the_late_slab_is_the_pools() {
    let (pool, keeper) = (pool(8 * MIB), Arc::new(Keeper::default()));
    keeper.hangs.store(true, SeqCst);
    // The second one waits for the same slab.
    for _ in 0..2 {
        let started = Instant::now();
        assert!(get_within(&pool, MIB, &keeper, Duration::from_millis(100)).is_none());
        let took = started.elapsed();
        assert!(Duration::from_millis(100) <= took && took < SOON / 2, "{took:?}");
    }
    assert!(pool.is_growing());
    keeper.hangs.store(false, SeqCst);
    eventually("the late slab", || !pool.is_growing());
    assert_eq!(
        pool.acquire(KIND, &[(MIB, 64)]).blocks.len(),
        1,
        "it is there for the next"
    );
    assert_eq!(keeper.registrations.load(SeqCst), 1);
}

#[test]
fn a_block_that_comes_back_serves_a_caller_that_waits_for_a_slab() {
    let (pool, keeper) = (pool(8 * MIB), Arc::new(Keeper::default()));
    let held = get(&pool, &[MIB], &keeper);
    keeper.hangs.store(true, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(get_within(&pool, MIB, &keeper, SOON).is_some(), "the next slab"));
        eventually("the second slab", || pool.is_growing());
        let waits = scope.spawn(|| {
            let until = Instant::now() + SOON;
            let slice = || (Instant::now() < until).then_some(Duration::from_millis(5)).ok_or(());
            pool.acquire_growing(KIND, &[(MIB, 64)], &keeper, slice)
        });
        drop(held);
        let got = waits.join().unwrap().expect("a block is free again");
        assert_eq!(got.blocks.len(), 1);
        assert!(pool.is_growing(), "without the slab");
        drop(got);
        keeper.hangs.store(false, SeqCst);
    });
}

#[test]
fn callers_with_the_same_need_make_one_slab() {
    for _ in 0..50 {
        let (pool, keeper) = (pool(8 * MIB), Arc::new(Keeper::default()));
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    let got = get(&pool, &[200_000], &keeper);
                    assert!(got.refused.is_none());
                    barrier.wait();
                });
            }
        });
        assert_eq!(keeper.registrations.load(SeqCst), 1);
    }
}

#[test]
fn nobody_finds_the_budget_taken_by_a_slab_that_is_about_to_come() {
    for _ in 0..200 {
        let (pool, barrier) = (pool(4 * MIB), Barrier::new(2));
        let unregistered = Arc::new(Unregistered);
        std::thread::scope(|scope| {
            for len in [200_000, 2 * MIB] {
                scope.spawn({
                    let (pool, barrier, unregistered) = (&pool, &barrier, &unregistered);
                    move || {
                        barrier.wait();
                        let Ok(got) = pool.acquire_growing(KIND, &[(len, 64)], unregistered, patiently);
                        assert!(got.refused.is_none(), "{len} bytes of 4 MiB: {:?}", got.refused);
                        barrier.wait();
                    }
                });
            }
        });
    }
}

#[test]
fn a_refusal_holds_for_a_while_and_is_told_as_the_first_once() {
    let (pool, keeper) = (pool(8 * MIB), Arc::new(Keeper::default()));
    keeper.refuses.store(true, SeqCst);
    for _ in 0..20 {
        let got = get(&pool, &[MIB], &keeper);
        let refused = got.refused.unwrap();
        assert!(matches!(refused.error, AcquireError::NeedsSlab { .. }));
        assert!(matches!(*refused.cause.unwrap(), GrowError::Register { len: MIB, .. }));
    }
    assert_eq!(keeper.registrations.load(SeqCst), 1, "a refusal can cost half a second");
    assert_eq!(pool.usage().arena_bytes, 0);
    // It ends by itself, with a longer one after it.
    eventually("the next try", || {
        get(&pool, &[MIB], &keeper);
        keeper.registrations.load(SeqCst) == 2
    });
    get(&pool, &[MIB], &keeper);
    assert_eq!(*keeper.refusals.lock().unwrap(), [true, false]);
    keeper.refuses.store(false, SeqCst);
    pool.forget_refusals();
    assert!(get(&pool, &[MIB], &keeper).refused.is_none());
    keeper.refuses.store(true, SeqCst);
    let rest = get(&pool, &[4 * MIB], &keeper);
    assert!(rest.refused.is_some());
    assert_eq!(*keeper.refusals.lock().unwrap(), [true, false, true]);
}

#[test]
fn a_refusal_of_one_kind_says_nothing_about_the_other() {
    let budget = Budget::new(8 * MIB, limits::page_bytes() as u64).unwrap();
    let budget = Budget {
        slab_bytes_first: MIB,
        slab_bytes_max: 4 * MIB,
        ..budget.with_bounce(MIB).unwrap()
    };
    let (pool, keeper) = (
        Pool::new("arena", budget, ForkPolicy::Inherit),
        Arc::new(Keeper::default()),
    );
    keeper.refuses.store(true, SeqCst);
    assert!(get(&pool, &[MIB], &keeper).refused.is_some());
    keeper.refuses.store(false, SeqCst);
    let Ok(bounce) = pool.acquire_growing(SlabKind::Bounce, &[(1000, 64)], &keeper, patiently);
    assert!(bounce.refused.is_none());
    assert!(get(&pool, &[MIB], &keeper).refused.is_some(), "that one holds");
}

#[test]
fn only_empty_slabs_whose_release_makes_room_are_given_up() {
    let (pool, keeper) = (pool(10 * MIB), Arc::new(Keeper::default()));
    let kept = get(&pool, &[MIB], &keeper);
    drop(get(&pool, &[4 * MIB], &keeper));
    drop(get(&pool, &[2 * MIB, 4 * MIB], &keeper));
    assert_eq!(pool.usage().arena_bytes, 9 * MIB, "slabs of 1, 4 and 4 MiB");
    for _ in 0..3 {
        assert!(get(&pool, &[9 * MIB + 4096], &keeper).refused.is_some());
    }
    assert_eq!(pool.usage().arena_bytes, 9 * MIB, "all of them would not be enough");
    assert!(get(&pool, &[5 * MIB], &keeper).refused.is_none(), "one of them is");
    assert_eq!(pool.usage().arena_bytes, 10 * MIB);
    assert_eq!(keeper.registered.lock().unwrap().len(), 3);
    assert_eq!(keeper.rebuilt.load(SeqCst), 1);
    drop(kept);
}

/// Lends so many bytes in all.
struct Lender(Arc<AtomicU64>);

struct Lent(Arc<AtomicU64>, u64);

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.fetch_add(self.1, SeqCst);
    }
}

impl SlabSource for Lender {
    fn make(&self, len: usize) -> Result<SlabMemory, NoSlab> {
        let bytes = len as u64;
        let taken = self.0.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(bytes));
        taken.map_err(|free| NoSlab::Full { free })?;
        let mapping = Arc::new(Mapping::new(MappingKind::Anonymous, len)?);
        Ok(SlabMemory::part(
            mapping,
            0..len,
            Arc::new(Lent(Arc::clone(&self.0), bytes)),
        ))
    }
}

#[test]
fn what_a_lender_has_left_decides_whether_empty_slabs_go_back() {
    let left = Arc::new(AtomicU64::new(4 * MIB));
    let pool = Pool::with_source("arena", budget(64 * MIB), Arc::new(Lender(Arc::clone(&left))));
    let keeper = Arc::new(Keeper::default());
    drop(get(&pool, &[3 * MIB], &keeper));
    assert_eq!(pool.usage().arena_bytes, 3 * MIB);
    assert!(get(&pool, &[4 * MIB + 4096], &keeper).refused.is_some());
    assert_eq!(pool.usage().arena_bytes, 3 * MIB, "in vain");
    assert!(get(&pool, &[4 * MIB], &keeper).refused.is_none());
    assert_eq!(left.load(SeqCst), 0);
}

#[test]
fn a_slab_that_comes_after_the_close_goes_back_unregistered() {
    let (pool, keeper) = (pool(8 * MIB), Arc::new(Keeper::default()));
    keeper.hangs.store(true, SeqCst);
    assert!(get_within(&pool, MIB, &keeper, Duration::from_millis(20)).is_none());
    pool.close();
    keeper.hangs.store(false, SeqCst);
    eventually("its end", || !pool.is_growing());
    assert_eq!(*keeper.registered.lock().unwrap(), []);
    assert_eq!((pool.usage().arena_bytes, pool.regions().len()), (0, 0));
    assert!(get(&pool, &[MIB], &keeper).refused.is_some());
    assert_eq!(keeper.registrations.load(SeqCst), 1);
}

#[test]
fn a_keeper_that_panics_refuses_its_slab() {
    let (pool, keeper) = (pool(8 * MIB), Arc::new(Keeper::default()));
    keeper.panics.store(true, SeqCst);
    let refused = get(&pool, &[MIB], &keeper).refused.unwrap();
    assert!(matches!(*refused.cause.unwrap(), GrowError::Panicked));
    assert!(!pool.is_growing());
    keeper.panics.store(false, SeqCst);
    pool.forget_refusals();
    assert!(get(&pool, &[MIB], &keeper).refused.is_none());
}

#[test]
fn a_slab_may_be_had_before_there_is_a_need() {
    let (pool, keeper) = (pool(2 * MIB), Arc::new(Keeper::default()));
    let mut lens = Vec::new();
    loop {
        let Ok(growth) = pool.grow(KIND, 1, 1, &keeper, patiently);
        match growth {
            Growth::Made(len) => lens.push(len),
            Growth::NoRoom => break,
            Growth::Refused(error) => panic!("{error}"),
        }
    }
    assert_eq!(lens, [MIB, MIB]);
}
