//! What a read landed in becomes buffers: exclusive, in order, and given back when the last of a landing drops.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use tensorlease_arena::{Budget, SlabKind};
use tensorlease_memory::{
    Buffer, CallerMemory, CopyMode, ForkPolicy, HeapBytes, Landing, Mapping, MappingKind, Pool, copy, into_buffers,
    limits,
};

const SLAB_BYTES: u64 = 1 << 20;

fn pool() -> Pool {
    let budget = Budget::new(SLAB_BYTES, limits::page_bytes() as u64)
        .unwrap()
        .without_bounce();
    let pool = Pool::new("arena", budget, ForkPolicy::Inherit);
    pool.admit(
        pool.make_slab(SlabKind::Lease, SLAB_BYTES, SLAB_BYTES)
            .unwrap()
            .unwrap(),
    );
    pool
}

fn block(pool: &Pool, len: u64) -> Landing {
    Landing::Block(pool.acquire(SlabKind::Lease, &[(len, 64)]).blocks.pop().unwrap())
}

fn fresh() -> Landing {
    Landing::Fresh(Mapping::new(MappingKind::Anonymous, 1).unwrap())
}

/// Writes 0, 1, 2, ... into the landing, in two transfers.
fn write(landing: &Landing) {
    let bytes = expected(0..landing.len());
    let middle = bytes.len() / 2;
    copy((&bytes[..middle]).into(), &landing.target(0..middle), CopyMode::Cached);
    copy(
        (&bytes[middle..]).into(),
        &landing.target(middle..bytes.len()),
        CopyMode::Cached,
    );
}

fn expected(cut: std::ops::Range<usize>) -> Vec<u8> {
    (0..251u8).cycle().skip(cut.start).take(cut.len()).collect()
}

#[test]
fn every_landing_gives_its_cuts_in_order() {
    let pool = pool();
    let landings = [block(&pool, 1000), fresh(), Landing::Heap(HeapBytes::new(1000))];
    let cuts = [500..1000, 0..100, 100..100, 200..203];
    landings.iter().for_each(write);
    let buffers = into_buffers(landings.into_iter().map(|landing| (landing, cuts.to_vec())).collect());
    assert_eq!(buffers.len(), 3);
    for (at, buffers) in buffers.into_iter().enumerate() {
        assert_eq!(buffers.len(), cuts.len());
        for (buffer, cut) in buffers.iter().zip(&cuts) {
            assert_eq!(buffer.as_slice(), expected(cut.clone()));
            assert_eq!((buffer.len(), buffer.is_empty()), (cut.len(), cut.is_empty()));
            assert_eq!(buffer.is_leased(), at == 0);
        }
    }
}

#[test]
fn a_block_with_one_cut_goes_back_with_its_buffer() {
    let pool = pool();
    let mut buffers = into_buffers(vec![(block(&pool, 1024), vec![10..20])]);
    assert_eq!(pool.usage().leased_bytes, 1024);
    let buffer = buffers.pop().unwrap().pop().unwrap();
    assert!(pool.contains(buffer.region()));
    drop(buffer);
    assert_eq!(pool.usage().blocks, 0);
}

#[test]
fn a_block_with_several_cuts_goes_back_with_the_last_one() {
    let pool = pool();
    let cuts = vec![0..100, 100..200, 300..1024];
    let mut buffers = into_buffers(vec![(block(&pool, 1024), cuts)]).pop().unwrap();
    while let Some(buffer) = buffers.pop() {
        assert_eq!(pool.usage().leased_bytes, 1024);
        drop(buffer);
    }
    assert_eq!(pool.usage().blocks, 0);
}

#[test]
fn a_landing_without_cuts_goes_back_at_once() {
    let pool = pool();
    let buffers = into_buffers(vec![(block(&pool, 1024), Vec::new()), (fresh(), Vec::new())]);
    assert!(buffers.iter().all(Vec::is_empty));
    assert_eq!(pool.usage().blocks, 0);
}

#[test]
fn changing_one_buffer_leaves_its_neighbours_alone() {
    let pool = pool();
    let mut buffers = into_buffers(vec![(block(&pool, 300), vec![0..100, 100..200, 200..300])]).remove(0);
    buffers[1].as_mut_slice().fill(9);
    buffers[0][0] = 7;
    let read = std::thread::spawn(move || buffers.iter().map(|buffer| buffer.to_vec()).collect::<Vec<_>>());
    let read = read.join().unwrap();
    assert_eq!(read[1], [9; 100]);
    assert_eq!((read[0][0], read[0][99], read[2][0]), (7, 0, 0));
}

#[test]
fn foreign_memory_gives_no_buffers_and_its_owner_goes() {
    let foreign = Landing::Caller(CallerMemory::from_vec(vec![0; 10]));
    write(&foreign);
    assert_eq!(foreign.source(2..4).to_vec(), [2, 3]);
    assert!(into_buffers(vec![(foreign, Vec::new())])[0].is_empty());
}

#[test]
fn a_bad_cut_is_refused_and_everything_is_given_back() {
    let pool = pool();
    let backwards = std::ops::Range { start: 5, end: 4 };
    for bad in [vec![0..10, 9..11], vec![0..1025], vec![5..6, 0..1024], vec![backwards]] {
        let landings = vec![(block(&pool, 1024), vec![0..5]), (block(&pool, 1024), bad.clone())];
        let refused = catch_unwind(AssertUnwindSafe(|| into_buffers(landings)));
        assert!(refused.is_err(), "{bad:?}");
        assert_eq!(pool.usage().blocks, 0);
    }
    let foreign = Landing::Caller(CallerMemory::from_vec(vec![0; 10]));
    let cuts = vec![0..10];
    assert!(catch_unwind(AssertUnwindSafe(|| into_buffers(vec![(foreign, cuts)]))).is_err());
}

#[test]
fn blocks_of_two_pools_are_leased_together_also_when_one_pool_is_gone() {
    let (pool, other, gone) = (pool(), pool(), pool());
    let landings = [&pool, &other, &gone, &pool].map(|pool| (block(pool, 64), vec![0..64]));
    drop(gone);
    let buffers = into_buffers(landings.into());
    assert_eq!((pool.usage().leased_bytes, other.usage().leased_bytes), (128, 64));
    assert!(buffers.iter().flatten().all(Buffer::is_leased));
    drop(buffers);
    assert_eq!((pool.usage().blocks, other.usage().blocks), (0, 0));
}

#[test]
fn a_lease_and_heap_bytes_become_whole_buffers() {
    let pool = pool();
    let Landing::Block(in_flight) = block(&pool, 100) else {
        unreachable!()
    };
    let lease = pool.lease(vec![in_flight]).pop().unwrap();
    let region = lease.region();
    let buffer = Buffer::from(lease);
    assert_eq!((buffer.region(), buffer.is_leased()), (region, true));
    let mut heap = Buffer::from(HeapBytes::new(3));
    heap.copy_from_slice(&[1, 2, 3]);
    assert_eq!((heap.as_slice(), heap.is_leased()), (&[1, 2, 3][..], false));
    assert!(Buffer::from(HeapBytes::new(0)).is_empty());
}
