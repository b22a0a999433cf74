//! Pure index arithmetic of tensorlease: which bytes of which slab belong to whom, and how a transfer is cut up.
//!
//! No pointers, no I/O, no clock, no threads: everything here is a function of its arguments and can be tested against a model.
//!
//! - [`block_len`]: size classes, the bytes that a request really takes;
//! - [`OffsetAllocator`]: ranges within one slab;
//! - [`Budget`]: how much may be held, and for what;
//! - [`Arena`]: slabs, blocks and their states;
//! - [`plan`]: from keys and sizes to groups and regions.
#![forbid(unsafe_code)]

mod allocator;
mod arena;
mod block;
mod budget;
pub mod plan;
mod size_class;

pub use allocator::{Allocation, FreeError, OffsetAllocator};
pub use arena::{AcquireError, Arena, SlabBusy, StaleBlock, Usage};
pub use block::{Block, BlockId, BlockState, SlabId, SlabKind};
pub use budget::{Budget, BudgetError};
pub use size_class::{GRANULE_BYTES, block_len};
