//! The arena beside a list of blocks with their states.

use arbitrary::Arbitrary;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use tensorlease_arena::{AcquireError, Arena, Block, BlockId, BlockState, Budget, SlabId, SlabKind, StaleBlock, Usage};

const PAGE: u64 = 4096;
const STALE_MAX: usize = 64;
const STEPS_PER_CHECK: u64 = 16;

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum ArenaOperation {
    Grow {
        bounce: bool,
        missing_pages: u8,
        largest: u16,
        cancel: bool,
    },
    Acquire {
        bounce: bool,
        len: u16,
        len_shift: u8,
        align_shift: u8,
    },
    Lease {
        which: u16,
    },
    Release {
        which: u16,
    },
    Quarantine {
        which: u16,
    },
    EndQuarantine,
    UseStale {
        which: u16,
    },
    RemoveSlab {
        which: u8,
    },
    GiveUpSlabs {
        bounce: bool,
        largest: u16,
    },
}

#[derive(Clone, Copy)]
struct Held {
    block: Block,
    kind: SlabKind,
    state: BlockState,
}

pub struct ArenaModel {
    arena: Arena,
    slabs: BTreeMap<SlabId, (SlabKind, u64)>,
    slab_ids: HashSet<SlabId>,
    held: Vec<Held>,
    extents: HashMap<SlabId, BTreeMap<u64, u64>>,
    stale: VecDeque<BlockId>,
    steps: u64,
}

impl ArenaModel {
    pub fn new(pages: u64, bounce_pages: u64) -> Self {
        let budget = Budget::new((pages + 1) * PAGE, PAGE).expect("at least one page");
        let mut budget = budget
            .with_bounce(bounce_pages.min(pages) * PAGE)
            .expect("at most all of it");
        (budget.slab_bytes_first, budget.slab_bytes_max) = (4 * PAGE, 32 * PAGE);
        let arena = Arena::new(budget);
        assert_eq!(arena.usage(), Usage::default());
        Self {
            arena,
            slabs: BTreeMap::new(),
            slab_ids: HashSet::new(),
            held: Vec::new(),
            extents: HashMap::new(),
            stale: VecDeque::new(),
            steps: 0,
        }
    }

