//! Drives the allocator and the arena against models: used by the fuzz targets and by the ordinary tests of `tensorlease-arena`.

mod allocator_model;
mod arena_model;

pub use allocator_model::{AllocatorModel, AllocatorOperation};
pub use arena_model::{ArenaModel, ArenaOperation};

use arbitrary::{Arbitrary, Unstructured};

/// What the first bytes of an input choose; all others are steps.
#[derive(Arbitrary, Debug)]
enum Subject {
    /// One allocator over so many bytes.
    Allocator { capacity: u32 },
    /// One arena of so many pages.
    Arena {
        pages: u8,
        bounce_pages: u8,
        /// Means nothing. The seeds have such a byte.
        spare: u8,
    },
}

/// Replays an input; panics where the implementation and the model disagree. Returns the steps taken.
pub fn replay(input: &[u8]) -> usize {
    let mut input = Unstructured::new(input);
    match Subject::arbitrary(&mut input).expect("missing bytes count as zeros") {
        Subject::Allocator { capacity } => {
            let mut model = AllocatorModel::new(u64::from(capacity));
            let steps = each_step(&mut input, |step| model.step(&step));
            model.finish();
            steps
        }
        Subject::Arena {
            pages,
            bounce_pages,
            spare: _,
        } => {
            let mut model = ArenaModel::new(pages.into(), bounce_pages.into());
            let steps = each_step(&mut input, |step| model.step(&step));
            model.finish();
            steps
        }
    }
}

/// Takes steps until the input is used up.
fn each_step<'a, T: Arbitrary<'a>>(input: &mut Unstructured<'a>, mut take: impl FnMut(T)) -> usize {
    let mut steps = 0;
    while !input.is_empty() {
        take(T::arbitrary(input).expect("missing bytes count as zeros"));
        steps += 1;
    }
    steps
}
