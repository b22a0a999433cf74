//! The pool as its users see it: blocks are handed out once, come back once, and outlive everything they can.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::{Barrier, mpsc};
use tensorlease_arena::{AcquireError, Budget, SlabKind};
use tensorlease_memory::{CopyMode, ForkPolicy, InFlight, Lease, Pool, Region, copy, limits};

const MIB: u64 = 1 << 20;

fn budget(max_bytes: u64) -> Budget {
    let budget = Budget::new(max_bytes, limits::page_bytes() as u64)
        .unwrap()
        .without_bounce();
    Budget {
        slab_bytes_first: MIB,
        slab_bytes_max: 4 * MIB,
        ..budget
    }
}

fn pool(max_bytes: u64) -> Pool {
    Pool::new("arena", budget(max_bytes), ForkPolicy::Inherit)
}

/// A pool with one slab of `bytes`.
fn pool_with_slab(bytes: u64) -> Pool {
    let pool = pool(bytes);
    let slab = pool.make_slab(SlabKind::Lease, bytes, bytes).unwrap().unwrap();
    assert_eq!(slab.len(), bytes);
    pool.admit(slab);
    pool
}

fn one(pool: &Pool, len: u64) -> InFlight {
    let mut admission = pool.acquire(SlabKind::Lease, &[(len, 64)]);
    assert_eq!(admission.refused, None);
    admission.blocks.pop().unwrap()
}

fn fill(block: &InFlight, byte: u8) {
    let bytes = vec![byte; block.len()];
    copy(bytes.as_slice().into(), &block.target(0..block.len()), CopyMode::Cached);
}

fn one_lease(pool: &Pool, len: u64, byte: u8) -> Lease {
    let block = one(pool, len);
    fill(&block, byte);
    pool.lease(vec![block]).pop().unwrap()
}

#[test]
fn a_pool_grows_only_when_asked_and_says_that_it_could() {
    let pool = pool(8 * MIB);
    let admission = pool.acquire(SlabKind::Lease, &[(1000, 64)]);
    assert!(admission.blocks.is_empty());
    assert!(matches!(
        admission.refused,
        Some(AcquireError::NeedsSlab { asked: 1000, .. })
    ));
    let slab = pool.make_slab(SlabKind::Lease, 1000, 1000).unwrap().unwrap();
    let region = slab.region();
    assert_eq!(region.len as u64, MIB, "the first slab is small");
    pool.admit(slab);
    assert_eq!(pool.regions(), [region]);
    assert!(region.contains(one(&pool, 1000).region()));
}

#[test]
fn blocks_come_in_order_until_the_first_that_is_refused() {
    let pool = pool_with_slab(MIB);
    let admission = pool.acquire(SlabKind::Lease, &[(100, 64), (MIB / 2, 64), (MIB, 64), (100, 64)]);
    let lens: Vec<_> = admission.blocks.iter().map(InFlight::len).collect();
    assert_eq!(lens, [100, 1 << 19]);
    assert!(matches!(
        admission.refused,
        Some(AcquireError::Exhausted { asked: MIB, .. })
    ));
}

#[test]
fn a_dropped_block_is_reused() {
    let pool = pool_with_slab(MIB);
    let lease = one_lease(&pool, MIB, 1);
    let region = lease.region();
    assert!(pool.acquire(SlabKind::Lease, &[(MIB, 64)]).refused.is_some());
    drop(lease);
    let again = one(&pool, MIB);
    assert_eq!(again.region(), region);
    drop(again);
    assert_eq!(
        one(&pool, MIB).region(),
        region,
        "a block dropped in flight comes back too"
    );
    assert_eq!(pool.stale_returns(), 0);
}

#[test]
fn a_lease_outlives_its_pool() {
    let pool = pool_with_slab(MIB);
    let mut lease = one_lease(&pool, 10_000, 7);
    let in_flight = one(&pool, 5000);
    drop(pool);
    assert!(lease.as_slice().iter().all(|&byte| byte == 7));
    lease.as_mut_slice().fill(8);
    fill(&in_flight, 9);
    assert!(lease.as_slice().iter().all(|&byte| byte == 8));
    assert_eq!(in_flight.source(0..5000).to_vec(), [9; 5000]);
}

