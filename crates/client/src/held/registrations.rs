//! Which memory is registered with the engine, and where one registration ends and the next one begins.

use crate::{accounts::Accounts, calls::Calls};
use std::{
    error::Error,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};
use tensorlease_engine::{Fault, FaultKind, RegisterError, chained};
use tensorlease_memory::{GrowError, Region, RegionMap, SlabKeeper, Source, lock};

/// Registers slabs for as long as they live, and other memory for single calls.
pub(crate) struct Registrations {
    calls: Arc<Calls>,
    accounts: Arc<Accounts>,
    /// The slabs that are registered, or were when the engine closed: a call that still runs is cut as before.
    slabs: Mutex<RegionMap>,
    /// The engine is closed.
    ended: AtomicBool,
}

impl SlabKeeper for Registrations {
    fn register(&self, slab: Region) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.register_all(&[slab], || ())?;
        lock(&self.slabs).insert(slab, ());
        Ok(())
    }

    fn unregister(&self, slab: Region) {
        self.unregister_slab(slab);
    }

    fn made(&self, _bytes: u64, rebuilt: bool) {
        self.accounts.counters().slabs_made.add(1);
        self.accounts.counters().slabs_rebuilt.add(u64::from(rebuilt));
    }

    fn refused(&self, error: &GrowError, _first: bool) {
        log::debug!("no slab: {}", chained(error));
    }
}

impl Registrations {
    pub(super) fn new(calls: Arc<Calls>, accounts: Arc<Accounts>) -> Self {
        Self {
            calls,
            accounts,
            slabs: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// One `register` call on the engine, counted and timed.
    pub(crate) fn register(&self, region: Region) -> Result<(), RegisterError> {
        self.accounts.counters().register_calls.add(1);
        self.accounts.counters().registered_bytes.add(region.len as u64);
        let register = || self.calls.engine().register(region);
        self.accounts.stages().register.time(register)
    }

    /// One `unregister` call. A refusal is logged: there is nothing else to do about it.
    pub(crate) fn unregister(&self, region: Region) {
        let unregister = || self.calls.engine().unregister(region);
        if let Err(error) = self.accounts.stages().register.time(unregister) {
            log::warn!("cannot unregister {} bytes: {error}", region.len);
        }
    }

    /// Registers memory for one call: all of it, or none.
    pub(crate) fn register_for_call(&self, regions: &[Region]) -> Result<(), Fault> {
        let calls = &self.accounts.counters().hot_path_register_calls;
        self.register_all(regions, || calls.add(1))
            .map_err(|error| refused(&error))
    }

    /// Ends the registrations of regions that were registered for a call.
    pub(crate) fn unregister_pieces(&self, regions: impl Iterator<Item = Region>) {
        regions
            .flat_map(|region| self.pieces(region))
            .for_each(|piece| self.unregister(piece));
    }

    fn register_all(&self, regions: &[Region], count: impl Fn()) -> Result<(), RegisterError> {
        let pieces: Vec<Region> = regions.iter().flat_map(|region| self.pieces(*region)).collect();
        for (at, piece) in pieces.iter().enumerate() {
            count();
            if let Err(error) = self.register(*piece) {
                pieces[..at].iter().for_each(|piece| self.unregister(*piece));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Unregisters a slab that leaves the arena, or whose engine is about to close.
    pub(crate) fn unregister_slab(&self, slab: Region) {
        if lock(&self.slabs).remove(slab).is_some() && !self.ended.load(Ordering::Acquire) {
            self.unregister_pieces(std::iter::once(slab));
        }
    }

    /// Unregisters every slab: the engine is about to close, and no call runs.
    pub(crate) fn unregister_slabs(&self) {
        let slabs: Vec<Region> = lock(&self.slabs).iter().map(|(slab, ())| slab).collect();
        slabs.into_iter().for_each(|slab| self.unregister_slab(slab));
    }

    /// The engine has ended every registration.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Bytes of slabs that are registered now with an engine that needs it: their pages can't move, and a fork copies them.
    pub(super) fn pinned_bytes(&self) -> u64 {
        if !self.calls.registers() || self.ended.load(Ordering::Acquire) {
            return 0;
        }
        lock(&self.slabs).bytes()
    }

    /// The registered slab in which this memory lies.
    pub(crate) fn slab_of(&self, region: Region) -> Option<Region> {
        lock(&self.slabs).find(region).map(|(slab, ())| slab)
    }

    /// A slab is registered in pieces of this length, bytes. No transfer may cross from one into the next (invariant 1).
    pub(crate) fn piece_bytes(&self) -> u64 {
        if self.calls.registers() {
            self.calls.claims().registration_bytes_max
        } else {
            u64::MAX
        }
    }

    fn pieces(&self, region: Region) -> impl Iterator<Item = Region> + use<> {
        let piece = usize::try_from(self.calls.claims().registration_bytes_max)
            .unwrap_or(usize::MAX)
            .max(1);
        (0..region.len).step_by(piece).map(move |start| Region {
            addr: region.addr + start,
            len: piece.min(region.len - start),
        })
    }

    /// The source, cut where one registration ends and the next one begins: of a slab, or of a region in `own` that is registered for this call.
    pub(crate) fn cut<'a>(&self, source: Source<'a>, own: &[Region]) -> Vec<Source<'a>> {
        let region = source.region();
        let piece = self.piece_bytes();
        let several = |known: &Region| piece < known.len as u64;
        let of_this_call = own.iter().copied().find(|own| several(own) && own.contains(region));
        let slab = || self.slab_of(region).filter(several);
        let Some(Region { addr, .. }) = of_this_call.or_else(slab).filter(|_| 0 < region.len) else {
            return vec![source];
        };
        let position = |bytes: u64| usize::try_from(bytes).expect("a position inside a slab");
        cuts_at_multiples((region.addr - addr) as u64, region.len as u64, piece)
            .into_iter()
            .map(|cut| source.slice(position(cut.start)..position(cut.end)))
            .collect()
    }
}

/// Memory that another call has registered just now is free again when that call ends.
fn refused(error: &RegisterError) -> Fault {
    let kind = match error {
        RegisterError::Overlap { .. } => FaultKind::Transient,
        RegisterError::Closed => FaultKind::Unavailable,
        _ => FaultKind::Unregistered,
    };
    Fault::new(kind, 0, format!("memory can't be registered for this call: {error}"))
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
