//! Offset allocator over one slab: free lists per size class behind a two-level bitmap, all metadata out of band.

mod class_map;

use crate::GRANULE_BYTES;
use crate::size_class::{CLASSES, class_ceil, class_floor, class_granules, granules};
use class_map::ClassMap;

/// No node: the end of a list, or the edge of the slab.
const NONE: u32 = u32::MAX;

/// Nodes looked at in a list whose ranges may or may not be long enough. Small, so that a failing search stays O(1).
const SCAN_MAX: usize = 16;

/// A range handed out by [`OffsetAllocator::allocate`]. `node` and `generation` prove it at [`OffsetAllocator::free`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Start, bytes.
    pub offset: u64,
    /// Length, bytes: at least what was asked.
    pub len: u64,
    /// Slot of the node which describes the range.
    pub node: u32,
    /// Which of the allocations that have used this slot is meant. A handle would have to outlive 2^32 reuses of its slot to
    /// be mistaken for a later one.
    pub generation: u32,
}

/// Why a free was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// Freed before, or never handed out by this allocator.
    #[error("stale allocation; free each allocation once, at the allocator that made it")]
    Stale,
}

/// Allocator over the bytes `[0, capacity)`, of which it touches none. `allocate` and `free` take constant time; neighbouring
/// free ranges are merged at once; the table of nodes only grows, so steady use allocates nothing.
#[derive(Debug)]
pub struct OffsetAllocator {
    nodes: Vec<Node>,
    /// First of the slots that can be recycled, linked by `Node::next`.
    vacant: u32,
    /// First free range of each class.
    heads: Box<[u32; CLASSES as usize]>,
    /// Classes with a free range.
    filled: ClassMap,
    capacity_granules: u64,
    free_granules: u64,
}

/// One range of the slab, in granules, linked to both neighbours and, while free, into the list of its class.
#[derive(Clone, Copy, Debug)]
struct Node {
    offset: u64,
    len: u64,
    neighbour_before: u32,
    neighbour_after: u32,
    previous: u32,
    next: u32,
    generation: u32,
    state: NodeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeState {
    Vacant,
    Free,
    Used,
}

/// What one request needs, in granules.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// The request itself.
    least: u64,
    /// The whole block: taken where the range has it.
    block: u64,
    align: u64,
}

impl Request {
    fn new(len: u64, align_granules: u64) -> Self {
        let least = granules(len);
        let block = class_granules(class_ceil(least));
        debug_assert!(least > 0 && least <= block && align_granules.is_power_of_two());
        Self {
            least,
            block,
            align: align_granules,
        }
    }

    /// First aligned granule of a range; past its end when there is none.
    fn start_in(&self, node: &Node) -> u64 {
        node.offset.next_multiple_of(self.align)
    }

    fn fits(&self, node: &Node) -> bool {
        self.start_in(node) + self.least <= node.offset + node.len
    }
}

impl OffsetAllocator {
    /// An allocator over `capacity` bytes, rounded down to whole granules.
    pub fn new(capacity: u64) -> Self {
        let capacity_granules = capacity / GRANULE_BYTES;
        let mut allocator = Self {
            nodes: Vec::new(),
            vacant: NONE,
            heads: Box::new([NONE; CLASSES as usize]),
            filled: ClassMap::default(),
            capacity_granules,
            free_granules: capacity_granules,
        };
        if capacity_granules > 0 {
            let all = allocator.take_slot(0, capacity_granules);
            allocator.link_free(all);
        }
        debug_assert_eq!(allocator.largest_free(), allocator.capacity());
        allocator
    }

    /// Takes a range of at least `len` bytes which starts at a multiple of `align`: [`block_len`](crate::block_len) bytes, or
    /// less where the free range ends before that but holds `len` (so that the last range of a slab is not wasted, and a slab
    /// whose length is no size class can be taken whole).
    ///
    /// `None` when `len` is 0 or no range was found. With an alignment of up to one granule, [`Self::largest_free`] is served.
    ///
    /// # Panics
    /// When `align` is not a power of two.
    pub fn allocate(&mut self, len: u64, align: u64) -> Option<Allocation> {
        assert!(align.is_power_of_two(), "alignment {align} is not a power of two");
        if len == 0 || granules(len) > self.free_granules {
            return None;
        }
        // Two cuts take two slots at most; refusing here keeps the cuts themselves free of failure.
        if self.nodes.len() >= NONE as usize - 2 {
            return None;
        }
        // An alignment past the capacity leaves the offset 0, and so does this one, whose sums can't overflow.
        let align = granules(align).min(self.capacity_granules.next_power_of_two());
        let request = Request::new(len, align);
        let node = self.find(request)?;
        Some(self.take(node, request))
    }

