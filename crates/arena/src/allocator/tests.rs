use super::*;
use crate::block_len;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

impl OffsetAllocator {
    /// Walks every link and recomputes every counter.
    fn check(&self) {
        let (mut offset, mut free, mut free_ranges) = (0, 0, 0);
        let first = (0..self.nodes.len())
            .find(|&index| self.nodes[index].neighbour_before == NONE && self.nodes[index].state != NodeState::Vacant);
        let mut index = first.map_or(NONE, |index| u32::try_from(index).unwrap());
        let mut before = NONE;
        while index != NONE {
            let node = &self.nodes[index as usize];
            assert_eq!(
                (node.offset, node.neighbour_before),
                (offset, before),
                "ranges touch, without gap or overlap"
            );
            assert!(
                !(self.is_free(before) && self.is_free(index)),
                "free neighbours are merged"
            );
            if self.is_free(index) {
                free += node.len;
                free_ranges += 1;
                assert!(self.list(class_floor(node.len)).any(|(listed, _)| listed == index));
            }
            offset += node.len;
            (before, index) = (index, node.neighbour_after);
        }
        assert_eq!(offset, self.capacity_granules);
        assert_eq!(free, self.free_granules);
        let listed: usize = (0..CLASSES).map(|class| self.list(class).count()).sum();
        assert_eq!(listed, free_ranges, "lists hold free ranges only");
        for class in 0..CLASSES {
            assert_eq!(
                self.filled.first_from(class) == Some(class),
                self.heads[class as usize] != NONE
            );
        }
    }
}

#[test]
fn eight_of_eight_kib_fit_64_kib_and_the_ninth_fails() {
    let mut allocator = OffsetAllocator::new(64 * KIB);
    let taken: Vec<_> = (0..8).map(|_| allocator.allocate(8 * KIB, 1).unwrap()).collect();
    assert_eq!(allocator.allocate(8 * KIB, 1), None);
    assert_eq!(allocator.free_bytes(), 0);
    allocator.free(taken[3]).unwrap();
    assert_eq!(allocator.allocate(8 * KIB, 1).unwrap().offset, taken[3].offset);
}

#[test]
fn an_empty_slab_is_served_whole_whatever_its_length() {
    for capacity in [
        64,
        448,
        576,
        960,
        1024,
        15 * PAGE,
        17 * PAGE,
        250 * MIB,
        3 * (1 << 40) + PAGE,
    ] {
        let mut allocator = OffsetAllocator::new(capacity);
        let all = allocator
            .allocate(capacity, PAGE.min(1 << capacity.trailing_zeros()))
            .unwrap();
        assert_eq!((all.offset, all.len), (0, capacity));
        assert_eq!(allocator.allocate(1, 1), None);
        allocator.free(all).unwrap();
        assert_eq!(allocator.largest_free(), capacity);
    }
}

#[test]
fn a_block_is_whole_where_the_range_has_it_and_the_rest_of_the_range_where_not() {
    let mut allocator = OffsetAllocator::new(250 * MIB);
    let whole = allocator.allocate(225 * MIB, 64).unwrap();
    assert_eq!(Some(whole.len), block_len(225 * MIB));
    let rest = allocator.allocate(9 * MIB + 64, 64).unwrap();
    assert_eq!(rest.len, 10 * MIB);
    allocator.check();
}

#[test]
fn nothing_is_handed_out_for_nothing() {
    let mut allocator = OffsetAllocator::new(PAGE);
    assert_eq!(allocator.allocate(0, 1), None);
    assert_eq!(allocator.allocate(PAGE + 1, 1), None);
    assert_eq!(allocator.allocate(u64::MAX, 1), None);
    assert!(allocator.is_empty());
    let mut none = OffsetAllocator::new(63);
    assert_eq!(
        (none.capacity(), none.largest_free(), none.allocate(1, 1)),
        (0, 0, None)
    );
    none.check();
}

#[test]
fn the_largest_addressable_slab_works() {
    let mut allocator = OffsetAllocator::new(u64::MAX);
    let capacity = allocator.capacity();
    assert_eq!(capacity, u64::MAX - 63);
    let all = allocator.allocate(capacity, 1).unwrap();
    allocator.free(all).unwrap();
    let high = allocator.allocate(1 << 62, 1 << 63).unwrap();
    assert_eq!(high.offset, 0);
    let higher = allocator.allocate(1 << 62, 1 << 63).unwrap();
    assert_eq!(higher.offset, 1 << 63);
    allocator.check();
}

