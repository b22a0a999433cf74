//! What a program holds: values that it read, memory that it lent to the store, and where all of it lies.

use crate::memory::Guarded;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};
use tensorlease::{Buffer, View};
use tensorlease_memory::Region;

/// A value that was read and not dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) buffer: Arc<Buffer>,
    /// What it holds, as it was handed out or as its owner changed it.
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) what: String,
}

impl Kept {
    pub(crate) fn is_as_it_was(&self) -> bool {
        self.buffer.as_slice() == self.bytes.as_slice()
    }
}

/// A value that was read in place and not dropped.
#[derive(Debug)]
pub(crate) struct KeptView {
    pub(crate) view: View,
    pub(crate) bytes: Vec<u8>,
    pub(crate) what: String,
}

/// Memory of the caller that a read was to fill.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) memory: Guarded,
    /// What was there when the call returned; `None` where that may still change.
    pub(crate) settled: Option<Vec<u8>>,
    pub(crate) what: String,
}

impl Destination {
    pub(crate) fn complaint(&self) -> Option<String> {
        if !self.memory.guards_are_whole() {
            return Some(format!("memory beside the destination of {} was written", self.what));
        }
        let changed = self
            .settled
            .as_ref()
            .is_some_and(|settled| *settled != self.memory.bytes());
        changed.then(|| format!("the destination of {} changed after its read had ended", self.what))
    }
}

/// Everything that is held, for all threads of a program.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    kept: Mutex<Vec<Kept>>,
    views: Mutex<Vec<KeptView>>,
    destinations: Mutex<Vec<Destination>>,
    sources: Mutex<Vec<Guarded>>,
    /// Buffers that a put was given, which the store must let go of in the end.
    given: Mutex<Vec<Weak<Buffer>>>,
    /// Where live buffers lie: first address and length.
    live: Mutex<BTreeMap<usize, usize>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Holdings {
    /// A buffer was handed out: it must overlap no other one.
    pub(crate) fn admit(&self, region: Region) -> Result<(), String> {
        let mut live = lock(&self.live);
        let before = live.range(..region.addr + region.len).next_back();
        if let Some((addr, len)) = before.filter(|(addr, len)| region.addr < **addr + **len) {
            return Err(format!(
                "{region:?} is handed out and overlaps {len} bytes at {addr:#x}, which somebody holds"
            ));
        }
        live.insert(region.addr, region.len);
        Ok(())
    }

    /// Its owner lets go of a buffer. Called before the drop, so that its memory may be handed out at once.
    pub(crate) fn dismiss(&self, region: Region) {
        lock(&self.live).remove(&region.addr);
    }

    pub(crate) fn keep(&self, kept: Kept) {
        lock(&self.kept).push(kept);
    }

    /// Takes one out, chosen by a random number.
    pub(crate) fn take(&self, number: u64) -> Option<Kept> {
        let mut kept = lock(&self.kept);
        let len = kept.len() as u64;
        if len == 0 {
            return None;
        }
        let at = usize::try_from(number % len).expect("a place in a list");
        Some(kept.swap_remove(at))
    }

    pub(crate) fn drop_kept(&self, kept: Kept) {
        self.dismiss(kept.buffer.region());
        drop(kept);
    }

    pub(crate) fn keep_view(&self, kept: KeptView) {
        lock(&self.views).push(kept);
    }

    /// Drops one view, chosen by a random number.
    pub(crate) fn drop_view(&self, number: u64) {
        let mut views = lock(&self.views);
        let len = views.len() as u64;
        let at = usize::try_from(number.checked_rem(len).unwrap_or(0)).expect("a place in a list");
        let dropped = (at < views.len()).then(|| views.swap_remove(at));
        drop(views);
        drop(dropped);
    }

    pub(crate) fn drop_all(&self) {
        drop(std::mem::take(&mut *lock(&self.views)));
        for kept in std::mem::take(&mut *lock(&self.kept)) {
            self.drop_kept(kept);
        }
    }

    pub(crate) fn add_destination(&self, destination: Destination) {
        lock(&self.destinations).push(destination);
    }

    pub(crate) fn add_source(&self, source: Guarded) {
        lock(&self.sources).push(source);
    }

    pub(crate) fn note_given(&self, buffer: &Arc<Buffer>) {
        lock(&self.given).push(Arc::downgrade(buffer));
    }

    /// What is not as it should be, and how many bytes were looked at.
    pub(crate) fn complaints(&self) -> (Vec<String>, u64) {
        let kept = lock(&self.kept);
        let bytes = kept.iter().map(|kept| kept.bytes.len() as u64).sum();
        let changed = |kept: &Kept| format!("{} changed while it was held", kept.what);
        let mut complaints: Vec<String> = kept.iter().filter(|kept| !kept.is_as_it_was()).map(changed).collect();
        let replaced = |kept: &&KeptView| kept.view.to_vec() != kept.bytes;
        let views = lock(&self.views);
        let changed = |kept: &KeptView| format!("{} changed while it was held", kept.what);
        complaints.extend(views.iter().filter(replaced).map(changed));
        complaints.extend(lock(&self.destinations).iter().filter_map(Destination::complaint));
        (complaints, bytes)
    }

    /// Memory that somebody still holds: buffers and memory of the caller that the store was given.
    pub(crate) fn still_held(&self) -> Vec<String> {
        let mut held = Vec::new();
        let destinations = lock(&self.destinations).iter().filter(|it| it.memory.is_held()).count();
        let sources = lock(&self.sources).iter().filter(|source| source.is_held()).count();
        let given = lock(&self.given)
            .iter()
            .filter(|buffer| 0 < buffer.strong_count())
            .count();
        for (what, count) in [
            ("destinations", destinations),
            ("sources", sources),
            ("buffers of a put", given),
        ] {
            if 0 < count {
                held.push(format!("{count} {what} are still held by the store"));
            }
        }
        held
    }
}
