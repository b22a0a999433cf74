//! Blocks that are reserved ahead, so that a small put is one round trip.
use crate::wire::Position;
use tensorlease_arena::block_len;

/// Objects up to this size are written into blocks that were reserved ahead.
const AHEAD_BYTES_MAX: u64 = 64 << 10;
/// Most blocks reserved ahead. A client holds little of the arena without using it.
const AHEAD_BLOCKS_MAX: usize = 8;

/// A block that is this client's to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reserved {
    pub(super) ticket: u64,
    pub(super) position: Position,
}

/// Blocks of the sizes that were written last. Most small values are followed by more of the same size.
#[derive(Debug, Default)]
pub(super) struct Window {
    ahead: Vec<Reserved>,
}

impl Window {
    /// Blocks for all of `lens`, or none of them.
    pub(super) fn take(&mut self, lens: &[u64]) -> Option<Vec<Reserved>> {
        if lens.len() > self.ahead.len() {
            return None;
        }
        let mut taken = Vec::with_capacity(lens.len());
        for len in lens {
            let Some(at) = self.ahead.iter().position(|block| fits(block, *len)) else {
                self.ahead.append(&mut taken);
                return None;
            };
            taken.push(self.ahead.swap_remove(at));
        }
        Some(taken)
    }

    /// What to reserve ahead with the answer to a write of `lens`.
    pub(super) fn wanted(&self, lens: &[u64]) -> Vec<u64> {
        let small = lens.len() <= AHEAD_BLOCKS_MAX && lens.iter().all(|len| *len <= AHEAD_BYTES_MAX);
        if small { lens.to_vec() } else { Vec::new() }
    }

    /// All of them, to be given back.
    pub(super) fn drain(&mut self) -> Vec<Reserved> {
        std::mem::take(&mut self.ahead)
    }

    /// Adds blocks. Returns the oldest, where there are too many now. They are to be given back.
    pub(super) fn put(&mut self, blocks: impl IntoIterator<Item = Reserved>) -> Vec<Reserved> {
        self.ahead.extend(blocks);
        let surplus = self.ahead.len().saturating_sub(AHEAD_BLOCKS_MAX);
        self.ahead.drain(..surplus).collect()
    }
}

/// A block must be of the same size class. A larger one would waste memory for as long as the object lives.
fn fits(block: &Reserved, len: u64) -> bool {
    block_len(len) == Some(block.position.len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(ticket: u64, len: u64) -> Reserved {
        let position = Position {
            slab: 0,
            offset: ticket << 20,
            len,
            generation: 0,
        };
        Reserved { ticket, position }
    }

    #[test]
    fn a_block_is_used_for_its_own_size_class_only() {
        let mut window = Window::default();
        assert!(window.put([block(1, 1024), block(2, 4096)]).is_empty());
        assert_eq!(window.take(&[100]), None);
        assert_eq!(window.take(&[1000, 1000]), None, "all of them or none");
        let taken = window.take(&[4000, 1000]).unwrap();
        assert_eq!(taken.iter().map(|block| block.ticket).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(window.take(&[1000]), None, "a block is taken once");
    }

    #[test]
    fn what_is_too_many_is_given_back_oldest_first() {
        let mut window = Window::default();
        let blocks = (0..AHEAD_BLOCKS_MAX as u64 + 2).map(|ticket| block(ticket, 64));
        let surplus = window.put(blocks);
        assert_eq!(surplus.iter().map(|block| block.ticket).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn large_or_many_objects_reserve_nothing_ahead() {
        let window = Window::default();
        assert_eq!(window.wanted(&[1000, 2000]), [1000, 2000]);
        assert!(window.wanted(&[AHEAD_BYTES_MAX + 1]).is_empty());
        assert!(window.wanted(&[1; AHEAD_BLOCKS_MAX + 1]).is_empty());
    }
}
