//! Making, registering and giving up slabs.

use crate::{FallbackKind, core::Core, patience::lock, read::cuts_at_multiples};
use tensorlease_arena::{AcquireError, SlabKind};
use tensorlease_engine::RegisterError;
use tensorlease_memory::{InFlight, Region, SlabMemory, Source};

/// Blocks got, in the order asked, and why the rest was not.
pub(crate) struct Acquired {
    pub(crate) blocks: Vec<InFlight>,
    pub(crate) refused: Option<Refused>,
}

/// Why the arena gave no more blocks.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) kind: FallbackKind,
    pub(crate) error: AcquireError,
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
    /// Blocks of the arena for `wanted` (bytes, alignment), in order until the first that can't be had; makes slabs while
    /// the budget allows. Never waits for a block.
    pub(crate) fn acquire(&self, kind: SlabKind, wanted: &[(u64, u64)]) -> Acquired {
        let mut blocks = Vec::new();
        loop {
            let admission = self.arena.acquire(kind, &wanted[blocks.len()..]);
            if blocks.is_empty() {
                blocks = admission.blocks;
            } else {
                blocks.extend(admission.blocks);
            }
            let Some(error) = admission.refused else {
                return Acquired { blocks, refused: None };
            };
            if let Err(refused) = self.make_room(kind, &wanted[blocks.len()..], error) {
                return Acquired {
                    blocks,
                    refused: Some(refused),
                };
            }
        }
    }

    /// `Ok`: there is room for at least the next block now, try again.
    fn make_room(&self, kind: SlabKind, missing: &[(u64, u64)], error: AcquireError) -> Result<(), Refused> {
        // Only ranges can be read into memory of several registrations (invariant 1).
        let indivisible = !self.capabilities.ranges && self.registration_piece_bytes() < missing[0].0;
        if indivisible || matches!(error, AcquireError::TooLarge { .. }) {
            return Err(Refused {
                kind: FallbackKind::TooLarge,
                error,
            });
        }
        let _one_at_a_time = lock(&self.growing);
        // Somebody else may have made the slab while this call waited.
        if self.arena.acquire(kind, &missing[..1]).refused.is_none() {
            return Ok(());
        }
        if let Some(kind) = *lock(&self.growth_refused) {
            return Err(Refused { kind, error });
        }
        let bytes = missing
            .iter()
            .map(|(len, _)| tensorlease_arena::block_len(*len).unwrap_or(*len))
            .sum();
        let largest = missing[0].0;
        match self.make_slab(kind, bytes, largest) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(kind) => {
                *lock(&self.growth_refused) = Some(kind);
                return Err(Refused { kind, error });
            }
        }
        // Empty slabs that are too small for this block are given up for one that isn't.
        let freed = self.give_up(self.arena.take_empty_slabs_of(kind));
        if 0 < freed && self.make_slab(kind, bytes, largest) == Ok(true) {
            self.counters.slabs_rebuilt.add(1);
            return Ok(());
        }
        Err(Refused {
            kind: FallbackKind::Budget,
            error,
        })
    }

    /// One slab more. `Ok(false)`: the budget allows none.
    pub(crate) fn make_slab(&self, kind: SlabKind, missing_bytes: u64, largest: u64) -> Result<bool, FallbackKind> {
        let made = self.arena.make_slab(kind, missing_bytes, largest).map_err(|error| {
            log::debug!("no slab: {error}");
            FallbackKind::SlabNotMapped
        })?;
        let Some(slab) = made else { return Ok(false) };
        let region = slab.region();
        if let Err(error) = self.register_slab(region) {
            log::debug!("slab of {} bytes not registered: {error}", region.len);
            return Err(FallbackKind::SlabNotRegistered);
        }
        self.counters.slabs_made.add(1);
        self.arena.admit(slab);
        Ok(true)
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