    /// Gives a range back and merges it with free neighbours.
    ///
    /// # Errors
    /// [`FreeError::Stale`]; nothing has changed then.
    pub fn free(&mut self, allocation: Allocation) -> Result<(), FreeError> {
        let Some(node) = self.nodes.get_mut(allocation.node as usize) else {
            return Err(FreeError::Stale);
        };
        if node.state != NodeState::Used || node.generation != allocation.generation {
            return Err(FreeError::Stale);
        }
        debug_assert_eq!(
            (node.offset, node.len),
            (allocation.offset / GRANULE_BYTES, allocation.len / GRANULE_BYTES)
        );
        node.generation = node.generation.wrapping_add(1);
        let neighbours = [node.neighbour_before, node.neighbour_after];
        self.free_granules += self.nodes[allocation.node as usize].len;
        for neighbour in neighbours {
            if self.is_free(neighbour) {
                self.absorb(allocation.node, neighbour);
            }
        }
        self.link_free(allocation.node);
        debug_assert!(self.free_granules <= self.capacity_granules);
        Ok(())
    }

    /// All bytes, free or not: whole granules.
    pub fn capacity(&self) -> u64 {
        self.capacity_granules * GRANULE_BYTES
    }

    /// Free bytes, in however many ranges.
    pub fn free_bytes(&self) -> u64 {
        self.free_granules * GRANULE_BYTES
    }

    /// A length, bytes, which [`Self::allocate`] is sure to serve next (alignment up to one granule): the longest free range
    /// among the first few of the highest class.
    pub fn largest_free(&self) -> u64 {
        let Some(class) = self.filled.last() else {
            return 0;
        };
        let longest = self.list(class).take(SCAN_MAX).map(|(_, node)| node.len).max();
        longest.expect("a class in the bitmap has a range") * GRANULE_BYTES
    }

    /// Whether nothing is handed out.
    pub fn is_empty(&self) -> bool {
        self.free_granules == self.capacity_granules
    }

    /// A free range that holds the request.
    fn find(&self, request: Request) -> Option<u32> {
        debug_assert!(request.least > 0);
        // The closest fit. Without an alignment it is always good enough.
        let closest = self
            .filled
            .first_from(class_floor(request.block))
            .map(|class| self.heads[class as usize]);
        if closest.is_some_and(|node| request.fits(&self.nodes[node as usize])) {
            return closest;
        }
        if request.align > 1 {
            // A range this long has an aligned start wherever it lies.
            let class = class_ceil(request.block + request.align - 1);
            if let Some(class) = self.filled.first_from(class) {
                return Some(self.heads[class as usize]);
            }
        }
        self.scan(request)
    }

    /// Looks for a range that is shorter than the whole block but holds the request, or happens to be aligned.
    fn scan(&self, request: Request) -> Option<u32> {
        let mut class = class_floor(request.least);
        while let Some(filled) = self.filled.first_from(class) {
            debug_assert!(
                filled < class_ceil(request.block + request.align - 1),
                "a longer range would have been taken"
            );
            if let Some((found, _)) = self.list(filled).take(SCAN_MAX).find(|(_, node)| request.fits(node)) {
                return Some(found);
            }
            class = filled + 1;
        }
        None
    }

    /// Cuts the request out of a free range: what lies before it and after it stays free.
    fn take(&mut self, index: u32, request: Request) -> Allocation {
        self.unlink_free(index);
        let Node {
            offset,
            len,
            neighbour_before,
            ..
        } = self.nodes[index as usize];
        let start = request.start_in(&self.nodes[index as usize]);
        debug_assert!(start + request.least <= offset + len);
        if start > offset {
            let front = self.take_slot(offset, start - offset);
            self.join(neighbour_before, front);
            self.join(front, index);
            self.link_free(front);
        }
        let rest = offset + len - start;
        let taken = request.block.min(rest);
        if rest > taken {
            let back = self.take_slot(start + taken, rest - taken);
            let neighbour_after = self.nodes[index as usize].neighbour_after;
            self.join(back, neighbour_after);
            self.join(index, back);
            self.link_free(back);
        }
        self.free_granules -= taken;
        let node = &mut self.nodes[index as usize];
        (node.offset, node.len, node.state) = (start, taken, NodeState::Used);
        debug_assert!(taken >= request.least && start.is_multiple_of(request.align));
        Allocation {
            offset: start * GRANULE_BYTES,
            len: taken * GRANULE_BYTES,
            node: index,
            generation: node.generation,
        }
    }

