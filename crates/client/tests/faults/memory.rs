//! Memory of the caller that a program looks at while the store uses it.

use crate::{random::Random, value::Value};
use std::{ops::Range, sync::Arc};
use tensorlease::CallerMemory;

/// Bytes before and behind the caller's memory that no transfer may touch.
const GUARD_BYTES: usize = 96;
const GUARD: u8 = 0xa5;
/// What a destination holds before its read: no value is full of it.
const UNTOUCHED: u8 = 0x5c;

/// Part of memory, to give away; `guard` is dropped with it.
#[allow(unsafe_code)]
pub(crate) fn part(memory: &Arc<CallerMemory>, range: Range<usize>, guard: Box<dyn Send + Sync>) -> CallerMemory {
    let base = memory.source(range.clone()).addr() as *mut u8;
    // SAFETY: the owner that goes along keeps the memory valid, and a campaign reads it through raw sources only.
    unsafe { CallerMemory::new(base, range.len(), Box::new((guard, Arc::clone(memory)))) }
}

/// Memory between two guards, at an odd address as often as not.
#[derive(Debug)]
pub(crate) struct Guarded {
    memory: Arc<CallerMemory>,
    inside: Range<usize>,
}

impl Guarded {
    /// Memory of `len` bytes to read into.
    pub(crate) fn untouched(len: usize, random: &mut Random) -> Self {
        Self::holding(&vec![UNTOUCHED; len], random)
    }

    /// Memory that holds `bytes`, to write from.
    pub(crate) fn holding(bytes: &[u8], random: &mut Random) -> Self {
        let start = GUARD_BYTES + random.index(64);
        let mut all = vec![GUARD; start + bytes.len() + GUARD_BYTES];
        all[start..start + bytes.len()].copy_from_slice(bytes);
        Self {
            memory: Arc::new(CallerMemory::from_vec(all)),
            inside: start..start + bytes.len(),
        }
    }

    /// The memory, for a request. `self` keeps its sight of it.
    pub(crate) fn give(&self) -> CallerMemory {
        part(&self.memory, self.inside.clone(), Box::new(()))
    }

    /// A part of it, from 0 on.
    pub(crate) fn give_part(&self, range: Range<usize>) -> CallerMemory {
        let (start, end) = (self.inside.start + range.start, self.inside.start + range.end);
        part(&self.memory, start..end, Box::new(()))
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.memory.source(self.inside.clone()).to_vec()
    }

    /// Is every byte what it was before a read, or what one of these values has there?
    pub(crate) fn is_untouched_or(&self, values: &[Value]) -> bool {
        let explained = |at: usize, byte: u8| byte == UNTOUCHED || values.iter().any(|value| value.bytes[at] == byte);
        self.bytes().iter().enumerate().all(|(at, byte)| explained(at, *byte))
    }

    pub(crate) fn guards_are_whole(&self) -> bool {
        let outside = [0..self.inside.start, self.inside.end..self.memory.len()];
        let whole = |range: Range<usize>| self.memory.source(range).to_vec().iter().all(|byte| *byte == GUARD);
        outside.into_iter().all(whole)
    }

    /// Does anybody else still hold a part of it?
    pub(crate) fn is_held(&self) -> bool {
        1 < Arc::strong_count(&self.memory)
    }
}
