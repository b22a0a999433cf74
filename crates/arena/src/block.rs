//! Names of slabs and blocks, what a slab is for, and the states of a block.

/// Names one slab of one arena. Numbers are never reused, so a late message about a removed slab can't hit its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlabId(pub u32);

/// What a slab is for. Leases never lie in bounce slabs and the other way round, so neither can fragment the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlabKind {
    /// Blocks that tensors may hold for as long as they like.
    Lease,
    /// Blocks of copied reads and write staging, which come back soon: `bounce_bytes` of the budget.
    Bounce,
}

/// Handle of a block. It goes stale when the block is freed; the arena refuses a stale handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    /// Entry in the arena's block table, below [`Arena::block_index_limit`](crate::Arena::block_index_limit).
    pub index: u32,
    /// Which of the blocks that have used this entry is meant.
    pub generation: u32,
}

/// The one state that a block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Not handed out. A stale handle names a free block.
    Free,
    /// An engine call may write it: it ends only when that call has returned.
    InFlight,
    /// A tensor or another owner holds it.
    Leased,
    /// A transfer that was given up may still write it: not reused until its engine client is closed.
    Quarantined,
}

/// One sub-range of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Handle for every later step.
    pub id: BlockId,
    /// The slab which holds the whole of it.
    pub slab: SlabId,
    /// Start within the slab, bytes.
    pub offset: u64,
    /// The whole block, bytes: what budgets count, at least what was asked.
    pub len: u64,
}