#[test]
fn a_lease_outlives_the_close_of_its_pool_and_nothing_new_is_handed_out() {
    let pool = pool_with_slab(MIB);
    let lease = one_lease(&pool, 1000, 7);
    pool.close();
    let refused = pool.acquire(SlabKind::Lease, &[(10, 64)]).refused;
    assert!(
        matches!(refused, Some(AcquireError::Exhausted { free: 0, .. })),
        "{refused:?}"
    );
    assert!(pool.make_slab(SlabKind::Lease, 10, 10).unwrap().is_none());
    assert_eq!(lease.as_slice(), [7; 1000]);
    drop(lease);
    assert_eq!(pool.usage().leased_bytes, 0);
}

#[test]
fn quarantined_memory_is_not_reused_until_the_quarantine_ends() {
    let pool = pool_with_slab(MIB);
    let block = one(&pool, MIB);
    let region = block.region();
    pool.quarantine(block);
    assert_eq!(pool.usage().quarantined_bytes, MIB);
    assert!(pool.acquire(SlabKind::Lease, &[(64, 64)]).refused.is_some());
    assert!(pool.take_empty_slabs().is_empty(), "its slab stays mapped");
    assert_eq!(pool.end_quarantine(), MIB);
    assert_eq!(one(&pool, MIB).region(), region);
}

#[test]
fn quarantined_memory_stays_mapped_after_its_pool() {
    let pool = pool_with_slab(MIB);
    let block = one(&pool, 1000);
    // SAFETY: quarantined memory stays mapped, which is what this test is about.
    let late = unsafe { block.target(0..1000).detach() };
    pool.quarantine(block);
    drop(pool);
    if !cfg!(feature = "poison") {
        copy((&[5u8; 1000][..]).into(), &late, CopyMode::Cached);
        assert_eq!(late.as_source().to_vec(), [5; 1000]);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().any(|line| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
        (start..end).contains(&late.addr())
    });
    assert!(mapped, "{:#x} is unmapped", late.addr());
}

#[test]
fn usage_tells_states_apart() {
    let pool = pool_with_slab(MIB);
    let in_flight = one(&pool, 1024);
    let lease = one_lease(&pool, 2048, 0);
    pool.quarantine(one(&pool, 4096));
    let usage = pool.usage();
    assert_eq!(
        (
            usage.in_flight_bytes,
            usage.leased_bytes,
            usage.quarantined_bytes,
            usage.blocks
        ),
        (1024, 2048, 4096, 3)
    );
    assert_eq!((usage.arena_bytes, usage.free_bytes), (MIB, MIB - 7168));
    drop((in_flight, lease));
    let usage = pool.usage();
    assert_eq!((usage.in_flight_bytes, usage.leased_bytes), (0, 0));
}

#[test]
fn only_memory_of_a_live_lease_is_contained() {
    let pool = pool_with_slab(MIB);
    let in_flight = one(&pool, 1000);
    assert!(!pool.contains(in_flight.region()));
    let lease = one_lease(&pool, 1000, 0);
    let region = lease.region();
    assert!(pool.contains(region));
    let inside = Region {
        addr: region.addr + 10,
        len: 20,
    };
    assert!(pool.contains(inside));
    let beyond = Region {
        addr: region.addr,
        len: 1 << 20,
    };
    assert!(!pool.contains(beyond));
    let elsewhere = [0u8; 10];
    let elsewhere = Region {
        addr: elsewhere.as_ptr() as usize,
        len: 10,
    };
    assert!(!pool.contains(elsewhere));
    drop(lease);
    assert!(!pool.contains(region));
}

#[test]
fn empty_slabs_are_taken_and_their_budget_is_free_again() {
    let pool = pool_with_slab(2 * MIB);
    let lease = one_lease(&pool, 100, 0);
    assert!(pool.take_empty_slabs().is_empty());
    assert!(
        pool.make_slab(SlabKind::Lease, MIB, MIB).unwrap().is_none(),
        "the budget is used up"
    );
    drop(lease);
    assert!(pool.take_empty_slabs_of(SlabKind::Bounce).is_empty());
    let taken = pool.take_empty_slabs_of(SlabKind::Lease);
    assert_eq!(taken.len(), 1);
    assert!(pool.regions().is_empty());
    assert_eq!(pool.usage().arena_bytes, 0);
    assert!(pool.make_slab(SlabKind::Lease, MIB, MIB).unwrap().is_some());
}

#[test]
fn a_slab_that_is_not_admitted_gives_its_budget_back() {
    let pool = pool(MIB);
    let reservation = pool.make_slab(SlabKind::Lease, MIB, MIB).unwrap().unwrap();
    assert!(pool.make_slab(SlabKind::Lease, MIB, MIB).unwrap().is_none());
    assert!(
        pool.take_empty_slabs().is_empty(),
        "a slab being made is not there to be taken"
    );
    drop(reservation);
    let reservation = pool.make_slab(SlabKind::Lease, MIB, MIB).unwrap();
    pool.admit(reservation.expect("the budget was given back"));
}

