//! One object of the daemon's own store.
use crate::wire::{Described, Pinned, Position};
use tensorlease_arena::Block;
use tensorlease_engine::{Indexed, Tag};
use tensorlease_memory::Lease;

/// Never changed after it was published.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) lease: Lease,
    pub(super) len: u64,
    pub(super) version: u64,
    pub(super) tag: Tag,
}

impl Indexed for Object {
    fn object_len(&self) -> u64 {
        self.len
    }
}

impl Object {
    /// As `Pin` answers.
    pub(super) fn pinned(&self) -> Pinned<'_> {
        Pinned {
            position: position(self.lease.block(), self.len),
            version: self.version,
            tag: self.tag.as_bytes(),
        }
    }

    /// As `Describe` answers.
    pub(super) fn described(&self) -> Described<'_> {
        Described {
            len: self.len,
            version: self.version,
            tag: Some(self.tag.as_bytes()),
        }
    }
}

/// Where the first `len` bytes of a block lie.
pub(super) fn position(block: Block, len: u64) -> Position {
    Position {
        slab: block.slab.0,
        offset: block.offset,
        len,
        generation: block.id.generation,
    }
}
