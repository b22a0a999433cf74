//! The promises of the arena, one test each.

use tensorlease_arena::{
    AcquireError, Arena, BlockId, BlockState, Budget, SlabBusy, SlabId, SlabKind, StaleBlock, Usage, block_len,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

fn budget(max_bytes: u64) -> Budget {
    Budget::new(max_bytes, PAGE).expect("at least a page")
}

fn grow(arena: &mut Arena, kind: SlabKind, len: u64) -> SlabId {
    let slab = arena.reserve_slab(kind, len).expect("within the budget");
    arena.admit_slab(slab);
    slab
}

/// An arena of one lease slab.
fn one_slab(len: u64) -> (Arena, SlabId) {
    let mut arena = Arena::new(budget(len).without_bounce());
    let slab = grow(&mut arena, SlabKind::Lease, len);
    (arena, slab)
}

#[test]
fn a_block_is_in_exactly_one_state() {
    let (mut arena, _) = one_slab(MIB);
    let id = arena.acquire(SlabKind::Lease, 64 * KIB, 64).unwrap().id;
    let sums = |usage: Usage| {
        [
            usage.in_flight_bytes,
            usage.leased_bytes,
            usage.quarantined_bytes,
            usage.free_bytes,
        ]
    };
    let rest = MIB - 64 * KIB;
    assert_eq!(
        (arena.state(id), sums(arena.usage())),
        (BlockState::InFlight, [64 * KIB, 0, 0, rest])
    );
    arena.lease(id).unwrap();
    assert_eq!(
        (arena.state(id), sums(arena.usage())),
        (BlockState::Leased, [0, 64 * KIB, 0, rest])
    );
    arena.release(id).unwrap();
    assert_eq!(
        (arena.state(id), sums(arena.usage())),
        (BlockState::Free, [0, 0, 0, MIB])
    );
    let id = arena.acquire(SlabKind::Lease, 64 * KIB, 64).unwrap().id;
    arena.quarantine(id).unwrap();
    assert_eq!(
        (arena.state(id), sums(arena.usage())),
        (BlockState::Quarantined, [0, 0, 64 * KIB, rest])
    );
}

#[test]
fn an_illegal_step_is_refused_and_names_the_state() {
    let (mut arena, _) = one_slab(MIB);
    let leased = arena.acquire(SlabKind::Lease, 64, 64).unwrap().id;
    arena.lease(leased).unwrap();
    let quarantined = arena.acquire(SlabKind::Lease, 64, 64).unwrap().id;
    arena.quarantine(quarantined).unwrap();
    let refused = |id, found| Err(StaleBlock { id, found: Some(found) });
    let before = arena.usage();
    assert_eq!(arena.lease(leased), refused(leased, BlockState::Leased));
    assert_eq!(arena.quarantine(leased), refused(leased, BlockState::Leased));
    assert_eq!(arena.lease(quarantined), refused(quarantined, BlockState::Quarantined));
    assert_eq!(
        arena.quarantine(quarantined),
        refused(quarantined, BlockState::Quarantined)
    );
    assert_eq!(
        arena.release(quarantined),
        refused(quarantined, BlockState::Quarantined)
    );
    assert_eq!(arena.usage(), before);
}

#[test]
fn a_stale_handle_is_refused() {
    let (mut arena, _) = one_slab(MIB);
    let first = arena.acquire(SlabKind::Lease, 64, 64).unwrap();
    arena.release(first.id).unwrap();
    let second = arena.acquire(SlabKind::Lease, 64, 64).unwrap();
    assert_eq!(
        (first.offset, first.id.index),
        (second.offset, second.id.index),
        "the same place under another name"
    );
    let unknown = BlockId {
        index: arena.block_index_limit(),
        generation: 0,
    };
    for id in [first.id, unknown] {
        let refused = Err(StaleBlock { id, found: None });
        assert_eq!(arena.lease(id), refused);
        assert_eq!(arena.release(id), refused);
        assert_eq!(arena.quarantine(id), refused);
        assert_eq!(arena.state(id), BlockState::Free);
    }
    assert_eq!(arena.state(second.id), BlockState::InFlight);
}

#[test]
fn no_block_crosses_two_slabs() {
    let mut arena = Arena::new(budget(64 * KIB).without_bounce());
    let slabs = [0; 4].map(|_| grow(&mut arena, SlabKind::Lease, 16 * KIB));
    assert_eq!(arena.usage().free_bytes, 64 * KIB);
    let refused = arena.acquire(SlabKind::Lease, 16 * KIB + 1, 64);
    assert!(
        matches!(
            refused,
            Err(AcquireError::Exhausted {
                free: 65_536,
                largest: 16_384,
                held: 0,
                ..
            })
        ),
        "{refused:?}"
    );
    let mut per_slab = [0; 4];
    while let Ok(block) = arena.acquire(SlabKind::Lease, 6 * KIB, 64) {
        assert!(block.offset + block.len <= 16 * KIB);
        per_slab[slabs.iter().position(|&slab| slab == block.slab).unwrap()] += 1;
    }
    assert_eq!(per_slab, [2; 4], "two of 6 KiB in 16 KiB, not ten in 64");
}

#[test]
fn quarantined_memory_is_never_handed_out() {
    let (mut arena, slab) = one_slab(64 * KIB);
    let blocks: Vec<_> = (0..8)
        .map(|_| arena.acquire(SlabKind::Lease, 8 * KIB, 64).unwrap())
        .collect();
    arena.quarantine(blocks[5].id).unwrap();
    for block in blocks.iter().filter(|block| block.id != blocks[5].id) {
        arena.release(block.id).unwrap();
    }
    assert_eq!(arena.remove_slab(slab), Err(SlabBusy { slab, held: 8 * KIB }));
    let mut taken = Vec::new();
    while let Ok(block) = arena.acquire(SlabKind::Lease, 64, 64) {
        taken.push(block);
    }
    assert_eq!(taken.len(), 7 * 8 * 16);
    let hole = blocks[5].offset..blocks[5].offset + blocks[5].len;
    assert!(taken.iter().all(|block| !hole.contains(&block.offset)));
    assert_eq!(arena.end_quarantine(), 8 * KIB);
    assert_eq!(arena.acquire(SlabKind::Lease, 8 * KIB, 64).unwrap().offset, hole.start);
    assert_eq!(arena.end_quarantine(), 0);
}

#[test]
fn eight_of_eight_kib_fit_64_kib_and_the_ninth_fails() {
    let (mut arena, _) = one_slab(64 * KIB);
    for _ in 0..8 {
        arena.acquire(SlabKind::Lease, 8 * KIB, 64).unwrap();
    }
    let refused = AcquireError::Exhausted {
        asked: 8 * KIB,
        free: 0,
        largest: 0,
        held: 64 * KIB,
    };
    assert_eq!(arena.acquire(SlabKind::Lease, 8 * KIB, 64), Err(refused));
}

#[test]
fn leases_and_bounce_blocks_never_share_a_slab() {
    let mut arena = Arena::new(budget(64 * KIB).with_bounce(16 * KIB).unwrap());
    let lease = grow(&mut arena, SlabKind::Lease, 48 * KIB);
    let bounce = grow(&mut arena, SlabKind::Bounce, 16 * KIB);
    assert_eq!(arena.reserve_slab(SlabKind::Lease, PAGE), None);
    assert_eq!(arena.reserve_slab(SlabKind::Bounce, PAGE), None);
    while let Ok(block) = arena.acquire(SlabKind::Lease, PAGE, 64) {
        assert_eq!(block.slab, lease);
    }
    let held = arena.usage_of(SlabKind::Lease).in_flight_bytes;
    assert_eq!(
        held,
        48 * KIB,
        "leases fill their own slabs and leave the reserve alone"
    );
    assert_eq!(arena.acquire(SlabKind::Bounce, 16 * KIB, 64).unwrap().slab, bounce);
}

#[test]
fn with_one_page_all_is_bounce_and_every_lease_is_too_large() {
    let mut arena = Arena::new(budget(PAGE));
    assert_eq!(
        arena.acquire(SlabKind::Lease, 1, 1),
        Err(AcquireError::TooLarge { asked: 1, most: 0 })
    );
    assert_eq!(arena.next_slab_len(SlabKind::Lease, 1, 1), None);
    assert_eq!(arena.next_slab_len(SlabKind::Bounce, 1, 1), Some(PAGE));
    grow(&mut arena, SlabKind::Bounce, PAGE);
    assert_eq!(arena.acquire(SlabKind::Bounce, PAGE, PAGE).unwrap().len, PAGE);
}

#[test]
fn a_refusal_says_whether_a_slab_would_help() {
    let mut arena = Arena::new(budget(64 * KIB).without_bounce());
    let needs = |asked, growable_bytes| Err(AcquireError::NeedsSlab { asked, growable_bytes });
    assert_eq!(arena.acquire(SlabKind::Lease, 0, 64), Err(AcquireError::ZeroBytes));
    assert_eq!(arena.acquire(SlabKind::Lease, 64, 64), needs(64, 64 * KIB));
    let too_large = AcquireError::TooLarge {
        asked: 64 * KIB + 1,
        most: 64 * KIB,
    };
    assert_eq!(arena.acquire(SlabKind::Lease, 64 * KIB + 1, 64), Err(too_large));
    grow(&mut arena, SlabKind::Lease, 48 * KIB);
    let exhausted = AcquireError::Exhausted {
        asked: 48 * KIB + 1,
        free: 48 * KIB,
        largest: 48 * KIB,
        held: 0,
    };
    assert_eq!(arena.acquire(SlabKind::Lease, 48 * KIB + 1, 64), Err(exhausted));
    arena.acquire(SlabKind::Lease, 40 * KIB, 64).unwrap();
    assert_eq!(arena.acquire(SlabKind::Lease, 16 * KIB, 64), needs(16 * KIB, 16 * KIB));
}

#[test]
fn slabs_double_up_to_their_largest_and_never_pass_the_budget() {
    let mut arena = Arena::new(budget(4096 * MIB).without_bounce());
    let mut lens = Vec::new();
    while let Some(len) = arena.next_slab_len(SlabKind::Lease, MIB, MIB) {
        lens.push(len / MIB);
        grow(&mut arena, SlabKind::Lease, len);
    }
    assert_eq!(lens, [64, 128, 256, 512, 1024, 1024, 1024, 64]);
    assert_eq!(arena.usage().arena_bytes, 4096 * MIB);
}

#[test]
fn a_slab_is_as_long_as_its_request_needs() {
    let table = [
        // missing, largest block, length of the first slab
        (MIB, MIB, Some(64 * MIB)),
        (400 * MIB, MIB, Some(400 * MIB)),
        (400 * MIB + 1, MIB, Some(400 * MIB + PAGE)),
        (2000 * MIB, MIB, Some(1024 * MIB)),
        (2000 * MIB, 1500 * MIB + 1, Some(1500 * MIB + PAGE)),
        (3000 * MIB, 3000 * MIB, None),
        (0, u64::MAX, None),
    ];
    let arena = Arena::new(budget(2048 * MIB).without_bounce());
    for (missing, largest, expected) in table {
        assert_eq!(
            arena.next_slab_len(SlabKind::Lease, missing, largest),
            expected,
            "{missing} with {largest}"
        );
    }
    let mut arena = Arena::new(budget(1024 * MIB));
    assert_eq!(
        arena.next_slab_len(SlabKind::Bounce, MIB, MIB),
        Some(128 * MIB),
        "all of the reserve at once"
    );
    grow(&mut arena, SlabKind::Bounce, 128 * MIB);
    assert_eq!(arena.next_slab_len(SlabKind::Bounce, MIB, MIB), None);
}

#[test]
fn a_block_larger_than_any_slab_fills_a_slab_of_its_own() {
    let mut arena = Arena::new(budget(2048 * MIB).without_bounce());
    let len = 1500 * MIB + 100;
    let slab_len = arena.next_slab_len(SlabKind::Lease, len, len).unwrap();
    grow(&mut arena, SlabKind::Lease, slab_len);
    assert!(block_len(len).unwrap() > slab_len, "the whole block would be longer");
    assert_eq!(arena.acquire(SlabKind::Lease, len, 64).unwrap().len, slab_len);
}

#[test]
fn a_reserved_slab_takes_budget_and_serves_nothing() {
    let mut arena = Arena::new(budget(64 * KIB).without_bounce());
    let first = arena.reserve_slab(SlabKind::Lease, 48 * KIB).unwrap();
    assert_eq!(
        arena.reserve_slab(SlabKind::Lease, 48 * KIB),
        None,
        "two readers don't both take the last of it"
    );
    assert_eq!((arena.usage().reserved_bytes, arena.usage().arena_bytes), (48 * KIB, 0));
    assert!(arena.acquire(SlabKind::Lease, 64, 64).is_err());
    assert_eq!(
        arena.remove_slab(first),
        Err(SlabBusy {
            slab: first,
            held: 48 * KIB
        })
    );
    assert_eq!(arena.empty_slabs(), []);
    arena.cancel_slab(first);
    let second = arena.reserve_slab(SlabKind::Lease, 48 * KIB).unwrap();
    assert_ne!(first, second, "numbers are not reused");
    arena.admit_slab(second);
    assert_eq!(arena.acquire(SlabKind::Lease, 64, 64).unwrap().slab, second);
}

#[test]
fn empty_slabs_make_room_for_one_of_another_length() {
    let mut arena = Arena::new(budget(64 * KIB).without_bounce());
    let slabs = [16, 8, 16, 24].map(|kib| grow(&mut arena, SlabKind::Lease, kib * KIB));
    let held = arena.acquire(SlabKind::Lease, 16 * KIB, 64).unwrap();
    assert_eq!(held.slab, slabs[0]);
    assert_eq!(arena.next_slab_len(SlabKind::Lease, 24 * KIB, 24 * KIB), None);
    assert_eq!(
        arena.slabs_to_give_up(SlabKind::Lease, 24 * KIB, u64::MAX),
        Some(vec![slabs[1], slabs[2]])
    );
    assert_eq!(
        arena.slabs_to_give_up(SlabKind::Lease, 48 * KIB, u64::MAX),
        Some(vec![slabs[1], slabs[2], slabs[3]])
    );
    assert_eq!(arena.slabs_to_give_up(SlabKind::Lease, 48 * KIB + 1, u64::MAX), None);
    // Where the memory is lent, the lender must have room too.
    assert_eq!(
        arena.slabs_to_give_up(SlabKind::Lease, 24 * KIB, 0),
        Some(vec![slabs[1], slabs[2]])
    );
    assert_eq!(
        arena.slabs_to_give_up(SlabKind::Lease, 32 * KIB, 4 * KIB),
        Some(vec![slabs[1], slabs[2], slabs[3]])
    );
    assert_eq!(arena.slabs_to_give_up(SlabKind::Lease, 48 * KIB + 1, 0), None);
    for slab in &slabs[1..3] {
        arena.remove_slab(*slab).unwrap();
        assert_eq!(arena.remove_slab(*slab), Ok(0), "a second trim finds nothing");
    }
    assert_eq!(
        arena.slabs_to_give_up(SlabKind::Lease, 24 * KIB, u64::MAX),
        Some(vec![])
    );
    assert_eq!(arena.next_slab_len(SlabKind::Lease, 24 * KIB, 24 * KIB), Some(24 * KIB));
    arena.release(held.id).unwrap();
    assert_eq!(arena.empty_slabs().len(), 2);
}

#[test]
fn block_indices_are_recycled() {
    let (mut arena, _) = one_slab(MIB);
    for _ in 0..10 {
        let ids: Vec<_> = (0..16)
            .map(|_| arena.acquire(SlabKind::Lease, 64 * KIB, 64).unwrap().id)
            .collect();
        assert!(ids.iter().all(|id| id.index < arena.block_index_limit()));
        ids.into_iter().for_each(|id| arena.release(id).unwrap());
    }
    assert_eq!(arena.block_index_limit(), 16);
}

#[test]
fn messages_say_what_to_do() {
    let id = BlockId {
        index: 3,
        generation: 7,
    };
    let stale = StaleBlock { id, found: None }.to_string();
    assert_eq!(
        stale,
        "block handle 3.7 can't take this step (it was released before; use each handle once)"
    );
    let busy = SlabBusy {
        slab: SlabId(2),
        held: 64,
    }
    .to_string();
    assert_eq!(busy, "slab 2 still holds 64 bytes; release its blocks first");
}
