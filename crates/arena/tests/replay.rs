//! Replays the inputs of the fuzz target `allocator`, and random ones, in an ordinary test.

#[allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "shared with the fuzz target, which uses less or more of it"
)]
#[path = "../../../fuzz/src/model/mod.rs"]
mod model;

use arbitrary::{Arbitrary, Unstructured};
use model::{AllocatorModel, AllocatorOperation, ArenaModel, ArenaOperation};
use proptest::prelude::*;
use std::path::Path;

/// Random bytes of a fixed seed (splitmix64), the same on every run.
struct RandomBytes(u64);

impl RandomBytes {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn operation<T: for<'a> Arbitrary<'a>>(&mut self) -> T {
        let bytes: [[u8; 8]; 2] = [self.next().to_le_bytes(), self.next().to_le_bytes()];
        T::arbitrary(&mut Unstructured::new(bytes.as_flattened())).expect("16 bytes make any operation")
    }
}

#[test]
fn every_seed_of_the_fuzz_target_agrees_with_the_model() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/allocator");
    let mut steps = 0;
    let mut seeds = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        steps += model::replay(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 16, "{seeds} seeds in {}", folder.display());
    assert!(steps >= 1000, "the seeds take {steps} steps only");
}

#[test]
fn a_million_random_steps_of_the_allocator_agree_with_the_model() {
    let mut random = RandomBytes(1);
    let capacities = [1 << 20, (1 << 20) + 4096, 250 << 10, 15 << 22, 64, 1000];
    for capacity in capacities {
        let mut model = AllocatorModel::new(capacity);
        for _ in 0..1_000_000 / capacities.len() {
            match random.operation() {
                // Rare, or nothing would ever fill up.
                AllocatorOperation::FreeAll if !random.next().is_multiple_of(100) => {}
                operation => model.step(&operation),
            }
            while model.held_count() > 400 {
                model.step(&AllocatorOperation::Free {
                    which: u16::try_from(random.next() >> 48).unwrap(),
                });
            }
        }
        model.finish();
    }
}

#[test]
fn half_a_million_random_steps_of_the_arena_agree_with_the_model() {
    let mut random = RandomBytes(2);
    let budgets = [(255, 32), (255, 255), (100, 0), (40, 20), (0, 1)];
    for (pages, bounce_pages) in budgets {
        let mut model = ArenaModel::new(pages, bounce_pages);
        for _ in 0..500_000 / budgets.len() {
            model.step(&random.operation::<ArenaOperation>());
            while model.held_count() > 200 {
                model.step(&ArenaOperation::EndQuarantine);
                model.step(&ArenaOperation::Release {
                    which: u16::try_from(random.next() >> 48).unwrap(),
                });
            }
        }
        model.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_bytes_are_a_script_that_agrees_with_the_model(input in prop::collection::vec(any::<u8>(), 0..1000)) {
        model::replay(&input);
    }
}
