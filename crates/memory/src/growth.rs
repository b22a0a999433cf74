//! How a pool grows: one slab of a kind at a time, made and registered on a thread of its own.
//!
//! Memory may take long to make and to register, and a lender that is stopped never answers. A caller waits for it as long as
//! its own patience lasts. A slab that comes later than that is the pool's all the same.

use crate::growing::{Attempt, GrowError, Growing, Growth, OfKind, lock};
use crate::pool::{Admission, Made, Pool, SlabReservation};
use crate::{InFlight, Region};
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tensorlease_arena::{AcquireError, SlabKind, block_len};

/// What the owner of a pool does with each of its slabs. Runs on the thread that makes the slab, and may take long.
pub trait SlabKeeper: Send + Sync + 'static {
    /// Before the first block is cut from it.
    ///
    /// # Errors
    /// The slab is refused; its memory goes back.
    fn register(&self, _slab: Region) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }

    /// Before its memory goes. Only called for what was registered.
    fn unregister(&self, _slab: Region) {}

    /// A slab was added. `rebuilt`: in place of empty ones that were given up.
    fn made(&self, _bytes: u64, _rebuilt: bool) {}

    /// There is no slab, and no other try for a while. `first`: since the last slab of that kind was made.
    fn refused(&self, _error: &GrowError, _first: bool) {}
}

/// Keeps slabs that nobody else has to know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unregistered;

impl SlabKeeper for Unregistered {}

/// Blocks got, in the order of the requests, and why the request after the last block was refused.
#[derive(Debug)]
pub struct Grown {
    /// The blocks.
    pub blocks: Vec<InFlight>,
    /// None: all were served.
    pub refused: Option<Ungrown>,
}

/// Why there is no block.
#[derive(Debug)]
pub struct Ungrown {
    /// As the books see it.
    pub error: AcquireError,
    /// Why there is no slab, where the budget allows one.
    pub cause: Option<Arc<GrowError>>,
}

/// What a slab is for.
#[derive(Clone, Copy)]
struct Need {
    kind: SlabKind,
    missing_bytes: u64,
    largest: u64,
    /// Empty slabs may be given up for it.
    replaces: bool,
}

/// What a caller without a block does next.
enum Step {
    Acquired(Admission),
    Refused(Ungrown),
    /// `own`: this caller has started it.
    Wait {
        attempt: Arc<Attempt>,
        own: bool,
    },
}

impl Pool {
    /// As [`Pool::acquire`], and makes slabs while the budget allows. Never waits for a block, only for a slab in the making:
    /// `slice` is asked before each wait how long that may last, and holds no lock then.
    ///
    /// # Errors
    /// What `slice` says ends the wait. The blocks got go back, and the slab in the making is the pool's when it comes.
    pub fn acquire_growing<E>(
        &self,
        kind: SlabKind,
        wanted: &[(u64, u64)],
        keeper: &Arc<impl SlabKeeper>,
        slice: impl Fn() -> Result<Duration, E>,
    ) -> Result<Grown, E> {
        let Admission {
            mut blocks,
            mut refused,
        } = self.acquire(kind, wanted);
        let mut started: Option<Arc<Attempt>> = None;
        while refused.is_some() {
            let ended = started.as_ref().and_then(|attempt| attempt.ending());
            started = started.filter(|_| ended.is_none());
            match self.step(kind, &wanted[blocks.len()..], ended, keeper) {
                Step::Acquired(admission) => {
                    blocks.extend(admission.blocks);
                    refused = admission.refused;
                }
                Step::Refused(ungrown) => {
                    return Ok(Grown {
                        blocks,
                        refused: Some(ungrown),
                    });
                }
                Step::Wait { attempt, own } => {
                    attempt.wait(slice()?);
                    started = if own { Some(attempt) } else { started };
                }
            }
        }
        Ok(Grown { blocks, refused: None })
    }

    /// One slab more, though there may be room in those that there are. Gives up none for it.
    ///
    /// # Errors
    /// As [`Pool::acquire_growing`].
    pub fn grow<E>(
        &self,
        kind: SlabKind,
        missing_bytes: u64,
        largest: u64,
        keeper: &Arc<impl SlabKeeper>,
        slice: impl Fn() -> Result<Duration, E>,
    ) -> Result<Growth, E> {
        let attempt = {
            let mut kinds = lock(&self.growing().kinds);
            let of_kind = Growing::of(&mut kinds, kind);
            match &of_kind.running {
                Some(running) => Ok(Arc::clone(running)),
                None => {
                    let replaces = false;
                    let need = Need {
                        kind,
                        missing_bytes,
                        largest,
                        replaces,
                    };
                    self.start(of_kind, need, keeper)
                }
            }
        };
        let attempt = match attempt {
            Ok(attempt) => attempt,
            Err(cause) => return Ok(Growth::Refused(cause)),
        };
        loop {
            if let Some(ending) = attempt.ending() {
                return Ok(ending);
            }
            attempt.wait(slice()?);
        }
    }

    /// Is a slab in the making?
    pub fn is_growing(&self) -> bool {
        lock(&self.growing().kinds)
            .iter()
            .any(|of_kind| of_kind.running.is_some())
    }

    /// From now on slabs of every kind are tried again, whatever was refused before.
    pub fn forget_refusals(&self) {
        for of_kind in lock(&self.growing().kinds).iter_mut() {
            of_kind.refusal = None;
        }
    }