#[test]
fn a_stale_allocation_is_refused_and_changes_nothing() {
    let mut allocator = OffsetAllocator::new(PAGE);
    let first = allocator.allocate(64, 1).unwrap();
    allocator.free(first).unwrap();
    assert_eq!(allocator.free(first), Err(FreeError::Stale));
    let second = allocator.allocate(64, 1).unwrap();
    assert_eq!(
        (second.offset, second.node),
        (first.offset, first.node),
        "the slot is recycled"
    );
    assert_eq!(allocator.free(first), Err(FreeError::Stale));
    assert_eq!(allocator.free(Allocation { node: 77, ..second }), Err(FreeError::Stale));
    assert_eq!(allocator.free_bytes(), PAGE - 64);
    allocator.free(second).unwrap();
    allocator.check();
}

#[test]
fn an_alignment_leaves_the_piece_in_front_free() {
    let mut allocator = OffsetAllocator::new(16 * PAGE);
    let small = allocator.allocate(64, 64).unwrap();
    let aligned = allocator.allocate(PAGE, PAGE).unwrap();
    assert_eq!((small.offset, aligned.offset), (0, PAGE));
    assert_eq!(allocator.free_bytes(), 14 * PAGE + (PAGE - 64));
    let between = allocator.allocate(60 * 64, 64).unwrap();
    assert_eq!(between.offset, 64);
    allocator.check();
    for allocation in [small, between, aligned] {
        allocator.free(allocation).unwrap();
        allocator.check();
    }
    assert_eq!(allocator.largest_free(), allocator.capacity());
}

#[test]
fn an_alignment_past_the_capacity_leaves_the_start() {
    let mut allocator = OffsetAllocator::new(17 * PAGE);
    let start = allocator.allocate(64, 1 << 63).unwrap();
    assert_eq!((start.offset, allocator.allocate(64, 1 << 63)), (0, None));
    allocator.free(start).unwrap();
    assert_eq!(
        allocator
            .allocate(16 * PAGE, 32 * PAGE)
            .map(|allocation| allocation.offset),
        Some(0)
    );
    allocator.check();
}

#[test]
fn an_aligned_hole_is_reused_though_it_is_not_longer_than_its_block() {
    let mut allocator = OffsetAllocator::new(4 * PAGE);
    let pages: Vec<_> = (0..4).map(|_| allocator.allocate(PAGE, PAGE).unwrap()).collect();
    assert_eq!(allocator.allocate(PAGE, PAGE), None);
    allocator.free(pages[2]).unwrap();
    assert_eq!(allocator.allocate(PAGE - 64, PAGE).unwrap().offset, 2 * PAGE);
}

#[test]
fn a_range_that_fits_within_its_own_class_is_found() {
    // 9 granules of 64 bytes past a class boundary: the class above the request is empty, its own holds a longer range.
    let mut allocator = OffsetAllocator::new(64 * 1100);
    let taken = allocator.allocate(64 * 1030, 64).unwrap();
    assert_eq!(
        taken.len,
        64 * 1100,
        "the whole block would be 1152 granules, the range ends before"
    );
}

#[test]
fn the_largest_free_range_is_always_served() {
    let mut allocator = OffsetAllocator::new(MIB);
    let mut random = 7_u64;
    let mut held = Vec::new();
    for _ in 0..3000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if random >> 63 == 0 || held.is_empty() {
            held.extend(allocator.allocate((random >> 33) % (20 * KIB) + 1, 64));
        } else {
            let at = usize::try_from(random >> 33).unwrap() % held.len();
            allocator.free(held.swap_remove(at)).unwrap();
        }
        let largest = allocator.largest_free();
        if largest > 0 {
            let served = allocator.allocate(largest, 64).expect("largest_free is served");
            assert_eq!(served.len, largest);
            allocator.free(served).unwrap();
        }
    }
    allocator.check();
}

#[test]
fn steady_use_does_not_grow_the_table() {
    let mut allocator = OffsetAllocator::new(64 * MIB);
    let mut rounds = (0..5).map(|_| {
        let taken: Vec<_> = (0..1024).map(|_| allocator.allocate(64 * KIB, 64).unwrap()).collect();
        taken
            .into_iter()
            .rev()
            .step_by(2)
            .for_each(|allocation| allocator.free(allocation).unwrap());
        let odd: Vec<_> = (0..512).map(|_| allocator.allocate(64 * KIB, 64).unwrap()).collect();
        odd.into_iter()
            .for_each(|allocation| allocator.free(allocation).unwrap());
        let left: Vec<_> = allocator
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.state == NodeState::Used)
            .map(|(index, node)| Allocation {
                offset: node.offset * GRANULE_BYTES,
                len: node.len * GRANULE_BYTES,
                node: u32::try_from(index).unwrap(),
                generation: node.generation,
            })
            .collect();
        left.into_iter()
            .for_each(|allocation| allocator.free(allocation).unwrap());
        assert!(allocator.is_empty());
        allocator.nodes.capacity()
    });
    let first = rounds.next().unwrap();
    assert!(rounds.all(|capacity| capacity == first));
}
