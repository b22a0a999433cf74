//! What planning and leasing cost per key: fold and group, acquire and lease, release.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use tensorlease_arena::plan::{Folded, GroupLimits, cut_groups, fold_duplicates};
use tensorlease_arena::{Arena, BlockId, Budget, SlabKind};

const PAGE: u64 = 4096;
const BLOCK: u64 = 64 << 10;
const KEY_COUNTS: [usize; 3] = [16_384, 262_144, 1_000_000];

/// An arena whose slabs, of 1 GiB each, hold so many blocks.
fn arena_for(keys: usize) -> Arena {
    let bytes = (keys as u64 * BLOCK).next_multiple_of(1 << 30);
    let mut arena = Arena::new(Budget::new(bytes, PAGE).expect("more than a page").without_bounce());
    for _ in 0..bytes >> 30 {
        let slab = arena.reserve_slab(SlabKind::Lease, 1 << 30).expect("within the budget");
        arena.admit_slab(slab);
    }
    arena
}

fn plan(keys: &[String], lens: &[u64]) -> usize {
    let Folded { unique, slot } = fold_duplicates(keys);
    let unique_lens: Vec<u64> = unique.iter().map(|&position| lens[position as usize]).collect();
    let groups = cut_groups(
        &unique_lens,
        GroupLimits {
            keys_max: 1024,
            bytes_max: 256 << 20,
        },
    );
    groups.len() + slot.len()
}

fn lease(arena: &mut Arena, keys: usize, blocks: &mut Vec<BlockId>) {
    for _ in 0..keys {
        let block = arena
            .acquire(SlabKind::Lease, BLOCK, 64)
            .expect("the arena holds all blocks");
        arena.lease(block.id).expect("in flight");
        blocks.push(block.id);
    }
}

fn release(arena: &mut Arena, blocks: &mut Vec<BlockId>) {
    for id in blocks.drain(..) {
        arena.release(id).expect("leased");
    }
}

fn plan_and_lease(criterion: &mut Criterion) {
    for count in KEY_COUNTS {
        let keys: Vec<String> = (0..count)
            .map(|key| format!("rollout/step_0012/sample_{key:08}/input_ids"))
            .collect();
        let lens = vec![BLOCK; count];
        let mut group = criterion.benchmark_group("plan_and_lease");
        group.sample_size(10).throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::new("plan", count), |bencher| {
            bencher.iter(|| plan(black_box(&keys), black_box(&lens)));
        });
        let mut arena = arena_for(count);
        let mut blocks = Vec::with_capacity(count);
        group.bench_function(BenchmarkId::new("lease_and_release", count), |bencher| {
            bencher.iter(|| {
                lease(&mut arena, count, &mut blocks);
                release(&mut arena, &mut blocks);
            });
        });
        group.bench_function(BenchmarkId::new("all", count), |bencher| {
            bencher.iter(|| {
                black_box(plan(black_box(&keys), black_box(&lens)));
                lease(&mut arena, count, &mut blocks);
                release(&mut arena, &mut blocks);
            });
        });
        // The first read of an arena also grows its tables.
        group.bench_function(BenchmarkId::new("first_lease", count), |bencher| {
            let fresh = || (arena_for(count), Vec::with_capacity(count));
            bencher.iter_batched_ref(
                fresh,
                |(arena, blocks)| lease(arena, count, blocks),
                BatchSize::PerIteration,
            );
        });
        group.finish();
    }
}

criterion_group!(benches, plan_and_lease);
criterion_main!(benches);
