//! Objects that one transfer does not take whole: where they are cut, and whether one was replaced between its parts.

use super::Job;
use crate::{
    KeyFailure, ReadError,
    patience::Wait,
    read::{
        describe,
        ground::{Ground, SharedLanding},
        groups::{How, Transfer},
    },
};
use std::{ops::Range, sync::Arc};
use tensorlease_arena::plan::split_ranges;
use tensorlease_engine::{Fault, FaultKind, ObjectInfo};
use tensorlease_memory::Landing;

/// A smaller transfer that took too long is not read faster in halves.
pub(super) const SPLIT_BYTES_MIN: u64 = 8 << 20;

impl Job<'_> {
    /// Ranges of an object of `len` bytes that lands at `offset`; `None` where one transfer takes it whole.
    pub(super) fn cuts(&self, how: How, landing: &Landing, offset: u64, len: u64) -> Option<Vec<Range<u64>>> {
        if how == How::Staged {
            let round = self.core.staged_bytes_max();
            return (round < len).then(|| split_ranges(len, round));
        }
        let start = match landing {
            Landing::Block(block) => block.block().offset + offset,
            // The caller's memory in the arena is registered with its slab, all other on its own.
            Landing::Foreign(foreign) if how == How::Direct => {
                let slab = self.core.slab_of(foreign.region());
                slab.map_or(0, |slab| (foreign.addr() - slab.addr) as u64) + offset
            }
            _ => offset,
        };
        // Invariant 1: no transfer crosses from one registration into the next. A slab larger than one has several.
        let piece = self.core.registration_piece_bytes();
        let most = self.core.capabilities.batch_bytes_max;
        if len <= most && start / piece == (start + len - 1) / piece {
            return None;
        }
        let pieces = cuts_at_multiples(start, len, piece);
        let split = |piece: Range<u64>| {
            let ranges = split_ranges(piece.end - piece.start, most);
            ranges
                .into_iter()
                .map(move |range| piece.start + range.start..piece.start + range.end)
        };
        Some(pieces.into_iter().flat_map(split).collect())
    }

    /// Asks for the versions of objects that are about to be fetched in ranges, where the engine describes them: calls of their own can't see that the
    /// object was another one in between.
    pub(in crate::read) fn note_versions(&mut self, wait: &Wait<'_>) -> Result<(), ReadError> {
        let unknown: Vec<u32> = self
            .cut
            .iter()
            .filter(|(_, version)| version.is_none())
            .map(|(item, _)| *item)
            .collect();
        for (item, version) in unknown.iter().zip(self.versions(&unknown, wait)?) {
            self.cut.insert(*item, version);
        }
        Ok(())
    }

    /// The keys whose object is not the one that it was before its first range.
    pub(in crate::read) fn replaced(&self, wait: &Wait<'_>) -> Result<Vec<KeyFailure>, ReadError> {
        let items: Vec<u32> = self.cut.keys().copied().collect();
        let now = self.versions(&items, wait)?;
        let changed = items
            .into_iter()
            .zip(now)
            .filter(|(item, version)| self.cut[item] != *version);
        let failure = |(item, _): (u32, Option<u64>)| {
            let message = "was replaced while it was read in ranges; read it again, or raise bounce_bytes";
            KeyFailure::new(
                self.items.name(item as usize),
                Fault::new(FaultKind::Transient, 0, message),
            )
        };
        Ok(changed.map(failure).collect())
    }

    fn versions(&self, items: &[u32], wait: &Wait<'_>) -> Result<Vec<Option<u64>>, ReadError> {
        let stands_still = self.items.held.is_some() || !self.core.capabilities.describes;
        if items.is_empty() || stands_still {
            return Ok(vec![Some(0); items.len()]);
        }
        let keys = items
            .iter()
            .map(|item| self.items.keys[*item as usize].clone())
            .collect();
        // A missing key shows in its transfer; here it is one more version.
        let version =
            |info: Result<Option<ObjectInfo>, Fault>| Some(info.ok().flatten().map_or(0, |info| info.version));
        Ok(describe::infos(self.core, keys, wait)?
            .into_iter()
            .map(version)
            .collect())
    }

    /// The transfer took too long as a whole: its halves may do, one call each.
    pub(super) fn split(&mut self, how: How, transfer: Transfer) {
        let shared = match transfer.ground {
            Ground::Own(landing) => SharedLanding::new(self.core, landing),
            Ground::Shared(shared) => shared,
            Ground::Gone => unreachable!("what expired is not quarantined"),
        };
        self.cut.entry(transfer.item).or_default();
        for half in split_ranges(transfer.len, transfer.len.div_ceil(2)) {
            let part = Transfer {
                item: transfer.item,
                unit: transfer.unit,
                ground: Ground::Shared(Arc::clone(&shared)),
                ground_offset: transfer.ground_offset + half.start,
                object_offset: transfer.object_offset + half.start,
                len: half.end - half.start,
            };
            self.push_ready(how, part);
        }
        if let Some(place) = &mut self.units[transfer.unit as usize].place {
            place.ground = Some(Ground::Shared(shared));
        }
    }
}

/// Cuts `len` bytes from `start` on where a multiple of `piece` begins; ranges relative to `start`.
pub(crate) fn cuts_at_multiples(start: u64, len: u64, piece: u64) -> Vec<Range<u64>> {
    let mut cuts = Vec::new();
    let mut from = 0;
    while from < len {
        let to = len.min(from + piece - (start + from) % piece);
        cuts.push(from..to);
        from = to;
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_transfer_crosses_two_registrations() {
        let whole = |len| std::iter::once(0..len).collect();
        for (start, len, expected) in [
            (0, 10, whole(10)),
            (95, 10, vec![0..5, 5..10]),
            (100, 100, whole(100)),
            (150, 200, vec![0..50, 50..150, 150..200]),
        ] {
            assert_eq!(cuts_at_multiples(start, len, 100), expected);
        }
    }
}
