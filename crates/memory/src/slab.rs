//! A slab's memory, and the hold that keeps one block of it from being reused.

use crate::books::Shared;
use crate::{Region, ReturnList, SlabMemory, fork, poison};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};
use tensorlease_arena::Block;

/// Memory whose blocks a pool hands out, with all that a deleter needs. Blocks keep it alive, also after the pool.
#[derive(Debug)]
pub(crate) struct Slab {
    memory: SlabMemory,
    returns: Arc<ReturnList>,
    /// Weak: the pool owns its slabs. Dead = nobody is left who could reuse a block.
    pool: Weak<Shared>,
    fork_generation: u64,
}

impl Slab {
    pub(crate) fn new(memory: SlabMemory, returns: Arc<ReturnList>, pool: Weak<Shared>) -> Self {
        poison::forbid(memory.region());
        Self {
            memory,
            returns,
            pool,
            fork_generation: fork::generation(),
        }
    }

    pub(crate) fn memory(&self) -> &SlabMemory {
        &self.memory
    }

    pub(crate) fn pool(&self) -> &Weak<Shared> {
        &self.pool
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // Part of a mapping that lives on: whoever gets these bytes next must find them usable.
        poison::allow(self.memory.region());
    }
}

/// One block that somebody has: in flight or leased. Drop = the block goes back through the return list.
///
/// There is one hold per handed-out block (made by `Pool::acquire` alone, and not Clone), so a block comes back once.
#[derive(Debug)]
pub(crate) struct Hold {
    slab: Arc<Slab>,
    block: Block,
}

impl Hold {
    /// For a block that the arena just handed out, of which `asked` bytes are used.
    pub(crate) fn new(slab: Arc<Slab>, block: Block, asked: usize) -> Self {
        let hold = Self { slab, block };
        poison::allow(Region {
            len: asked,
            ..hold.region()
        });
        hold
    }

    pub(crate) fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    pub(crate) fn block(&self) -> Block {
        self.block
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.slab.memory.base().wrapping_add(to_usize(self.block.offset))
    }

    /// The whole block.
    pub(crate) fn region(&self) -> Region {
        Region {
            addr: self.base() as usize,
            len: to_usize(self.block.len),
        }
    }

    /// Ends the hold without giving the block back: its state was changed in the books (quarantined).
    pub(crate) fn into_slab(self) -> Arc<Slab> {
        poison::forbid(self.region());
        let hold = ManuallyDrop::new(self);
        // SAFETY: `hold` is never dropped nor used again, so the Arc is moved out once.
        unsafe { std::ptr::read(&raw const hold.slab) }
    }
}

impl Drop for Hold {
    /// Runs in any thread at any time (the last tensor dropped): no lock, no allocation, no log, no syscall.
    fn drop(&mut self) {
        // A forked child has a copy of the block; the books and the block itself are its parent's.
        if self.slab.fork_generation == fork::seen() {
            poison::forbid(self.region());
            self.slab.returns.push(self.block.id);
        }
    }
}

/// Lengths and offsets within a mapping, which fits in the address space.
pub(crate) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a length of mapped memory fits in an address")
}
