//! Making, registering and giving up slabs.

use crate::{CallError, FallbackKind, core::Core, open::chain, patience::lock, read::cuts_at_multiples};
use std::{error::Error, fmt, sync::Arc, time::Duration};
use tensorlease_arena::{AcquireError, SlabKind};
use tensorlease_engine::RegisterError;
use tensorlease_memory::{GrowError, InFlight, Region, SlabKeeper, SlabMemory, Source, Ungrown};

/// Blocks got, in the order asked, and why the rest was not.
pub(crate) struct Acquired {
    pub(crate) blocks: Vec<InFlight>,
    pub(crate) refused: Option<Refused>,
}

/// Why the arena gave no more blocks. Shown as the detail that belongs to the words of its kind.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) kind: FallbackKind,
    error: AcquireError,
    /// Why there is no slab, where the budget allows one.
    cause: Option<Arc<GrowError>>,
}

impl Refused {
    /// Why there is no slab, in words, where the budget allows one.
    pub(crate) fn cause(&self) -> Option<String> {
        self.cause.as_ref().map(|cause| chain(cause))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            None => self.error.fmt(formatter),
            Some(cause) => formatter.write_str(&chain(cause)),
        }
    }
}

impl SlabKeeper for Core {
    fn register(&self, slab: Region) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.register_slab(slab)?)
    }

    fn unregister(&self, slab: Region) {
        self.unregister_slab(slab);
    }

    fn made(&self, _bytes: u64, rebuilt: bool) {
        self.counters.slabs_made.add(1);
        self.counters.slabs_rebuilt.add(u64::from(rebuilt));
    }

    fn refused(&self, error: &GrowError, _first: bool) {
        log::debug!("no slab: {}", chain(error));
    }
}

impl Refused {
    /// As it is told of a value: where the budget allows a slab and there is none, its lender has the reason.
    pub(crate) fn told(self, core: &Core) -> Self {
        let lender_is_full = core.lends_slabs && matches!(self.error, AcquireError::NeedsSlab { .. });
        let kind = match self.kind {
            FallbackKind::Budget if lender_is_full => FallbackKind::HostFull,
            kind => kind,
        };
        Self { kind, ..self }
    }
}