    /// One lock decides for all callers of a kind who makes the slab: no two make one each for the same need, and none finds
    /// the budget taken by a slab that is about to come.
    fn step(
        &self,
        kind: SlabKind,
        missing: &[(u64, u64)],
        ended: Option<Growth>,
        keeper: &Arc<impl SlabKeeper>,
    ) -> Step {
        let mut kinds = lock(&self.growing().kinds);
        let of_kind = Growing::of(&mut kinds, kind);
        let mut admission = self.acquire(kind, missing);
        let Some(error) = admission.refused.take_if(|_| admission.blocks.is_empty()) else {
            return Step::Acquired(admission);
        };
        let grows = matches!(error, AcquireError::NeedsSlab { .. } | AcquireError::Exhausted { .. });
        let refused = |cause| Step::Refused(Ungrown { error, cause });
        match ended {
            Some(Growth::NoRoom) => return refused(None),
            Some(Growth::Refused(cause)) => return refused(Some(cause)),
            Some(Growth::Made(_)) | None => {}
        }
        if let Some(running) = &of_kind.running {
            let attempt = Arc::clone(running);
            return Step::Wait { attempt, own: false };
        }
        let largest = missing[0].0;
        if !grows || !self.may_grow(kind, largest) {
            return refused(None);
        }
        if let Some(cause) = of_kind.refused_now() {
            return refused(Some(cause));
        }
        let need = Need {
            kind,
            missing_bytes: missing.iter().map(|(len, _)| block_len(*len).unwrap_or(*len)).sum(),
            largest,
            replaces: true,
        };
        match self.start(of_kind, need, keeper) {
            Ok(attempt) => Step::Wait { attempt, own: true },
            Err(cause) => refused(Some(cause)),
        }
    }

    fn start(
        &self,
        of_kind: &mut OfKind,
        need: Need,
        keeper: &Arc<impl SlabKeeper>,
    ) -> Result<Arc<Attempt>, Arc<GrowError>> {
        let attempt = Arc::new(Attempt::default());
        let (pool, running, keeping) = (self.clone(), Arc::clone(&attempt), Arc::clone(keeper));
        let make = move || {
            let made = AssertUnwindSafe(|| pool.make_and_admit(need, &*keeping));
            let ending = catch_unwind(made).unwrap_or_else(|_| Growth::Refused(Arc::new(GrowError::Panicked)));
            pool.ended(need.kind, &ending, &*keeping);
            // Whoever waits may be about to close everything.
            drop((pool, keeping));
            running.end(ending);
        };
        let thread = std::thread::Builder::new().name("tensorlease-slab".to_owned());
        match thread.spawn(make) {
            Ok(_) => {
                of_kind.running = Some(Arc::clone(&attempt));
                Ok(attempt)
            }
            Err(error) => {
                let cause = Arc::new(GrowError::Thread(error));
                let first = of_kind.refuse(&cause);
                keeper.refused(&cause, first);
                Err(cause)
            }
        }
    }

    /// Where the budget, or the lender, has no room, empty slabs are given up first, as many as make room and no more.
    fn make_and_admit(&self, need: Need, keeper: &impl SlabKeeper) -> Growth {
        let Need { kind, largest, .. } = need;
        let mut rebuilt = false;
        loop {
            let (room, cause) = match self.make(kind, need.missing_bytes, largest) {
                Ok(Made::Slab(slab)) => return self.register_and_admit(slab, keeper, rebuilt),
                Ok(Made::NoRoom { left, cause }) => (left, cause),
                Err(error) => return Growth::Refused(Arc::new(error)),
            };
            let given_up = if need.replaces && !rebuilt {
                self.take_slabs_for(kind, largest, room)
            } else {
                Vec::new()
            };
            if given_up.is_empty() {
                return cause.map_or(Growth::NoRoom, |cause| Growth::Refused(Arc::new(cause)));
            }
            for slab in given_up {
                keeper.unregister(slab.region());
            }
            rebuilt = true;
        }
    }

    fn register_and_admit(&self, slab: SlabReservation, keeper: &impl SlabKeeper, rebuilt: bool) -> Growth {
        let (region, len) = (slab.region(), slab.len());
        if let Err(source) = keeper.register(region) {
            return Growth::Refused(Arc::new(GrowError::Register { len, source }));
        }
        match self.admit_if_open(slab) {
            Ok(_) => {
                keeper.made(len, rebuilt);
                Growth::Made(len)
            }
            // The pool was closed meanwhile. Its memory goes after the registration.
            Err(slab) => {
                keeper.unregister(region);
                drop(slab);
                Growth::NoRoom
            }
        }
    }

    fn ended(&self, kind: SlabKind, ending: &Growth, keeper: &impl SlabKeeper) {
        let mut kinds = lock(&self.growing().kinds);
        let of_kind = Growing::of(&mut kinds, kind);
        of_kind.running = None;
        let refused = match ending {
            Growth::NoRoom => None,
            Growth::Made(_) => {
                of_kind.refusal = None;
                None
            }
            // It says so at once, each time.
            Growth::Refused(cause) if matches!(**cause, GrowError::Gone { .. }) => Some((cause, true)),
            Growth::Refused(cause) => Some((cause, of_kind.refuse(cause))),
        };
        drop(kinds);
        if let Some((cause, first)) = refused {
            keeper.refused(cause, first);
        }
    }
}