    fn is_free(&self, index: u32) -> bool {
        index != NONE && self.nodes[index as usize].state == NodeState::Free
    }

    /// Lets `index` swallow a free neighbour.
    fn absorb(&mut self, index: u32, other: u32) {
        self.unlink_free(other);
        let swallowed = self.nodes[other as usize];
        let node = &mut self.nodes[index as usize];
        if swallowed.offset < node.offset {
            debug_assert_eq!(swallowed.offset + swallowed.len, node.offset);
            node.offset = swallowed.offset;
            node.len += swallowed.len;
            self.join(swallowed.neighbour_before, index);
        } else {
            debug_assert_eq!(node.offset + node.len, swallowed.offset);
            node.len += swallowed.len;
            self.join(index, swallowed.neighbour_after);
        }
        self.give_slot(other);
    }

    /// Makes two ranges neighbours; either may be the edge of the slab.
    fn join(&mut self, before: u32, after: u32) {
        debug_assert!(before != after || before == NONE);
        if before != NONE {
            self.nodes[before as usize].neighbour_after = after;
        }
        if after != NONE {
            self.nodes[after as usize].neighbour_before = before;
        }
    }

    /// Puts a range into the list of its class. Longer than the head goes first, so that a search of the first few sees long
    /// ranges; equal lengths go first too, so that warm memory is reused.
    fn link_free(&mut self, index: u32) {
        let len = self.nodes[index as usize].len;
        let class = class_floor(len);
        debug_assert!(len > 0 && self.nodes[index as usize].state != NodeState::Free);
        let head = self.heads[class as usize];
        let (previous, next) = if head == NONE || len >= self.nodes[head as usize].len {
            self.heads[class as usize] = index;
            self.filled.insert(class);
            (NONE, head)
        } else {
            (head, self.nodes[head as usize].next)
        };
        let node = &mut self.nodes[index as usize];
        (node.previous, node.next, node.state) = (previous, next, NodeState::Free);
        if previous != NONE {
            self.nodes[previous as usize].next = index;
        }
        if next != NONE {
            self.nodes[next as usize].previous = index;
        }
    }

    /// Takes a range out of the list of its class; the caller gives it another state.
    fn unlink_free(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        debug_assert_eq!(node.state, NodeState::Free);
        node.state = NodeState::Vacant;
        let Node {
            previous, next, len, ..
        } = *node;
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NONE {
            self.nodes[previous as usize].next = next;
            return;
        }
        let class = class_floor(len);
        debug_assert_eq!(self.heads[class as usize], index);
        self.heads[class as usize] = next;
        if next == NONE {
            self.filled.remove(class);
        }
    }

    /// A slot for a range, recycled with its generation where there is one.
    fn take_slot(&mut self, offset: u64, len: u64) -> u32 {
        debug_assert!(len > 0 && offset + len <= self.capacity_granules);
        let fresh = Node {
            offset,
            len,
            neighbour_before: NONE,
            neighbour_after: NONE,
            previous: NONE,
            next: NONE,
            generation: 0,
            state: NodeState::Vacant,
        };
        if self.vacant == NONE {
            let index = u32::try_from(self.nodes.len()).expect("allocate leaves room for two nodes");
            self.nodes.push(fresh);
            return index;
        }
        let index = self.vacant;
        let node = &mut self.nodes[index as usize];
        debug_assert_eq!(node.state, NodeState::Vacant);
        self.vacant = node.next;
        *node = Node {
            generation: node.generation,
            ..fresh
        };
        index
    }

    fn give_slot(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        debug_assert_eq!(node.state, NodeState::Vacant);
        node.next = self.vacant;
        self.vacant = index;
    }

    /// The free ranges of a class, head first.
    fn list(&self, class: u32) -> impl Iterator<Item = (u32, &Node)> {
        let node = |index: u32| self.nodes.get(index as usize).map(|node| (index, node));
        std::iter::successors(node(self.heads[class as usize]), move |(_, previous)| {
            node(previous.next)
        })
    }
}

#[cfg(test)]
mod tests;