impl Core {
    /// Blocks of the arena for `wanted` (bytes, alignment), in order until the first that can't be had. Makes slabs while the
    /// budget allows, and waits for them in slices. Never waits for a block.
    ///
    /// # Errors
    /// What `slice` says, or `Unavailable` where the memory is lent and its lender is gone.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        kind: SlabKind,
        wanted: &[(u64, u64)],
        slice: impl Fn() -> Result<Duration, CallError>,
    ) -> Result<Acquired, CallError> {
        let grown = self.arena.acquire_growing(kind, wanted, self, slice)?;
        let refused = grown.refused.map(refused).transpose()?;
        Ok(Acquired {
            blocks: grown.blocks,
            refused,
        })
    }

    /// Makes the bounce reserve where there is none, for blocks of `bytes`: otherwise the readers would wait for it side by side, and nobody
    /// else would get one.
    pub(crate) fn make_reserve(
        self: &Arc<Self>,
        bytes: u64,
        slice: impl Fn() -> Result<Duration, CallError>,
    ) -> Result<(), CallError> {
        if !self.arena.has_slab(SlabKind::Bounce) {
            // Whoever needs a block of it finds out what else there is in its place.
            self.acquire(SlabKind::Bounce, &[(bytes, 1)], slice)?;
        }
        Ok(())
    }

    /// Registers a slab, in pieces where it is larger than one registration may be.
    pub(crate) fn register_slab(&self, region: Region) -> Result<(), RegisterError> {
        let mut done = Vec::new();
        for piece in self.registration_pieces(region) {
            if let Err(error) = self.register(piece) {
                for piece in done {
                    self.unregister(piece);
                }
                return Err(error);
            }
            done.push(piece);
        }
        lock(&self.registered).insert((region.addr, region.len));
        Ok(())
    }

    /// Unregisters a slab that leaves the arena, or whose engine is about to close.
    pub(crate) fn unregister_slab(&self, region: Region) {
        if lock(&self.registered).remove(&(region.addr, region.len)) {
            for piece in self.registration_pieces(region) {
                self.unregister(piece);
            }
        }
    }

    /// One counted `register` call on the engine.
    pub(crate) fn register(&self, region: Region) -> Result<(), RegisterError> {
        self.counters.register_calls.add(1);
        self.counters.registered_bytes.add(region.len as u64);
        self.stages.register.time(|| self.engine.register(region))
    }

    /// One `unregister`; a refusal is logged, there is nothing else to do about it.
    pub(crate) fn unregister(&self, region: Region) {
        if let Err(error) = self.stages.register.time(|| self.engine.unregister(region)) {
            log::warn!("cannot unregister {} bytes: {error}", region.len);
        }
    }

    /// Bytes given back to the system.
    pub(crate) fn give_up_empty_slabs(&self) -> u64 {
        self.give_up(self.arena.take_empty_slabs())
    }

    /// Does its arena lie in memory that others wait for, and that nobody asked to have in hand?
    pub(crate) fn returns_idle_slabs(&self) -> bool {
        self.lends_slabs && self.options.prewarm_bytes == 0
    }

    /// Bytes given back to an engine that lends its slabs. The bounce reserve stays: the next staged transfer needs it.
    pub(crate) fn give_up_empty_lent_slabs(&self) -> u64 {
        self.give_up(self.arena.take_empty_slabs_of(SlabKind::Lease))
    }

    fn give_up(&self, slabs: Vec<SlabMemory>) -> u64 {
        let mut freed = 0;
        for slab in slabs {
            self.unregister_slab(slab.region());
            freed += slab.len() as u64;
        }
        freed
    }

    /// A slab is registered in pieces of this length, bytes; no transfer may cross from one into the next.
    pub(crate) fn registration_piece_bytes(&self) -> u64 {
        if self.registers() {
            self.capabilities.registration_bytes_max
        } else {
            u64::MAX
        }
    }

    /// The source, cut where one registration of a slab, or of a region in `own` that is registered for this call, ends and the next one begins.
    pub(crate) fn within_registrations<'a>(&self, source: Source<'a>, own: &[Region]) -> Vec<Source<'a>> {
        let region = Region {
            addr: source.addr(),
            len: source.len(),
        };
        let piece = self.registration_piece_bytes();
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

    /// The slab, registered with the engine, in which this memory lies.
    pub(crate) fn slab_of(&self, region: Region) -> Option<Region> {
        let slabs = lock(&self.registered);
        let mut slabs = slabs.iter().map(|(addr, len)| Region { addr: *addr, len: *len });
        slabs.find(|slab| slab.contains(region))
    }

    pub(crate) fn registration_pieces(&self, region: Region) -> impl Iterator<Item = Region> + use<> {
        let piece = usize::try_from(self.capabilities.registration_bytes_max)
            .unwrap_or(usize::MAX)
            .max(1);
        (0..region.len).step_by(piece).map(move |start| Region {
            addr: region.addr + start,
            len: piece.min(region.len - start),
        })
    }
}

fn refused(Ungrown { error, cause }: Ungrown) -> Result<Refused, CallError> {
    let kind = match (&error, cause.as_deref()) {
        (_, Some(GrowError::Gone { why })) => return Err(CallError::Unavailable { message: why.clone() }),
        (AcquireError::TooLarge { .. }, _) => FallbackKind::TooLarge,
        (_, None) => FallbackKind::Budget,
        (_, Some(GrowError::Register { .. } | GrowError::Lender { registration: true, .. })) => {
            FallbackKind::SlabNotRegistered
        }
        (_, Some(_)) => FallbackKind::SlabNotMapped,
    };
    Ok(Refused { kind, error, cause })
}
