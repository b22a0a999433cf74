//! Writes: what one call of Mooncake's takes, and what is put together for it.
use super::{
    calls::{Calls, Transfer},
    codes::{self, Direction, asked, fault},
};
use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tensorlease_engine::{Fault, FaultKind, Removals, WriteOp, of_another_size};
use tensorlease_memory::{CopyMode, HeapBytes, Region, Source, copy};

/// Objects of several pieces are put together until one call's have so many bytes. Calls of an object each took three
/// times as long for 64 KiB; with 16 MiB and more at a time no copy runs beside the transfer of the last ones.
const GATHERED_BYTES_MAX: usize = 4 << 20;

/// So many keys are remembered. An error of another one does not say that its object is gone.
const REPLACED_KEYS_MAX: usize = 1 << 16;

/// Keys whose object was removed for a write that is not done. A later try finds nothing to remove, and must say too
/// that the object is gone.
#[derive(Default)]
pub(super) struct Replaced {
    keys: Mutex<HashSet<String>>,
}

impl Replaced {
    fn removed(&self, key: &str) {
        let mut keys = self.keys();
        if keys.len() < REPLACED_KEYS_MAX {
            keys.insert(key.to_owned());
        }
    }

    /// There is an object under the key.
    fn there(&self, key: &str) {
        let mut keys = self.keys();
        if !keys.is_empty() {
            keys.remove(key);
        }
    }

