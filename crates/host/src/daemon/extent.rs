//! Extents: blocks of the arena that clients use as slabs of their own. Those whose clients are gone are quarantined
//! while a transfer may write there.
use super::violation::{ProtocolViolation, violation};
use crate::wire::Span;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use tensorlease_memory::{Lease, SlabMemory, Source, Target, lock};

/// Owned by its client's holdings, and by every transfer that runs in it.
#[derive(Debug)]
pub(super) struct Extent {
    lease: Lease,
    slab: SlabMemory,
    start: usize,
}

impl Extent {
    /// `slab` is the one that the lease's block lies in. None: the block lies in another slab.
    pub(super) fn new(lease: Lease, slab: SlabMemory) -> Option<Self> {
        let start = usize::try_from(lease.block().offset).ok()?;
        let end = start.checked_add(lease.len())?;
        (end <= slab.len()).then_some(Self { lease, slab, start })
    }

    /// Length of the whole block, bytes.
    pub(super) fn len(&self) -> u64 {
        self.lease.block().len
    }

    /// The bytes of a span, to be written by a transfer.
    pub(super) fn target(&self, span: &Span) -> Result<Target<'_>, ProtocolViolation> {
        Ok(self.slab.mapping().target(self.range(span)?))
    }

    /// The bytes of a span, to be read by a transfer.
    pub(super) fn source(&self, span: &Span) -> Result<Source<'_>, ProtocolViolation> {
        Ok(self.slab.mapping().source(self.range(span)?))
    }

    /// Where in the slab a span lies. No transfer has an empty one.
    fn range(&self, span: &Span) -> Result<Range<usize>, ProtocolViolation> {
        let end = span
            .offset
            .checked_add(span.len)
            .filter(|end| *end <= self.lease.len() as u64);
        let (Ok(start), Some(Ok(end)), 1..) = (span.offset.try_into(), end.map(usize::try_from), span.len) else {
            return violation("it named bytes that its extent does not have, or none");
        };
        let start: usize = start;
        Ok(self.start + start..self.start + end)
    }

    /// Makes its pages present before a transfer writes them. One call costs less than a fault for each page.
    pub(super) fn prefault(&self) {
        self.slab.mapping().prefault(self.start..self.start + self.lease.len());
    }
}

/// Extents that are not handed out again though their clients are gone. Transfers run in them, or may still write
/// there.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    /// Extents whose clients are gone. One that no transfer holds any more has gone back to the arena.
    ownerless: Mutex<Vec<Weak<Extent>>>,
    /// A transfer in it failed, and the engine does not know when it ends. Kept until the engine is closed, also while
    /// the client lives.
    late: Mutex<Vec<Arc<Extent>>>,
}

impl Quarantine {
    /// Takes extents of a client that is gone or gives them back. Those that no transfer holds are free when this
    /// returns.
    pub(super) fn take(&self, extents: Vec<Arc<Extent>>) {
        let mut ownerless = lock(&self.ownerless);
        ownerless.retain(|extent| 0 < extent.strong_count());
        ownerless.extend(extents.iter().map(Arc::downgrade));
        drop(ownerless);
        drop(extents);
    }

    /// Keeps an extent that the engine may still write.
    pub(super) fn keep(&self, extent: &Arc<Extent>) {
        let mut late = lock(&self.late);
        if !late.iter().any(|kept| Arc::ptr_eq(kept, extent)) {
            late.push(Arc::clone(extent));
        }
    }

    /// Bytes of all extents without a client.
    pub(super) fn bytes(&self) -> u64 {
        self.ownerless().iter().map(|extent| extent.len()).sum()
    }

    /// The part of them that stays until the engine is closed.
    pub(super) fn late_bytes(&self) -> u64 {
        let late = lock(&self.late).clone();
        let ownerless = self.ownerless();
        let both = ownerless
            .iter()
            .filter(|extent| late.iter().any(|kept| Arc::ptr_eq(kept, extent)));
        both.map(|extent| extent.len()).sum()
    }

    /// May the engine still write anything?
    pub(super) fn is_late(&self) -> bool {
        !lock(&self.late).is_empty()
    }

    /// Frees what was kept: the engine is closed and writes nothing any more.
    pub(super) fn end(&self) {
        let late = std::mem::take(&mut *lock(&self.late));
        drop(late);
    }

    fn ownerless(&self) -> Vec<Arc<Extent>> {
        lock(&self.ownerless).iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        // The engine has not closed. What it may still write stays mapped.
        std::mem::forget(std::mem::take(&mut *lock(&self.late)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::ArenaMemory;
    use super::*;

    const LEN: u64 = 64 << 10;

    fn extent(memory: &ArenaMemory) -> Arc<Extent> {
        let lease = memory.lease(vec![memory.pages(LEN).unwrap()]).remove(0);
        let slab = memory.slab(lease.block().slab).unwrap();
        Arc::new(Extent::new(lease, slab).unwrap())
    }

    fn span(offset: u64, len: u64) -> Span {
        Span { ticket: 1, offset, len }
    }

    #[test]
    fn a_span_lies_inside_its_extent_or_is_refused() {
        let memory = ArenaMemory::new(1 << 20, None).unwrap();
        let (first, second) = (extent(&memory), extent(&memory));
        let inside = second.target(&span(10, LEN - 10)).unwrap().region();
        assert!(!inside.overlaps(first.target(&span(0, LEN)).unwrap().region()));
        assert_eq!(inside.len as u64, LEN - 10);
        for outside in [
            span(0, 0),
            span(0, LEN + 1),
            span(LEN, 1),
            span(u64::MAX, 1),
            span(1, u64::MAX),
        ] {
            assert!(first.target(&outside).is_err(), "{outside:?}");
            assert!(first.source(&outside).is_err(), "{outside:?}");
        }
    }

    #[test]
    fn an_extent_without_a_client_is_quarantined_while_a_transfer_holds_it() {
        let memory = ArenaMemory::new(1 << 20, None).unwrap();
        let quarantine = Quarantine::default();
        let (idle, busy) = (extent(&memory), extent(&memory));
        let transfer = Arc::clone(&busy);
        quarantine.take(vec![idle, busy]);
        assert_eq!((quarantine.bytes(), quarantine.late_bytes()), (LEN, 0));
        assert_eq!(memory.held_bytes(), LEN, "the idle one went back");
        drop(transfer);
        assert_eq!((quarantine.bytes(), memory.held_bytes()), (0, 0));
    }

    #[test]
    fn an_extent_that_may_be_written_late_stays_until_the_engine_is_closed() {
        let memory = ArenaMemory::new(1 << 20, None).unwrap();
        let quarantine = Quarantine::default();
        let late = extent(&memory);
        quarantine.keep(&late);
        quarantine.keep(&late);
        assert_eq!(quarantine.bytes(), 0, "it has a client");
        quarantine.take(vec![late]);
        assert_eq!((quarantine.bytes(), quarantine.late_bytes()), (LEN, LEN));
        assert!(quarantine.is_late());
        quarantine.end();
        assert_eq!((quarantine.bytes(), memory.held_bytes()), (0, 0));
    }
}
