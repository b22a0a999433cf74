//! What a read delivers, laid out: each value alone, or the rows of a batch back to back.

use super::{groups::TransferMode, items::Items, landing::LandsIn};
use std::ops::Range;

/// What lands in one piece of memory.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(super) parts: Parts,
    /// Bytes.
    pub(crate) len: u64,
    pub(super) batch: Option<u32>,
    pub(super) slot: Option<Slot>,
}

/// The items of a unit.
#[derive(Debug)]
pub(super) enum Parts {
    One(u32),
    /// Item and its offset in the unit, bytes.
    Rows(Vec<(u32, u64)>),
}

/// Where a unit lies in its landing.
#[derive(Debug)]
pub(super) struct Slot {
    /// Offset of the unit in its landing, bytes.
    pub(super) base: u64,
    /// In the arena, owned by the value.
    pub(super) leased: bool,
    pub(super) mode: TransferMode,
    /// `None` while the one transfer that writes it has it.
    pub(super) lands_in: Option<LandsIn>,
}

impl Unit {
    fn new(parts: Parts, len: u64, batch: Option<u32>) -> Self {
        Self {
            parts,
            len,
            batch,
            slot: None,
        }
    }

    fn rows(&self) -> &[(u32, u64)] {
        match &self.parts {
            Parts::One(_) => &[],
            Parts::Rows(rows) => rows,
        }
    }

    /// Items and their offsets.
    pub(crate) fn each_part(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let one = match &self.parts {
            Parts::One(item) => Some((*item, 0)),
            Parts::Rows(_) => None,
        };
        one.into_iter().chain(self.rows().iter().copied())
    }

    pub(super) fn first_item(&self) -> u32 {
        match &self.parts {
            Parts::One(item) => *item,
            Parts::Rows(rows) => rows[0].0,
        }
    }
}

/// The units of a read, in the order of its items. Values and batches of zero bytes have none.
pub(super) fn lay_out(items: &Items, batches: &[Range<usize>]) -> Vec<Unit> {
    let mut units = Vec::with_capacity(items.len());
    let mut next = 0;
    let position = |index: usize| u32::try_from(index).expect("fewer than 2^31 keys, checked when folding");
    let single = |units: &mut Vec<Unit>, item: usize| {
        let len = items.items[item].len;
        if 0 < len {
            units.push(Unit::new(Parts::One(position(item)), len, None));
        }
    };
    for (batch, range) in batches.iter().enumerate() {
        (next..range.start).for_each(|item| single(&mut units, item));
        next = range.end;
        let mut rows = Vec::with_capacity(range.len());
        let mut len = 0;
        for item in range.clone().filter(|item| 0 < items.items[*item].len) {
            rows.push((position(item), len));
            len += items.items[item].len;
        }
        if 0 < len {
            units.push(Unit::new(Parts::Rows(rows), len, Some(position(batch))));
        }
    }
    (next..items.len()).for_each(|item| single(&mut units, item));
    units
}
