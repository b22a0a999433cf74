//! What has landed becomes the caller's, in the caller's order.

use super::{
    groups::TransferMode,
    job::Job,
    landing::{LandsIn, SharedLanding, index},
    units::{Parts, Slot},
};
use crate::{ReadOutput, ReadValue, stats::Counters};
use std::{collections::HashMap, mem, ops::Range, sync::Arc};
use tensorlease_memory::{Buffer, copy_all, into_buffers, into_whole_buffers};

impl Job {
    /// Every transfer has succeeded: hands the memory over.
    pub(super) fn deliver(mut self) -> ReadOutput {
        let mut output = ReadOutput {
            values: self
                .items
                .items
                .iter()
                .map(|item| ReadValue {
                    kind: item.kind.clone(),
                    buffer: None,
                })
                .collect(),
            batches: (0..self.batch_count).map(|_| None).collect(),
        };
        if self.has_destinations() {
            return output;
        }
        let buffers = self.buffers();
        for (unit, buffer) in self.units.iter().zip(buffers) {
            match (&unit.parts, unit.batch) {
                (Parts::Rows(_), Some(batch)) => output.batches[batch as usize] = Some(buffer),
                (Parts::One(item), _) => output.values[*item as usize].buffer = Some(buffer),
                (Parts::Rows(_), None) => unreachable!("only batches have rows"),
            }
        }
        output
    }

    /// One buffer per unit, in their order.
    fn buffers(&mut self) -> Vec<Buffer> {
        let (mut own, mut own_units) = (
            Vec::with_capacity(self.units.len()),
            Vec::with_capacity(self.units.len()),
        );
        // Each shared landing with what is cut from it, and for which units.
        let mut shared: Vec<(Arc<SharedLanding>, Vec<Range<usize>>)> = Vec::new();
        let mut shared_units: Vec<Vec<usize>> = Vec::new();
        let mut shared_at: HashMap<*const SharedLanding, usize> = HashMap::new();
        for (at, unit) in self.units.iter_mut().enumerate() {
            let Slot { base, lands_in, .. } = unit.slot.take().expect("every unit has landed");
            match lands_in.expect("every unit has its memory back") {
                LandsIn::Own(landing) => {
                    own.push(landing);
                    own_units.push(at);
                }
                LandsIn::Shared(landing) => {
                    let known = *shared_at.entry(Arc::as_ptr(&landing)).or_insert(shared.len());
                    if known == shared.len() {
                        shared.push((landing, Vec::new()));
                        shared_units.push(Vec::new());
                    }
                    shared[known].1.push(index(base)..index(base + unit.len));
                    shared_units[known].push(at);
                }
                LandsIn::Gone => unreachable!("quarantined memory is read again elsewhere before delivery"),
            }
        }
        let last_owner = |(landing, cuts)| (SharedLanding::into_landing(landing), cuts);
        let cut = into_buffers(shared.into_iter().map(last_owner).collect());
        let cut = shared_units.into_iter().flatten().zip(cut.into_iter().flatten());
        let mut buffers: Vec<Option<Buffer>> = (0..self.units.len()).map(|_| None).collect();
        for (unit, buffer) in own_units.into_iter().zip(into_whole_buffers(own)).chain(cut) {
            buffers[unit] = Some(buffer);
        }
        let each = buffers.into_iter();
        each.map(|buffer| buffer.expect("one buffer per unit")).collect()
    }

    /// A key that is asked for twice was fetched once, and is delivered twice.
    pub(super) fn copy_duplicates(&mut self) {
        let Some(first_use) = mem::take(&mut self.first_use) else {
            return;
        };
        let mut found: HashMap<u32, (usize, u64)> = HashMap::new();
        let mut copies = Vec::new();
        for (unit, state) in self.units.iter().enumerate() {
            for (item, offset) in state.each_part() {
                found.insert(item, (unit, offset));
                let first = first_use[item as usize];
                if first != item {
                    copies.push((first, item));
                }
            }
        }
        let landed = |item: &u32| {
            let (unit, offset) = found[item];
            let slot = self.units[unit].slot.as_ref().expect("every unit has landed");
            (
                slot.lands_in.as_ref().expect("every unit has its memory back"),
                slot.base + offset,
            )
        };
        let pairs: Vec<_> = copies
            .iter()
            .map(|(from, to)| {
                let len = self.items.items[*from as usize].len;
                let ((source, from), (target, to)) = (landed(from), landed(to));
                (source.source(from, len), target.target(to, len))
            })
            .collect();
        copy_all(&pairs);
    }

    /// Counts what is delivered.
    pub(super) fn count(&self, counters: &Counters) {
        let (mut leased, mut copied, mut registered, mut bytes) = (0, 0, 0, 0);
        for unit in &self.units {
            let keys = unit.each_part().count() as u64;
            bytes += unit.len;
            match unit.slot.as_ref() {
                Some(slot) if slot.leased => leased += keys,
                Some(slot) if slot.mode == TransferMode::Registered => registered += keys,
                _ => copied += keys,
            }
        }
        counters.leased_reads.add(leased);
        counters.copied_reads.add(copied);
        counters.registered_reads.add(registered);
        counters.read_bytes.add(bytes);
        counters.read_keys.add(self.items.len() as u64);
    }
}