    fn is_gone(&self, key: &str) -> bool {
        self.keys().contains(key)
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<String>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that calls which were given up may still read.
#[derive(Default)]
pub(super) struct LateSources {
    kept: Mutex<Vec<HeapBytes>>,
}

impl LateSources {
    fn keep(&self, memory: HeapBytes) {
        self.kept().push(memory);
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> u64 {
        self.kept().iter().map(|memory| memory.len() as u64).sum()
    }

    /// Mooncake is closed, and reads no more.
    pub(super) fn free(&self) {
        drop(std::mem::take(&mut *self.kept()));
    }

    fn kept(&self) -> MutexGuard<'_, Vec<HeapBytes>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LateSources {
    fn drop(&mut self) {
        // It is empty where Mooncake has closed. Elsewhere Mooncake may still read this memory, which is never given
        // back.
        std::mem::forget(std::mem::take(&mut *self.kept()));
    }
}

/// How this process writes.
pub(super) struct Writes<'a> {
    pub(super) calls: &'a Calls,
    pub(super) removals: &'a Removals,
    pub(super) replaced: &'a Replaced,
    pub(super) late_sources: &'a LateSources,
}

impl Writes<'_> {
    /// Writes all of them in as few calls as the memory allows that objects of several pieces are put together in.
    /// Memory must not need registration.
    pub(super) fn together(&self, mut writes: &[&WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        let mut results = Vec::with_capacity(writes.len());
        while !writes.is_empty() {
            let (part, rest) = writes.split_at(fitting(writes));
            results.extend(self.at_once(part));
            writes = rest;
        }
        results
    }

    fn at_once(&self, writes: &[&WriteOp<'_>]) -> Vec<Result<(), Fault>> {
        let failed = |fault| vec![Err(fault); writes.len()];
        let Some((gathered, regions)) = gathered(writes) else {
            let message = "no memory to put the pieces of the value together in; free some";
            return failed(Fault::new(FaultKind::NoHandle, 0, message));
        };
        let transfers = writes.iter().zip(regions);
        let transfers = transfers.map(|(write, region)| Transfer { key: write.key, region });
        let transfers: Vec<Transfer<'_>> = transfers.collect();
        if let Err(fault) = self.remove_of_another_size(&transfers) {
            return failed(fault);
        }
        let bytes = transfers.iter().map(|transfer| transfer.region.len).sum();
        let turn = self.calls.turn_of_write(transfers.len(), bytes);
        let written = self.calls.upsert_from(&transfers);
        drop(turn);
        let results = match written {
            Ok((codes, elapsed)) => {
                let results = writes.iter().zip(codes);
                results.map(|(write, code)| self.result(write, code, elapsed)).collect()
            }
            Err(fault) => failed(fault),
        };
        let late = |result: &Result<(), Fault>| matches!(result, Err(fault) if fault.kind == FaultKind::MayStillWrite);
        if !gathered.is_empty() && results.iter().any(late) {
            // Mooncake may still read it. The caller keeps what it was put together from.
            self.late_sources.keep(gathered);
        }
        results
    }

    /// Mooncake replaces an object of another size and never frees the memory of the old one. Such an object is removed
    /// first.
    fn remove_of_another_size(&self, transfers: &[Transfer<'_>]) -> Result<(), Fault> {
        let keys: Vec<&str> = transfers.iter().map(|transfer| transfer.key).collect();
        let lens: Vec<u64> = transfers.iter().map(|transfer| transfer.region.len as u64).collect();
        let found = self.calls.sizes(&keys)?;
        let there = keys.iter().zip(&found).filter(|(_, size)| size.is_some());
        there.for_each(|(key, _)| self.replaced.there(key));
        let in_the_way: Vec<&str> = of_another_size(&found, &lens).into_iter().map(|at| keys[at]).collect();
        self.remove_replaced(&in_the_way)
    }

    /// Removes objects that are to be replaced. A key without one is fine.
    fn remove_replaced(&self, keys: &[&str]) -> Result<(), Fault> {
        if keys.is_empty() {
            return Ok(());
        }
        let _removing = self.removals.removing(keys);
        let removed = self.calls.remove(keys)?;
        let gone = keys.iter().zip(&removed).filter(|(_, code)| 0 <= **code);
        gone.for_each(|(key, _)| self.replaced.removed(key));
        let failed = |code: &i64| *code < 0 && *code != codes::OBJECT_NOT_FOUND;
        match removed.into_iter().find(failed) {
            Some(code) => Err(asked(code)),
            None => Ok(()),
        }
    }

    /// One object of several pieces of registered memory. Mooncake gathers them, but only for a new key.
    pub(super) fn pieces(&self, write: &WriteOp<'_>) -> Result<(), Fault> {
        let pieces: Vec<Region> = write.segments.iter().map(Source::region).collect();
        let _turn = self.calls.turn_of_write(1, len_of(write));
        self.remove_replaced(&[write.key])?;
        let (code, elapsed) = self.calls.put_from_pieces(write.key, &pieces)?;
        self.result(write, code, elapsed)
    }

    fn result(&self, write: &WriteOp<'_>, code: i64, elapsed: Duration) -> Result<(), Fault> {
        if code == 0 {
            self.replaced.there(write.key);
            return Ok(());
        }
        let mut fault = fault(code, Direction::Write, elapsed);
        if fault.kind == FaultKind::Full {
            let asked = format!("no room for {} bytes in one piece, said Mooncake", len_of(write));
            let gone = if self.replaced.is_gone(write.key) {
                "; the object that was under the key was removed first and is gone"
            } else {
                ""
            };
            fault.message = format!("{asked}: {}{gone}", fault.message).into();
        }
        Err(fault)
    }
}

fn len_of(write: &WriteOp<'_>) -> usize {
    write.segments.iter().map(Source::len).sum()
}

/// Bytes of an object that has to be put together.
fn bytes_to_gather(write: &WriteOp<'_>) -> usize {
    if write.segments.len() == 1 { 0 } else { len_of(write) }
}

/// How many of the first writes go together, at least one.
fn fitting(writes: &[&WriteOp<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |write: &&&WriteOp<'_>| {
        bytes += bytes_to_gather(write);
        bytes <= GATHERED_BYTES_MAX
    };
    writes.iter().take_while(fits).count().max(1)
}

/// The memory that holds the objects that were put together, and where the bytes of each object lie. `None`: there is
/// no memory.
fn gathered(writes: &[&WriteOp<'_>]) -> Option<(HeapBytes, Vec<Region>)> {
    let memory = HeapBytes::try_new(writes.iter().map(|write| bytes_to_gather(write)).sum())?;
    let mut rest = memory.target();
    let mut regions = Vec::with_capacity(writes.len());
    for write in writes {
        if let [whole] = write.segments {
            regions.push(whole.region());
            continue;
        }
        let (target, left) = rest.split_at(len_of(write));
        rest = left;
        regions.push(target.region());
        let mut free = target;
        for piece in write.segments {
            let (target, left) = free.split_at(piece.len());
            copy(*piece, &target, CopyMode::Cached);
            free = left;
        }
    }
    Some((memory, regions))
}
