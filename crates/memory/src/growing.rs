//! What a pool knows about its growth: the slab in the making, what was refused, and for how long.

use crate::MapError;
use std::error::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorlease_arena::SlabKind;

/// After a refusal no slab of that kind is tried for this long. Each further refusal doubles the pause.
const PAUSE_FIRST: Duration = Duration::from_secs(2);
const PAUSE_LONGEST: Duration = Duration::from_secs(60);

/// Why a slab could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrowError {
    /// The machine gave no memory, though the budget allows it.
    #[error("cannot make a slab of {len} bytes; lower max_bytes or free memory of this machine")]
    Map {
        /// Bytes of the slab.
        len: u64,
        /// What was refused.
        #[source]
        source: MapError,
    },
    /// Its keeper refused it.
    #[error("cannot register a slab of {len} bytes")]
    Register {
        /// Bytes of the slab.
        len: u64,
        /// What was refused.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The lender of the memory refused it.
    #[error("{why}")]
    Lender {
        /// In words.
        why: String,
        /// It was the registration that failed there, and not the memory.
        registration: bool,
    },
    /// The lender of the memory is gone for good.
    #[error("{why}")]
    Gone {
        /// In words.
        why: String,
    },
    /// The system gave no thread to make it on.
    #[error("no thread to make a slab on")]
    Thread(#[source] std::io::Error),
    /// A defect.
    #[error("making a slab panicked; this is a defect")]
    Panicked,
}

/// How the making of one slab ended.
#[derive(Clone, Debug)]
pub enum Growth {
    /// It has so many bytes.
    Made(u64),
    /// The budget, or the lender of the memory, has no room for it.
    NoRoom,
    /// It was refused.
    Refused(Arc<GrowError>),
}

/// What a pool knows about its growth, by kind of slab.
#[derive(Debug, Default)]
pub(crate) struct Growing {
    pub(crate) kinds: Mutex<[OfKind; 2]>,
}

#[derive(Debug, Default)]
pub(crate) struct OfKind {
    pub(crate) running: Option<Arc<Attempt>>,
    pub(crate) refusal: Option<Refusal>,
}

#[derive(Debug)]
pub(crate) struct Refusal {
    cause: Arc<GrowError>,
    until: Instant,
    pause: Duration,
}

/// A slab in the making.
#[derive(Debug, Default)]
pub(crate) struct Attempt {
    ending: Mutex<Option<Growth>>,
    ended: Condvar,
}

impl Attempt {
    pub(crate) fn ending(&self) -> Option<Growth> {
        lock(&self.ending).clone()
    }

    pub(crate) fn end(&self, ending: Growth) {
        *lock(&self.ending) = Some(ending);
        self.ended.notify_all();
    }

    /// Until it has ended, and at most for `slice`.
    pub(crate) fn wait(&self, slice: Duration) {
        let ending = lock(&self.ending);
        if ending.is_none() {
            let waited = self.ended.wait_timeout(ending, slice);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Growing {
    pub(crate) fn of(kinds: &mut [OfKind; 2], kind: SlabKind) -> &mut OfKind {
        match kind {
            SlabKind::Lease => &mut kinds[0],
            SlabKind::Bounce => &mut kinds[1],
        }
    }
}

impl OfKind {
    pub(crate) fn refused_now(&self) -> Option<Arc<GrowError>> {
        let refusal = self.refusal.as_ref()?;
        (Instant::now() < refusal.until).then(|| Arc::clone(&refusal.cause))
    }

    /// True: it is the first since a slab was made.
    pub(crate) fn refuse(&mut self, cause: &Arc<GrowError>) -> bool {
        let doubled = |refusal: &Refusal| (refusal.pause * 2).min(PAUSE_LONGEST);
        let pause = self.refusal.as_ref().map_or(PAUSE_FIRST, doubled);
        let refusal = Refusal {
            cause: Arc::clone(cause),
            until: Instant::now() + pause,
            pause,
        };
        self.refusal.replace(refusal).is_none()
    }
}

/// Locks also after a panic elsewhere: what is locked this way is changed in single steps, so no panic leaves it half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
