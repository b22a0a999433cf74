//! Memory that a read lands in, whoever owns it.

use crate::books::Shared;
use crate::buffer::Memory;
use crate::{Buffer, CallerMemory, HeapBytes, InFlight, Mapping, Region, Source, Target};
use std::ops::Range;
use std::sync::Weak;

/// Memory that a read lands in.
#[derive(Debug)]
pub enum Landing {
    /// A block of a pool.
    Block(InFlight),
    /// A mapping made for this read.
    Fresh(Mapping),
    /// Heap bytes, for small tensors.
    Heap(HeapBytes),
    /// Memory of the caller, who keeps it: no buffer comes of it.
    Caller(CallerMemory),
}

impl Landing {
    /// Length, bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Block(block) => block.len(),
            Self::Fresh(mapping) => mapping.len(),
            Self::Heap(heap) => heap.len(),
            Self::Caller(foreign) => foreign.len(),
        }
    }

    /// The address range.
    pub fn region(&self) -> Region {
        match self {
            Self::Block(block) => block.region(),
            Self::Fresh(mapping) => mapping.region(),
            Self::Heap(heap) => heap.region(),
            Self::Caller(foreign) => foreign.region(),
        }
    }

    /// The bytes `range`, to be written by a transfer. Panics when the range is out of bounds.
    pub fn target(&self, range: Range<usize>) -> Target<'_> {
        match self {
            Self::Block(block) => block.target(range),
            Self::Fresh(mapping) => mapping.target(range),
            Self::Heap(heap) => heap.target().truncated(range.end).split_at(range.start).1,
            Self::Caller(foreign) => foreign.target(range),
        }
    }

    /// The bytes `range`, to be read by a transfer. Panics when the range is out of bounds.
    pub fn source(&self, range: Range<usize>) -> Source<'_> {
        match self {
            Self::Block(block) => block.source(range),
            Self::Fresh(mapping) => mapping.source(range),
            Self::Heap(heap) => heap.source().slice(range),
            Self::Caller(foreign) => foreign.source(range),
        }
    }

    /// What buffers are cut from. None: the caller's memory, of which none is.
    fn into_memory(self) -> Option<Memory> {
        match self {
            Self::Block(block) => Some(Memory::Block(block.into_hold())),
            Self::Fresh(mapping) => Some(Memory::Fresh(mapping)),
            Self::Heap(heap) => Some(Memory::Heap(heap)),
            Self::Caller(_) => None,
        }
    }
}

/// What the transfers wrote becomes buffers, each with exclusive bytes.
///
/// `cuts[i]` are ranges of landing i, in the order of its buffers. Several cuts of one landing share its owner; the memory
/// goes back when the last of them drops, and at once where there are none. All blocks of a pool are leased under one lock.
/// The caller's memory gives no buffers. Panics on overlapping or out-of-bounds cuts, and on cuts of foreign memory.
pub fn into_buffers(landings: Vec<(Landing, Vec<Range<usize>>)>) -> Vec<Vec<Buffer>> {
    lease_blocks(landings.iter().map(|(landing, _)| landing));
    landings
        .into_iter()
        .map(|(landing, cuts)| {
            let len = landing.len();
            match landing.into_memory() {
                Some(memory) => Buffer::cut(memory, len, &cuts),
                None => {
                    assert!(
                        cuts.is_empty(),
                        "foreign memory stays its owner's: no buffers are cut from it"
                    );
                    Vec::new()
                }
            }
        })
        .collect()
}

/// As [`into_buffers`] for landings of one value each: every buffer is all of its landing. Panics on foreign memory.
pub fn into_whole_buffers(landings: Vec<Landing>) -> Vec<Buffer> {
    lease_blocks(landings.iter());
    landings
        .into_iter()
        .map(|landing| {
            let len = landing.len();
            let memory = landing.into_memory();
            Buffer::whole(
                memory.expect("foreign memory stays its owner's: it gives no buffer"),
                len,
            )
        })
        .collect()
}

/// In flight -> leased for every block, one lock per pool.
fn lease_blocks<'a>(landings: impl Iterator<Item = &'a Landing>) {
    // One pool, seldom two: a scan is shorter than a map.
    let mut by_pool: Vec<(&Weak<Shared>, Vec<&InFlight>)> = Vec::new();
    for landing in landings {
        let Landing::Block(block) = landing else { continue };
        let pool = block.hold().slab().pool();
        match by_pool.iter_mut().find(|(known, _)| known.ptr_eq(pool)) {
            Some((_, blocks)) => blocks.push(block),
            None => by_pool.push((pool, vec![block])),
        }
    }
    for (pool, blocks) in by_pool {
        // Where the pool is gone there are no books left, and nobody who could hand the blocks out again.
        if let Some(pool) = pool.upgrade() {
            pool.lease(blocks.into_iter().map(InFlight::hold));
        }
    }
}
