//! Objects that one transfer does not take whole: where they are cut, and whether one was replaced between its parts.

use super::Job;
use crate::{
    KeyFailure,
    held::cuts_at_multiples,
    read::{
        groups::{Transfer, TransferMode},
        landing::LandsIn,
    },
};
use std::{ops::Range, sync::Arc};
use tensorlease_arena::plan::split_ranges;
use tensorlease_engine::{Fault, FaultKind};

impl Job {
    /// Ranges of an object of `len` bytes that lands `start` bytes after the beginning of a registration; `None` where one transfer takes it whole.
    pub(super) fn cuts(&self, mode: TransferMode, start: u64, len: u64) -> Option<Vec<Range<u64>>> {
        if mode == TransferMode::Staged {
            let most = self.terms.staged_bytes_max;
            return (most < len).then(|| split_ranges(len, most));
        }
        // Invariant 1: no transfer crosses from one registration into the next. A slab larger than one has several.
        let (piece, most) = (self.terms.piece_bytes, self.terms.call.bytes_max);
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

    /// Makes a transfer in several parts, of at most the bytes that `most` says for its length.
    pub(crate) fn push_cut(&mut self, mode: TransferMode, transfer: Transfer, most: impl Fn(u64) -> u64) {
        let Transfer {
            item,
            unit,
            lands_in,
            landing_offset,
            object_offset,
            len,
        } = transfer;
        let shared = lands_in.shared(&self.quarantine);
        self.cut.entry(item).or_default();
        for range in split_ranges(len, most(len)) {
            let part = Transfer {
                item,
                unit,
                lands_in: LandsIn::Shared(Arc::clone(&shared)),
                landing_offset: landing_offset + range.start,
                object_offset: object_offset + range.start,
                len: range.end - range.start,
            };
            self.push_ready(mode, part);
        }
        if let Some(slot) = &mut self.units[unit as usize].slot {
            slot.lands_in = Some(LandsIn::Shared(shared));
        }
    }

    /// Items that are about to be fetched in ranges, whose version is not known: calls of their own can't see that the object was another one in
    /// between.
    pub(in crate::read) fn unversioned(&self) -> Vec<u32> {
        let unknown = self.cut.iter().filter(|(_, version)| version.is_none());
        unknown.map(|(item, _)| *item).collect()
    }

    /// Notes the versions of the objects that are there before their first range.
    pub(in crate::read) fn note_versions(&mut self, versions: impl Iterator<Item = (u32, u64)>) {
        self.cut.extend(versions.map(|(item, version)| (item, Some(version))));
    }

    /// Items that were fetched in ranges.
    pub(in crate::read) fn fetched_in_ranges(&self) -> Vec<u32> {
        self.cut.keys().copied().collect()
    }

    /// The keys whose object is not the one that it was before its first range. `now`: the versions that are there after the last one.
    pub(in crate::read) fn replaced(&self, now: impl Iterator<Item = (u32, u64)>) -> Vec<KeyFailure> {
        let changed = now.filter(|(item, version)| self.cut[item] != Some(*version));
        let failure = |(item, _)| {
            let message = "was replaced while it was read in ranges; read it again, or raise bounce_bytes";
            self.failure(item, Fault::new(FaultKind::Transient, 0, message))
        };
        changed.map(failure).collect()
    }
}
