//! Staging blocks: the bounce reserve, and what stands in for it.

use super::{memory::Memory, slabs::Refused};
use crate::{CallError, FallbackKind};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use tensorlease_arena::SlabKind;
use tensorlease_engine::{Fault, FaultKind};
use tensorlease_memory::{InFlight, Landing, Mapping, MappingKind};

/// Most bytes of a round where the engine is prompt: they stay in the processor's cache between the transfer and the copy.
const ROUND_BYTES_MAX_PROMPT: u64 = 4 << 20;
/// A bounce block is held for one round only. One that does not come free for this long is held by something that hangs.
const BOUNCE_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long a wait lasts after one that was in vain.
const STARVED_WAIT_MAX: Duration = Duration::from_millis(5);

impl Memory {
    /// Most bytes of one round through the bounce reserve: what one worker may hold of it at a time, as a whole block.
    pub(crate) fn bounce_round_bytes(&self) -> u64 {
        let workers = u32::try_from(self.calls.workers().count()).unwrap_or(u32::MAX);
        let share = self.arena.budget().share_bytes(workers);
        let share = if self.calls.claims().prompt {
            share.min(ROUND_BYTES_MAX_PROMPT)
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

    /// Makes the bounce reserve where there is none, for blocks of `bytes`: otherwise the workers would wait for it side by side, and no other call
    /// would get one.
    pub(crate) fn make_reserve(
        &self,
        bytes: u64,
        slice: impl Fn() -> Result<Duration, CallError>,
    ) -> Result<(), CallError> {
        if !self.arena.has_slab(SlabKind::Bounce) {
            // What else there is in its place is found out where a block is needed.
            self.acquire(SlabKind::Bounce, &[(bytes, 1)], slice)?;
        }
        Ok(())
    }

    /// Where a round of a read is staged. An engine that registers nothing takes any memory: its reads neither wait for a
    /// block nor fail for want of one.
    pub(crate) fn bounce_landing(
        &self,
        bytes: u64,
        slice: impl Fn() -> Result<Duration, CallError>,
    ) -> Result<Landing, Fault> {
        if self.calls.registers() {
            return self.bounce_block(bytes, slice).map(Landing::Block);
        }
        match self.block_now(bytes, slice)? {
            Ok(block) => return Ok(Landing::Block(block)),
            Err(refused) => self.count_staging(&refused),
        }
        let len = usize::try_from(bytes).expect("a round is smaller than the address space");
        let fresh = Mapping::new(MappingKind::Anonymous, len).map_err(|error| {
            let words = format!("no memory to stage {bytes} bytes in: {error}; free memory of this machine");
            Fault::new(FaultKind::NoHandle, 0, words)
        })?;
        fresh.prefault(0..len);
        Ok(Landing::Fresh(fresh))
    }

    /// A block of the bounce reserve. Rounds are sized so that every worker finds one. Only calls that hang, or memory in
    /// quarantine, can make one wait.
    pub(crate) fn bounce_block(
        &self,
        bytes: u64,
        slice: impl Fn() -> Result<Duration, CallError>,
    ) -> Result<InFlight, Fault> {
        let start = Instant::now();
        let mut was_alone = false;
        loop {
            let refused = match self.block_now(bytes, &slice)? {
                Ok(block) => return Ok(block),
                Err(refused) => refused,
            };
            if self.life.is_closed() {
                let why = "the store is closed; open a new one";
                return Err(Fault::new(FaultKind::Unavailable, 0, why));
            }
            // Waiting helps against other transfers, not against memory in quarantine.
            let held = matches!(refused.kind, FallbackKind::Budget | FallbackKind::HostFull);
            let mut hopeless = !held || 0 < self.quarantined_bytes();
            // Where no transfer holds a block, the room is not this store's to give back: its engine lends it none. Seen twice, for a transfer may
            // have ended just now.
            let alone = self.arena.usage().in_flight_bytes == 0;
            hopeless |= alone && was_alone;
            was_alone = alone;
            // A read has many rounds, each of which may come here: they must not wait for the same nothing one after the other.
            let wait = if self.staging_starved.load(Ordering::Relaxed) {
                STARVED_WAIT_MAX
            } else {
                BOUNCE_WAIT_MAX
            };
            if hopeless || wait <= start.elapsed() {
                self.staging_starved.store(true, Ordering::Relaxed);
                self.count_staging(&refused);
                return Err(Fault::new(FaultKind::NoHandle, 0, self.no_staging(&refused)));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A block to stage in, or why the bounce reserve has none.
    fn block_now(
        &self,
        bytes: u64,
        slice: impl Fn() -> Result<Duration, CallError>,
    ) -> Result<Result<InFlight, Refused>, Fault> {
        let acquire = |kind| self.acquire_one(kind, (bytes, 1), &slice).map_err(no_slab);
        let refused = match acquire(SlabKind::Bounce)? {
            Ok(block) => {
                self.staging_starved.store(false, Ordering::Relaxed);
                return Ok(Ok(block));
            }
            Err(refused) => refused,
        };
        // What hangs or is quarantined in the reserve must not stop everybody else while the arena has room.
        let spare = acquire(SlabKind::Lease)?.ok();
        let Some(block) = spare.filter(|block| self.is_one_registration(block)) else {
            return Ok(Err(refused));
        };
        self.staging_starved.store(false, Ordering::Relaxed);
        self.count_staging(&refused);
        Ok(Ok(block))
    }

    /// A lease slab that is larger than one registration has several, and a staging block may lie in one only.
    fn is_one_registration(&self, block: &InFlight) -> bool {
        let (piece, start) = (self.registrations.piece_bytes(), block.block().offset);
        start / piece == (start + block.len() as u64 - 1) / piece
    }

    /// Only a reserve that is there can be busy.
    fn count_staging(&self, refused: &Refused) {
        let kind = match refused.kind {
            FallbackKind::Budget => FallbackKind::BounceBusy,
            other => other,
        };
        self.accounts.count_reason(kind, 1, refused.cause().as_deref());
    }

    fn no_staging(&self, refused: &Refused) -> String {
        // What hinders the reserve's growth says more than what is held of it.
        match self.quarantined_bytes() {
            held if refused.kind == FallbackKind::Budget && 0 < held => format!(
                "no staging block: {held} bytes are quarantined because transfers that failed may still use them; close this store and open a new one"
            ),
            _ => format!("no staging block: {} ({refused})", refused.kind.words()),
        }
    }
}

/// No slab came while the caller waited, or none ever will.
fn no_slab(error: CallError) -> Fault {
    match error {
        CallError::Unavailable { message } => Fault::new(FaultKind::Unavailable, 0, message),
        _ => Fault::new(
            FaultKind::Transient,
            0,
            "no staging block came before its caller gave up",
        ),
    }
}
