//! Few calls at a time where more would be in each other's way.
use std::{num::NonZero, thread, time::Duration};
use tensorlease_engine::{Turn, Turns};

/// Calls whose objects are this large in the mean share the connections to a peer. 64 objects of 16 MiB from another
/// process took half as long again in four calls at a time as in one after the other.
const LARGE_BYTES_MIN: usize = 1 << 20;

/// A call that takes longer than this hangs with its peer, or waits for a slow network, and other calls no longer wait
/// for it. Small objects move in short calls.
const LARGE_CALL_MAX: Duration = Duration::from_secs(2);
const SMALL_CALL_MAX: Duration = Duration::from_millis(500);

/// Who may call Mooncake over TCP now.
#[derive(Debug)]
pub(super) struct TurnsOverTcp {
    large_reads: Turns,
    large_writes: Turns,
    small_reads: Turns,
    small_writes: Turns,
}

impl TurnsOverTcp {
    /// `alone`: without a segment of its own. What goes into that is copied: by two calls of large objects quicker than by one, and of small
    /// ones by as many as there are.
    pub(super) fn new(alone: bool) -> Self {
        // Each call keeps a core busy until its last byte has moved. Calls beyond the cores take them from the threads
        // that move the bytes: on two cores four calls at a time took twice as long as two, reading or writing 16,384
        // objects of 64 KiB of another process.
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            large_reads: Turns::new(1, LARGE_CALL_MAX),
            large_writes: Turns::new(if alone { 1 } else { 2 }, LARGE_CALL_MAX),
            small_reads: Turns::new(cores, SMALL_CALL_MAX),
            small_writes: Turns::new(if alone { cores } else { usize::MAX }, SMALL_CALL_MAX),
        }
    }

    /// Waits for the turn of a read of so many objects and bytes.
    pub(super) fn read(&self, objects: usize, bytes: usize) -> Turn<'_> {
        let large = are_large(objects, bytes);
        if large { &self.large_reads } else { &self.small_reads }.take()
    }

    /// Waits for the turn of a write of so many objects and bytes.
    pub(super) fn write(&self, objects: usize, bytes: usize) -> Turn<'_> {
        let large = are_large(objects, bytes);
        if large { &self.large_writes } else { &self.small_writes }.take()
    }
}

fn are_large(objects: usize, bytes: usize) -> bool {
    LARGE_BYTES_MIN <= bytes / objects.max(1)
}
