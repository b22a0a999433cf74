//! Lock-free list of dropped blocks (Treiber stack by index; drained whole, so there is no ABA).

use crate::sync::{AtomicU32, Ordering};
use std::sync::OnceLock;
use tensorlease_arena::BlockId;

/// Entries of the first chunk; each later one has twice as many. Small under loom, which tracks every atomic.
const FIRST_CHUNK: u32 = if cfg!(loom) { 4 } else { 1024 };
/// Enough chunks for every index that fits in 32 bits.
const CHUNKS: usize = 32 - FIRST_CHUNK.ilog2() as usize + 1;
/// No block has this index (`reserve` takes a limit, which is above every index).
const NOTHING: u32 = u32::MAX;

/// Blocks dropped by their owners, waiting to become free.
///
/// Owners push from any thread without lock or allocation; whoever holds the pool's lock takes all at once. A block's
/// entry in the side table belongs to the block's owner until the push, and to the drainer from then on.
#[derive(Debug)]
pub struct ReturnList {
    head: AtomicU32,
    chunks: [OnceLock<Box<[Entry]>>; CHUNKS],
}

#[derive(Debug)]
struct Entry {
    next: AtomicU32,
    generation: AtomicU32,
}

impl ReturnList {
    /// An empty list without room.
    pub fn new() -> Self {
        Self {
            head: AtomicU32::new(NOTHING),
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// Makes room for block indices below `limit` (called under the pool lock, before such a block is handed out). Chunks
    /// are never moved.
    pub fn reserve(&self, limit: u32) {
        let Some(last) = limit.checked_sub(1) else { return };
        let (last_chunk, _) = position(last);
        for (chunk, entries) in self.chunks.iter().enumerate().take(last_chunk + 1) {
            entries.get_or_init(|| (0..(FIRST_CHUNK as usize) << chunk).map(|_| Entry::new()).collect());
        }
    }

    /// Puts a dropped block on the list. Never allocates, never blocks. At most one push per handed-out block, with an
    /// index for which room was reserved.
    pub fn push(&self, id: BlockId) {
        let Some(entry) = self.entry(id.index) else {
            debug_assert!(false, "room was reserved before block {id:?} was handed out");
            return;
        };
        entry.generation.store(id.generation, Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            entry.next.store(head, Ordering::Relaxed);
            // Release: the drainer, and who gets the block next, see the entry and all that the owner did to the bytes.
            // Pushes in between are read-modify-writes, so they carry the release on.
            match self
                .head
                .compare_exchange_weak(head, id.index, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(newer) => head = newer,
            }
        }
    }

    /// Takes everything pushed so far, the newest first. The caller holds the pool lock (one drainer at a time).
    pub fn drain(&self, mut each: impl FnMut(BlockId)) {
        // The common case by a load, so that a read with nothing to take does not write the line that deleters share.
        if self.head.load(Ordering::Relaxed) == NOTHING {
            return;
        }
        // Acquire: pairs with the release of every push that is taken here.
        let mut index = self.head.swap(NOTHING, Ordering::Acquire);
        while index != NOTHING {
            let entry = self.entry(index).expect("only indices with an entry are pushed");
            let generation = entry.generation.load(Ordering::Relaxed);
            let next = entry.next.load(Ordering::Relaxed);
            each(BlockId { index, generation });
            index = next;
        }
    }

    fn entry(&self, index: u32) -> Option<&Entry> {
        let (chunk, at) = position(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }
}

impl Default for ReturnList {
    fn default() -> Self {
        Self::new()
    }
}

impl Entry {
    fn new() -> Self {
        Self {
            next: AtomicU32::new(NOTHING),
            generation: AtomicU32::new(0),
        }
    }
}

/// Chunk and position in it of an index: chunk k holds `FIRST_CHUNK << k` entries from `FIRST_CHUNK * (2^k - 1)`.
fn position(index: u32) -> (usize, usize) {
    let ordinal = index / FIRST_CHUNK + 1;
    let chunk = ordinal.ilog2();
    let start = FIRST_CHUNK * ((1 << chunk) - 1);
    (chunk as usize, (index - start) as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn id(index: u32) -> BlockId {
        BlockId {
            index,
            generation: index ^ 0xABCD,
        }
    }

    #[test]
    fn chunks_cover_every_index_once_and_in_order() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(position(index), expected, "index {index}");
            let (chunk, at) = expected;
            let last = at + 1 == (FIRST_CHUNK as usize) << chunk;
            expected = if last { (chunk + 1, 0) } else { (chunk, at + 1) };
        }
        assert_eq!(position(NOTHING - 1).0, CHUNKS - 1);
    }

    #[test]
    fn everything_pushed_is_drained_once_with_its_generation() {
        let list = ReturnList::new();
        list.reserve(5000);
        (0..5000).for_each(|index| list.push(id(index)));
        let mut drained = Vec::new();
        list.drain(|id| drained.push(id));
        drained.reverse();
        assert_eq!(drained, (0..5000).map(id).collect::<Vec<_>>());
        list.drain(|id| panic!("{id:?} comes twice"));
    }

    #[test]
    fn more_room_keeps_what_is_on_the_list() {
        let list = ReturnList::default();
        list.reserve(0);
        list.reserve(1);
        list.push(id(0));
        list.reserve(1_000_000);
        list.push(id(999_999));
        let mut drained = Vec::new();
        list.drain(|id| drained.push(id));
        assert_eq!(drained, [id(999_999), id(0)]);
    }
}