    pub fn step(&mut self, operation: &ArenaOperation) {
        match *operation {
            ArenaOperation::Grow {
                bounce,
                missing_pages,
                largest,
                cancel,
            } => {
                self.grow(kind(bounce), u64::from(missing_pages) * PAGE, largest.into(), cancel);
            }
            ArenaOperation::Acquire {
                bounce,
                len,
                len_shift,
                align_shift,
            } => {
                self.acquire(
                    kind(bounce),
                    u64::from(len >> (len_shift % 16)),
                    1 << (align_shift % 13),
                );
            }
            ArenaOperation::Lease { which } => self.change(which.into(), BlockState::Leased),
            ArenaOperation::Quarantine { which } => self.change(which.into(), BlockState::Quarantined),
            ArenaOperation::Release { which } => self.release(which.into()),
            ArenaOperation::EndQuarantine => self.end_quarantine(),
            ArenaOperation::UseStale { which } => self.use_stale(which.into()),
            ArenaOperation::RemoveSlab { which } => self.remove_slab(which.into()),
            ArenaOperation::GiveUpSlabs { bounce, largest } => self.give_up_slabs(kind(bounce), largest.into()),
        }
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_CHECK) {
            self.compare();
        }
    }

    /// Gives everything back: all slabs must be empty and whole.
    pub fn finish(&mut self) {
        self.compare();
        self.end_quarantine();
        while !self.held.is_empty() {
            self.release(self.held.len() - 1);
        }
        self.compare();
        let usage = self.arena.usage();
        assert_eq!(usage.free_bytes, usage.arena_bytes);
        assert_eq!(
            usage.largest_free,
            self.slabs.values().map(|&(_, len)| len).max().unwrap_or(0),
            "slabs are whole"
        );
        for (slab, _, len) in self.arena.empty_slabs() {
            assert_eq!(self.arena.remove_slab(slab), Ok(len));
            assert!(self.slabs.remove(&slab).is_some());
        }
        assert!(self.slabs.is_empty(), "all slabs were empty");
        assert_eq!(self.arena.usage(), Usage::default());
    }

    pub fn held_count(&self) -> usize {
        self.held.len()
    }

    fn kind_bytes(&self, kind: SlabKind) -> u64 {
        let budget = self.arena.budget();
        if kind == SlabKind::Bounce {
            budget.bounce_bytes
        } else {
            budget.max_bytes - budget.bounce_bytes
        }
    }

    fn left(&self, kind: SlabKind) -> u64 {
        let slabs = self.slabs.values().filter(|&&(of, _)| of == kind);
        self.kind_bytes(kind) - slabs.map(|&(_, len)| len).sum::<u64>()
    }

    fn grow(&mut self, kind: SlabKind, missing: u64, largest: u64, cancel: bool) {
        let left = self.left(kind);
        let Some(len) = self.arena.next_slab_len(kind, missing, largest) else {
            assert!(
                left < largest.max(1).next_multiple_of(PAGE),
                "{left} bytes are left for {largest}"
            );
            return;
        };
        assert!(len >= largest && len.is_multiple_of(PAGE) && len <= left);
        assert_eq!(self.arena.reserve_slab(kind, left + PAGE), None, "beyond the budget");
        let slab = self.arena.reserve_slab(kind, len).expect("the length was offered");
        assert!(self.slab_ids.insert(slab), "numbers are not reused");
        assert!(self.arena.remove_slab(slab).is_err(), "it is being made");
        if cancel {
            self.arena.cancel_slab(slab);
        } else {
            self.arena.admit_slab(slab);
            self.slabs.insert(slab, (kind, len));
        }
    }

    fn acquire(&mut self, kind: SlabKind, len: u64, align: u64) {
        let before = self.arena.usage();
        match self.arena.acquire(kind, len, align) {
            Ok(block) => {
                assert!(block.len >= len && block.offset.is_multiple_of(align));
                let &(of, slab_len) = self.slabs.get(&block.slab).expect("blocks lie in admitted slabs");
                assert_eq!(of, kind);
                assert!(block.offset + block.len <= slab_len, "no block crosses two slabs");
                let extents = self.extents.entry(block.slab).or_default();
                let before = extents.range(..block.offset + block.len).next_back();
                assert!(
                    before.is_none_or(|(&offset, &len)| offset + len <= block.offset),
                    "two owners"
                );
                extents.insert(block.offset, block.len);
                assert!(block.id.index < self.arena.block_index_limit());
                assert_eq!(self.arena.state(block.id), BlockState::InFlight);
                self.held.push(Held {
                    block,
                    kind,
                    state: BlockState::InFlight,
                });
            }
            Err(error) => {
                assert_eq!(self.arena.usage(), before, "a refusal changes nothing");
                self.explain(kind, len, &error);
            }
        }
    }

    /// Checks the reason of a refusal.
    fn explain(&self, kind: SlabKind, len: u64, error: &AcquireError) {
        let usage = self.arena.usage_of(kind);
        let least = len.next_multiple_of(PAGE);
        match *error {
            AcquireError::ZeroBytes => assert_eq!(len, 0),
            AcquireError::TooLarge { most, .. } => assert!(most == self.kind_bytes(kind) && len > most),
            AcquireError::NeedsSlab { growable_bytes, .. } => {
                assert!(growable_bytes == self.left(kind) && growable_bytes >= least);
            }
            AcquireError::Exhausted {
                free, largest, held, ..
            } => {
                assert!(self.left(kind) < least);
                assert_eq!(
                    (free, largest, held),
                    (usage.free_bytes, usage.largest_free, usage.arena_bytes - free)
                );
            }
            ref other => panic!("unknown reason {other}"),
        }
    }

    fn change(&mut self, which: usize, to: BlockState) {
        let count = self.held.len().max(1);
        let Some(held) = self.held.get_mut(which % count) else {
            return;
        };
        let id = held.block.id;
        let result = if to == BlockState::Leased {
            self.arena.lease(id)
        } else {
            self.arena.quarantine(id)
        };
        if held.state == BlockState::InFlight {
            assert_eq!(result, Ok(()));
            held.state = to;
        } else {
            assert_eq!(
                result,
                Err(StaleBlock {
                    id,
                    found: Some(held.state)
                })
            );
        }
        assert_eq!(self.arena.state(id), held.state);
    }

    fn release(&mut self, which: usize) {
        let count = self.held.len().max(1);
        let Some(&held) = self.held.get(which % count) else {
            return;
        };
        let id = held.block.id;
        let result = self.arena.release(id);
        if held.state == BlockState::Quarantined {
            assert_eq!(
                result,
                Err(StaleBlock {
                    id,
                    found: Some(BlockState::Quarantined)
                })
            );
        } else {
            assert_eq!(result, Ok(()));
            self.held.swap_remove(which % count);
            self.forget(held.block);
        }
    }

    fn end_quarantine(&mut self) {
        let (ended, kept): (Vec<_>, Vec<_>) = self
            .held
            .drain(..)
            .partition(|held| held.state == BlockState::Quarantined);
        self.held = kept;
        assert_eq!(
            self.arena.end_quarantine(),
            ended.iter().map(|held| held.block.len).sum::<u64>()
        );
        ended.into_iter().for_each(|held| self.forget(held.block));
    }

    fn forget(&mut self, block: Block) {
        let extents = self.extents.get_mut(&block.slab).expect("its slab has extents");
        assert_eq!(extents.remove(&block.offset), Some(block.len));
        assert_eq!(self.arena.state(block.id), BlockState::Free);
        if self.stale.len() == STALE_MAX {
            self.stale.pop_front();
        }
        self.stale.push_back(block.id);
    }

    fn use_stale(&mut self, which: usize) {
        if self.stale.is_empty() {
            return;
        }
        let id = self.stale[which % self.stale.len()];
        let before = self.arena.usage();
        let refused = Err(StaleBlock { id, found: None });
        assert_eq!(self.arena.release(id), refused);
        assert_eq!(self.arena.lease(id), refused);
        assert_eq!(self.arena.quarantine(id), refused);
        assert_eq!((self.arena.state(id), self.arena.usage()), (BlockState::Free, before));
    }

    fn remove_slab(&mut self, which: usize) {
        let count = self.slabs.len().max(1);
        let Some((&slab, &(_, len))) = self.slabs.iter().nth(which % count) else {
            return;
        };
        let held: u64 = self.extents.get(&slab).map_or(0, |extents| extents.values().sum());
        match self.arena.remove_slab(slab) {
            Ok(removed) => {
                assert_eq!((removed, held), (len, 0));
                self.slabs.remove(&slab);
                assert_eq!(self.arena.remove_slab(slab), Ok(0), "removed before");
            }
            Err(busy) => assert!(busy.slab == slab && busy.held == held && held > 0),
        }
    }

    fn give_up_slabs(&mut self, kind: SlabKind, largest: u64) {
        let Some(given_up) = self.arena.slabs_to_give_up(kind, largest, u64::MAX) else {
            let empty = self.arena.empty_slabs();
            let reclaimable: u64 = empty.iter().filter(|slab| slab.1 == kind).map(|slab| slab.2).sum();
            assert!(self.left(kind) + reclaimable < largest.max(1).next_multiple_of(PAGE));
            return;
        };
        for slab in given_up {
            assert!(
                self.arena.remove_slab(slab).is_ok_and(|len| len > 0),
                "only empty slabs are given up"
            );
            self.slabs.remove(&slab);
        }
        assert!(self.arena.next_slab_len(kind, largest, largest).is_some());
    }

    /// Compares every counter and the state of every block.
    fn compare(&self) {
        let mut total = 0;
        for kind in [SlabKind::Lease, SlabKind::Bounce] {
            let usage = self.arena.usage_of(kind);
            let bytes = |state| {
                let held = self.held.iter().filter(|held| held.kind == kind && held.state == state);
                held.map(|held| held.block.len).sum::<u64>()
            };
            assert_eq!(usage.leased_bytes, bytes(BlockState::Leased));
            assert_eq!(usage.in_flight_bytes, bytes(BlockState::InFlight));
            assert_eq!(usage.quarantined_bytes, bytes(BlockState::Quarantined));
            assert_eq!(
                usage.blocks,
                self.held.iter().filter(|held| held.kind == kind).count() as u64
            );
            let lens: Vec<_> = self
                .slabs
                .values()
                .filter(|slab| slab.0 == kind)
                .map(|slab| slab.1)
                .collect();
            assert_eq!((usage.arena_bytes, usage.slabs), (lens.iter().sum(), lens.len() as u64));
            let held = usage.leased_bytes + usage.in_flight_bytes + usage.quarantined_bytes;
            assert_eq!(usage.free_bytes, usage.arena_bytes - held);
            assert!(usage.largest_free <= usage.free_bytes && usage.arena_bytes <= self.kind_bytes(kind));
            total += usage.arena_bytes;
        }
        assert_eq!(self.arena.usage().arena_bytes, total);
        assert!(
            self.held
                .iter()
                .all(|held| self.arena.state(held.block.id) == held.state)
        );
    }
}

fn kind(bounce: bool) -> SlabKind {
    if bounce { SlabKind::Bounce } else { SlabKind::Lease }
}