#[test]
fn a_slab_that_the_machine_refuses_gives_its_budget_back() {
    // No machine maps 2^60 bytes.
    let huge = 1 << 60;
    let budget = Budget::new(huge, limits::page_bytes() as u64).unwrap().without_bounce();
    let pool = Pool::new("arena", budget, ForkPolicy::Inherit);
    for _ in 0..2 {
        let error = pool.make_slab(SlabKind::Lease, huge, huge).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("cannot make a slab of {huge} bytes")),
            "{error}"
        );
    }
}

#[test]
fn two_readers_never_take_the_last_of_the_budget_twice() {
    for _ in 0..20 {
        let pool = pool(4 * MIB);
        let barrier = Barrier::new(4);
        let made: u64 = std::thread::scope(|scope| {
            let reader = || {
                barrier.wait();
                let mut made = 0;
                while let Some(slab) = pool.make_slab(SlabKind::Lease, MIB, MIB).unwrap() {
                    made += slab.len();
                    pool.admit(slab);
                }
                made
            };
            let readers: Vec<_> = (0..4).map(|_| scope.spawn(reader)).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).sum()
        });
        assert_eq!(made, 4 * MIB);
        assert_eq!(pool.usage().arena_bytes, 4 * MIB);
    }
}

#[test]
fn concurrent_acquire_and_drop_lose_nothing() {
    let pool = pool_with_slab(4 * MIB);
    let (sender, receiver) = mpsc::channel::<Vec<Lease>>();
    std::thread::scope(|scope| {
        // One thread drops what the others leased, which drop some themselves.
        scope.spawn(move || receiver.into_iter().for_each(drop));
        for reader in 1..=3u8 {
            let (pool, sender) = (&pool, sender.clone());
            scope.spawn(move || {
                let wanted = [(100u64, 64u64), (5000, 4096), (64, 64), (30_000, 64)];
                for round in 0..300usize {
                    let admission = pool.acquire(SlabKind::Lease, &wanted[round % 3..]);
                    for block in &admission.blocks {
                        fill(block, reader);
                    }
                    let mut leases = pool.lease(admission.blocks);
                    assert!(
                        leases
                            .iter()
                            .all(|lease| lease.as_slice().iter().all(|&byte| byte == reader))
                    );
                    drop(leases.pop());
                    sender.send(leases).unwrap();
                }
            });
        }
        drop(sender);
    });
    let usage = pool.usage();
    assert_eq!((usage.blocks, usage.free_bytes), (0, 4 * MIB));
    assert_eq!(pool.stale_returns(), 0);
}

#[test]
fn many_blocks_are_disjoint_and_all_come_back() {
    let pool = pool_with_slab(4 * MIB);
    for _ in 0..2 {
        let admission = pool.acquire(SlabKind::Lease, &[(1000, 64); 4000]);
        assert_eq!(admission.refused, None);
        let mut regions: Vec<_> = admission.blocks.iter().map(InFlight::region).collect();
        regions.sort_by_key(|region| region.addr);
        assert!(regions.windows(2).all(|pair| pair[0].end() <= pair[1].addr));
        let ids: HashSet<_> = admission.blocks.iter().map(|block| block.block().id).collect();
        assert_eq!(ids.len(), 4000);
        drop(pool.lease(admission.blocks));
        assert_eq!(pool.usage().free_bytes, 4 * MIB);
    }
}

#[test]
fn memory_that_a_child_is_not_to_get_works_here() {
    let pool = Pool::new("arena", budget(MIB), ForkPolicy::Exclude);
    pool.admit(pool.make_slab(SlabKind::Lease, 1, 1).unwrap().unwrap());
    assert_eq!(one_lease(&pool, 10, 3).as_slice(), [3; 10]);
}

#[test]
fn a_pool_works_on_after_a_panic_under_its_lock() {
    let pool = pool_with_slab(MIB);
    let stranger = one(&pool_with_slab(MIB), 10);
    let block = one(&pool, 10);
    let mixed = pool.clone();
    let panicked = std::thread::spawn(move || mixed.lease(vec![block, stranger])).join();
    assert!(panicked.is_err(), "a block of another pool is refused");
    let usage = pool.usage();
    assert_eq!(
        (usage.blocks, usage.free_bytes),
        (0, MIB),
        "and all blocks are given back"
    );
    one_lease(&pool, 10, 1);
}
