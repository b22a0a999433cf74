//! Transfers, and how they are cut into engine calls.

use super::{items::Items, landing::Ground};
use crate::{calls, parts::Core};
use std::{ops::Range, sync::Arc};
use tensorlease_arena::plan::{GroupLimits, cut_groups};
use tensorlease_engine::LoanLimits;

/// Groups per reader: enough that readers which finish early find more.
const GROUPS_PER_READER: u64 = 4;
/// A bounce block of a local engine stays in the cache between the transfer and the copy.
const BOUNCE_BYTES_CACHED: u64 = 4 << 20;

/// How a group's bytes get to where they land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The engine writes the ground itself.
    Direct,
    /// The engine writes a bounce block, or what it lends, which is copied out.
    Staged,
    /// The ground is registered for this one call.
    Registered,
    /// Staged in a bounce block because the engine lent nothing.
    Bounced,
}

/// One object, or a range of it, and where it lands.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) item: u32,
    pub(super) unit: u32,
    pub(super) ground: Ground,
    pub(super) ground_offset: u64,
    pub(super) object_offset: u64,
    pub(super) len: u64,
}

/// The transfers of one engine call.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) how: How,
    pub(super) transfers: Vec<Transfer>,
    pub(super) items: Arc<Items>,
    /// What is registered in one piece is read in this many calls.
    pub(super) divisor: u64,
}

/// Cuts transfers, in order, into groups. `divisor` halves groups after the engine had no handle for larger ones.
pub(super) fn cut(core: &Core, items: &Arc<Items>, how: How, transfers: Vec<Transfer>, divisor: u64) -> Vec<Group> {
    if how == How::Registered {
        return by_landing(items, transfers, divisor);
    }
    if let (How::Staged, Some(staging)) = (how, core.lends()) {
        return by_loan(items, transfers, staging.limits(), divisor);
    }
    let lens: Vec<u64> = transfers.iter().map(|transfer| transfer.len).collect();
    let limits = limits(core, how, &lens, divisor);
    let mut transfers = transfers.into_iter();
    let lens = group_lens(&cut_groups(&lens, limits), transfers.as_slice());
    let group = |len| Group {
        how,
        transfers: transfers.by_ref().take(len).collect(),
        items: Arc::clone(items),
        divisor: 1,
    };
    lens.into_iter().map(group).collect()
}

/// One group per loan: batches of so many keys, each cut by the share, as the reference counts them (requirement A3).
fn by_loan(items: &Arc<Items>, transfers: Vec<Transfer>, limits: LoanLimits, divisor: u64) -> Vec<Group> {
    let bytes_max = (limits.bytes_max / divisor).max(1);
    let keys_max = (limits.keys_max / usize::try_from(divisor).unwrap_or(usize::MAX)).max(1);
    let mut lens = Vec::new();
    for batch in transfers.chunks(limits.keys_max) {
        let sizes: Vec<u64> = batch.iter().map(|transfer| transfer.len).collect();
        lens.extend(group_lens(
            &cut_groups(&sizes, GroupLimits { keys_max, bytes_max }),
            batch,
        ));
    }
    let mut transfers = transfers.into_iter();
    let group = |len| Group {
        how: How::Staged,
        transfers: transfers.by_ref().take(len).collect(),
        items: Arc::clone(items),
        divisor: 1,
    };
    lens.into_iter().map(group).collect()
}

/// How many transfers each group has: no call may name a key twice, as ranges of one object do. What is tried again comes in any order.
pub(super) fn group_lens(ranges: &[Range<usize>], transfers: &[Transfer]) -> Vec<usize> {
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

fn limits(core: &Core, how: How, lens: &[u64], divisor: u64) -> GroupLimits {
    let total: u64 = lens.iter().sum();
    let readers = core.readers.count() as u64;
    let bytes = match how {
        How::Staged | How::Bounced => core.bounce_round_bytes(),
        How::Direct | How::Registered => (total / (readers * GROUPS_PER_READER)).max(calls::bytes_min(
            core.capabilities.large_read_bytes_min,
            lens.len(),
            total,
        )),
    };
    let keys = core.capabilities.batch_keys_max as u64;
    GroupLimits {
        keys_max: usize::try_from((keys / divisor).max(1)).unwrap_or(usize::MAX),
        bytes_max: (bytes.min(core.capabilities.batch_bytes_max) / divisor).max(1),
    }
}

/// What one engine call takes.
pub(super) fn call_limits(core: &Core) -> GroupLimits {
    GroupLimits {
        keys_max: core.capabilities.batch_keys_max.max(1),
        bytes_max: core.capabilities.batch_bytes_max.max(1),
    }
}

/// One group per landing, so that each is registered once. Landings are made to fit one engine call, where the units do.
fn by_landing(items: &Arc<Items>, transfers: Vec<Transfer>, divisor: u64) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for transfer in transfers {
        let same = groups
            .last()
            .is_some_and(|group| group.transfers[0].ground.same(&transfer.ground));
        match groups.last_mut().filter(|_| same) {
            Some(group) => group.transfers.push(transfer),
            None => {
                groups.push(Group {
                    how: How::Registered,
                    transfers: vec![transfer],
                    items: Arc::clone(items),
                    divisor,
                });
            }
        }
    }
    groups
}

impl Core {
    /// Most bytes that a staged read moves in one call.
    pub(crate) fn staged_bytes_max(&self) -> u64 {
        match self.lends() {
            Some(staging) => staging.limits().bytes_max,
            None => self.bounce_round_bytes(),
        }
    }

    /// Most bytes of one round through the bounce reserve: what one reader may hold of it at a time, as a whole block.
    pub(crate) fn bounce_round_bytes(&self) -> u64 {
        let readers = u32::try_from(self.readers.count()).unwrap_or(u32::MAX);
        let share = self.arena.budget().share_bytes(readers);
        let share = if self.capabilities.prompt {
            share.min(BOUNCE_BYTES_CACHED)
        } else {
            share
        };
        // A request takes a whole block of its size class, which may be an eighth larger than the request.
        if tensorlease_arena::block_len(share).is_some_and(|block| block <= share) {
            share
        } else {
            share - share / 8
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges_of(parts: &[(u32, u64)]) -> Vec<Transfer> {
        let transfer = |(item, object_offset): &(u32, u64)| Transfer {
            item: *item,
            unit: *item,
            ground: Ground::Gone,
            ground_offset: 0,
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
