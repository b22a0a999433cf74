//! Transfers, and how they are cut into engine calls.

use super::{items::Items, landing::LandsIn};
use crate::{calls, terms::Terms};
use std::{ops::Range, sync::Arc};
use tensorlease_arena::plan::{GroupLimits, cut_groups};

/// Groups per worker: enough that workers which finish early find more.
const GROUPS_PER_WORKER: u64 = 4;

/// How a transfer's bytes get to where they land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferMode {
    /// The engine writes the landing itself.
    Direct,
    /// The engine writes a staging block, which is copied out.
    Staged,
    /// The landing is registered for this one call.
    Registered,
}

/// One object, or a range of it, and where it lands.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(super) item: u32,
    pub(crate) unit: u32,
    pub(crate) lands_in: LandsIn,
    pub(super) landing_offset: u64,
    pub(super) object_offset: u64,
    pub(crate) len: u64,
}

/// The transfers of one engine call.
#[derive(Debug)]
pub(crate) struct Group {
    pub(super) mode: TransferMode,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) items: Arc<Items>,
    /// What is registered in one piece is read in this many calls.
    pub(super) divisor: u64,
}

/// Cuts transfers, in order, into groups. `divisor` halves groups after the engine had no handle for larger ones.
pub(super) fn cut(
    terms: &Terms,
    items: &Arc<Items>,
    mode: TransferMode,
    transfers: Vec<Transfer>,
    divisor: u64,
) -> Vec<Group> {
    if mode == TransferMode::Registered {
        return by_landing(items, transfers, divisor);
    }
    let lens: Vec<u64> = transfers.iter().map(|transfer| transfer.len).collect();
    let limits = limits(terms, mode, &lens, divisor);
    let lens = group_lens(&cut_groups(&lens, limits), &transfers);
    grouped(items, mode, transfers, lens)
}

/// Groups of so many transfers each.
pub(crate) fn grouped(
    items: &Arc<Items>,
    mode: TransferMode,
    transfers: Vec<Transfer>,
    lens: Vec<usize>,
) -> Vec<Group> {
    let mut transfers = transfers.into_iter();
    let group = |len| Group {
        mode,
        transfers: transfers.by_ref().take(len).collect(),
        items: Arc::clone(items),
        divisor: 1,
    };
    lens.into_iter().map(group).collect()
}

/// How many transfers each group has: no call may name a key twice, as ranges of one object do. What is tried again comes in any order.
pub(crate) fn group_lens(ranges: &[Range<usize>], transfers: &[Transfer]) -> Vec<usize> {
    let mut lens = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut start = range.start;
        let mut parted = false;
        for at in range.clone() {
            // Of two ranges of one object at least one does not begin where the object does; a call has few such.
            parted |= 0 < transfers[at].object_offset;
            let same_key = |earlier: &Transfer| earlier.item == transfers[at].item;
            if parted && transfers[start..at].iter().any(same_key) {
                lens.push(at - start);
                start = at;
                parted = 0 < transfers[at].object_offset;
            }
        }
        lens.push(range.end - start);
    }
    lens
}

fn limits(terms: &Terms, mode: TransferMode, lens: &[u64], divisor: u64) -> GroupLimits {
    let total: u64 = lens.iter().sum();
    let bytes = match mode {
        TransferMode::Staged => terms.round_bytes,
        TransferMode::Direct | TransferMode::Registered => {
            let least = calls::bytes_min(terms.large_read_bytes_min, lens.len(), total);
            (total / (terms.workers as u64 * GROUPS_PER_WORKER)).max(least)
        }
    };
    let keys = terms.call.keys_max as u64;
    GroupLimits {
        keys_max: usize::try_from((keys / divisor).max(1)).unwrap_or(usize::MAX),
        bytes_max: (bytes.min(terms.call.bytes_max) / divisor).max(1),
    }
}

/// One group per landing, so that each is registered once. Landings are made to fit one engine call, where the units do.
fn by_landing(items: &Arc<Items>, transfers: Vec<Transfer>, divisor: u64) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for transfer in transfers {
        let same = groups
            .last()
            .is_some_and(|group| group.transfers[0].lands_in.same(&transfer.lands_in));
        match groups.last_mut().filter(|_| same) {
            Some(group) => group.transfers.push(transfer),
            None => {
                groups.push(Group {
                    mode: TransferMode::Registered,
                    transfers: vec![transfer],
                    items: Arc::clone(items),
                    divisor,
                });
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges_of(parts: &[(u32, u64)]) -> Vec<Transfer> {
        let transfer = |(item, object_offset): &(u32, u64)| Transfer {
            item: *item,
            unit: *item,
            lands_in: LandsIn::Gone,
            landing_offset: 0,
            object_offset: *object_offset,
            len: 1,
        };
        parts.iter().map(transfer).collect()
    }

    #[test]
    fn no_group_names_a_key_twice_in_whatever_order_its_ranges_come() {
        let lens = |parts: &[(u32, u64)]| group_lens(std::slice::from_ref(&(0..parts.len())), &ranges_of(parts));
        assert_eq!(lens(&[(0, 0), (1, 0), (2, 0)]), [3]);
        assert_eq!(lens(&[(0, 0), (1, 0), (1, 1), (2, 0)]), [2, 2]);
        assert_eq!(lens(&[(1, 0), (0, 0), (1, 1), (2, 0)]), [2, 2]);
        assert_eq!(lens(&[(1, 1), (0, 0), (1, 0), (0, 1), (1, 2)]), [2, 2, 1]);
        let two_groups = group_lens(&[0..2, 2..4], &ranges_of(&[(1, 0), (0, 0), (1, 1), (2, 0)]));
        assert_eq!(two_groups, [2, 2]);
    }
}
