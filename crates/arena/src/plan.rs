//! Transfer plans: pure functions from keys, sizes and limits to groups and regions. All of them take linear time.

mod fold;
mod groups;
mod ranges;
mod regions;
mod tensor_bytes;

pub use fold::{Folded, fold_duplicates};
pub use groups::{GroupLimits, cut_groups};
pub use ranges::split_ranges;
pub use regions::{CopyRegion, dtype_regions, merge_regions};
pub use tensor_bytes::tensor_bytes;
