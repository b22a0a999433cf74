//! Bytes handed to a user: exclusive, owned, given back on drop.

use crate::parts::parts;
use crate::slab::Hold;
use crate::{HeapBytes, Lease, Mapping, Region};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Exclusive bytes of a user, whatever memory they lie in. Drop gives the memory back (of several cuts of one landing: the
/// last one's drop), without a lock where it is a pool's.
#[derive(Debug)]
pub struct Buffer {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// 16,384 buffers are made per read.
const _: () = assert!(size_of::<Buffer>() <= 64);

/// What keeps the bytes of a buffer. Several buffers of one memory share it; a single one needs no second allocation.
#[derive(Debug)]
enum Owner {
    Alone(Memory),
    Shared(Arc<Memory>),
}

/// Memory that buffers are cut from.
#[derive(Debug)]
pub(crate) enum Memory {
    Block(Hold),
    Fresh(Mapping),
    Heap(HeapBytes),
}

// SAFETY: a buffer owns its bytes exclusively (`cut`), as a `Vec<u8>` does, and its owner is Send.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer gives out shared references only, and its owner is Sync.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Has it no bytes?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address range.
    pub fn region(&self) -> Region {
        Region::of(self.base.as_ptr(), self.len)
    }

    /// The first byte, valid for reads as long as the buffer lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// The first byte, valid for reads and writes as long as the buffer lives. A pointer taken here stays good for both
    /// when the buffer moves: the bytes don't move with it.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `base..base+len` lies in memory that `owner` keeps, initialised and this buffer's alone (`cut`).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// The bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the borrow the only one.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// Does it lie in a pool's slab (leased), rather than in memory of its own? For statistics and tests.
    pub fn is_leased(&self) -> bool {
        let memory = match &self.owner {
            Owner::Alone(memory) => memory,
            Owner::Shared(memory) => memory,
        };
        matches!(memory, Memory::Block(_))
    }

    /// Buffers of the given cuts of the first `len` bytes of `memory`; of a mapping each keeps its part alone. By taking the memory it knows that no safe target
    /// of it is left; by refusing overlaps it makes each buffer exclusive.
    pub(crate) fn cut(memory: Memory, len: usize, cuts: &[Range<usize>]) -> Vec<Self> {
        check_cuts(len, cuts);
        match (memory, cuts) {
            (memory, [cut]) => vec![Self::piece(memory.base(), cut, Owner::Alone(memory))],
            (Memory::Fresh(mapping), [_, ..]) => Self::cut_apart(mapping, cuts),
            (memory, cuts) => {
                let (base, shared) = (memory.base(), Arc::new(memory));
                cuts.iter()
                    .map(|cut| Self::piece(base, cut, Owner::Shared(Arc::clone(&shared))))
                    .collect()
            }
        }
    }

    fn piece(base: *mut u8, cut: &Range<usize>, owner: Owner) -> Self {
        Self {
            // Within an allocation, so not null.
            base: NonNull::new(base.wrapping_add(cut.start)).expect("memory does not lie at address 0"),
            len: cut.len(),
            owner,
        }
    }

    /// Buffers of a mapping that is taken apart, so that one that lives long keeps little more than its own memory.
    fn cut_apart(mapping: Mapping, cuts: &[Range<usize>]) -> Vec<Self> {
        let (base, mut rest) = (mapping.base(), Some(mapping));
        let mut buffers: Vec<Option<Self>> = cuts.iter().map(|_| None).collect();
        // The last part first: it is what is cut off.
        for (begin, of_part) in parts(cuts).into_iter().rev() {
            let part = match (&mut rest, begin) {
                (Some(rest), 1..) => rest.split_off(begin),
                _ => rest.take().expect("the first part comes last"),
            };
            if let [at] = *of_part {
                buffers[at] = Some(Self::piece(base, &cuts[at], Owner::Alone(Memory::Fresh(part))));
                continue;
            }
            let shared = Arc::new(Memory::Fresh(part));
            for at in of_part {
                buffers[at] = Some(Self::piece(base, &cuts[at], Owner::Shared(Arc::clone(&shared))));
            }
        }
        buffers
            .into_iter()
            .map(|buffer| buffer.expect("every cut lies in one part"))
            .collect()
    }

    /// One buffer of all `len` bytes of `memory`.
    pub(crate) fn whole(memory: Memory, len: usize) -> Self {
        Self {
            base: NonNull::new(memory.base()).expect("memory does not lie at address 0"),
            len,
            owner: Owner::Alone(memory),
        }
    }
}

impl Memory {
    fn base(&self) -> *mut u8 {
        match self {
            Self::Block(hold) => hold.base(),
            Self::Fresh(mapping) => mapping.base(),
            Self::Heap(heap) => heap.base(),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl From<HeapBytes> for Buffer {
    fn from(bytes: HeapBytes) -> Self {
        let len = bytes.len();
        Self::whole(Memory::Heap(bytes), len)
    }
}

impl From<Lease> for Buffer {
    fn from(lease: Lease) -> Self {
        let len = lease.len();
        Self::whole(Memory::Block(lease.into_hold()), len)
    }
}

/// Panics unless the cuts are disjoint and lie in `0..len`.
fn check_cuts(len: usize, cuts: &[Range<usize>]) {
    for cut in cuts {
        assert!(
            cut.start <= cut.end && cut.end <= len,
            "cut {cut:?} is out of bounds of {len} bytes"
        );
    }
    if cuts.len() < 2 {
        return;
    }
    // A cut without bytes lies nowhere.
    let mut ordered: Vec<_> = cuts.iter().filter(|cut| !cut.is_empty()).collect();
    ordered.sort_unstable_by_key(|cut| cut.start);
    for pair in ordered.windows(2) {
        assert!(
            pair[0].end <= pair[1].start,
            "cuts {:?} and {:?} overlap",
            pair[0],
            pair[1]
        );
    }
}
