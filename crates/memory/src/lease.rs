//! A block in use: `InFlight` while an engine call may write it, `Lease` once it is the reader's.

use crate::slab::Hold;
use crate::{Region, Source, Target};
use std::ops::Range;
use tensorlease_arena::Block;

/// A block owned by the record of an engine call. Drop = release through the return list.
///
/// Its length is what was asked, not the whole block. Whoever drops it says that no transfer touches the memory any more;
/// where one may, [`crate::Pool::quarantine`] is the way.
#[derive(Debug)]
pub struct InFlight {
    hold: Hold,
    len: usize,
}

impl InFlight {
    pub(crate) fn new(hold: Hold, len: usize) -> Self {
        Self { hold, len }
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    pub(crate) fn into_hold(self) -> Hold {
        self.hold
    }

    /// The block in the arena's books.
    pub fn block(&self) -> Block {
        self.hold.block()
    }

    /// Bytes asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address range of the bytes asked for.
    pub fn region(&self) -> Region {
        Region {
            len: self.len,
            ..self.hold.region()
        }
    }

    /// The bytes `range`, to be written by a transfer. Panics when the range is out of bounds.
    pub fn target(&self, range: Range<usize>) -> Target<'_> {
        // SAFETY: the hold keeps the block and its mapping; no reference to the bytes exists before self is consumed (rule
        // 2 of the crate documentation), which the borrow of self in the result forbids.
        unsafe { Target::within(self.hold.base(), self.len, range) }
    }

    /// The bytes `range`, to be read by a transfer. Panics when the range is out of bounds.
    pub fn source(&self, range: Range<usize>) -> Source<'_> {
        // SAFETY: as in `target`.
        unsafe { Source::within(self.hold.base(), self.len, range) }
    }
}

/// A leased block: exclusive memory of its owner.
///
/// Drop pushes to the return list (no lock, no allocation; nothing in a forked child). It keeps its slab's mapping alive,
/// also after the pool and the engine are closed.
#[derive(Debug)]
pub struct Lease {
    hold: Hold,
    len: usize,
}

impl Lease {
    /// The transfer into `block` is over, and the books say leased (`Pool::lease` alone calls this).
    pub(crate) fn new(block: InFlight) -> Self {
        Self {
            len: block.len,
            hold: block.hold,
        }
    }

    pub(crate) fn into_hold(self) -> Hold {
        self.hold
    }

    /// The block in the arena's books.
    pub fn block(&self) -> Block {
        self.hold.block()
    }

    /// Bytes asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address range of the bytes asked for.
    pub fn region(&self) -> Region {
        Region {
            len: self.len,
            ..self.hold.region()
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the hold keeps the block mapped and from being handed out again, and the `InFlight` that transfers borrowed
        // is consumed, so these bytes are this lease's alone (rule 2); mapped memory is initialised.
        unsafe { std::slice::from_raw_parts(self.hold.base(), self.len) }
    }

    /// The bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the borrow the only one.
        unsafe { std::slice::from_raw_parts_mut(self.hold.base(), self.len) }
    }
}
