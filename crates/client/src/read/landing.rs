//! The memory that a transfer lands in, owned by the record of its engine call.

use crate::held::Quarantine;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tensorlease_memory::{Landing, Region, Source, Target};

/// What a transfer has of a landing. In flight it belongs to the group that the worker holds: dropped, it is given back.
#[derive(Debug)]
pub(crate) enum LandsIn {
    /// One transfer writes all of it.
    Own(Landing),
    /// Several transfers write parts of it.
    Shared(Arc<SharedLanding>),
    /// Quarantined: a transfer may still write it.
    Gone,
}

impl LandsIn {
    pub(super) fn landing(&self) -> &Landing {
        match self {
            Self::Own(landing) => landing,
            Self::Shared(shared) => shared.landing(),
            Self::Gone => unreachable!("a quarantined landing is never part of a new transfer"),
        }
    }

    /// Do both lie in one landing?
    pub(super) fn same(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Shared(one), Self::Shared(two)) if Arc::ptr_eq(one, two))
    }

    pub(super) fn region(&self) -> Region {
        self.landing().region()
    }

    pub(super) fn target(&self, offset: u64, len: u64) -> Target<'_> {
        self.landing().target(index(offset)..index(offset + len))
    }

    pub(super) fn source(&self, offset: u64, len: u64) -> Source<'_> {
        self.landing().source(index(offset)..index(offset + len))
    }

    pub(super) fn is_poisoned(&self) -> bool {
        matches!(self, Self::Shared(shared) if shared.is_poisoned())
    }

    /// A transfer into it may still write: nothing else gets it before the engine is closed.
    pub(super) fn quarantine(&mut self, quarantine: &Quarantine) {
        match std::mem::replace(self, Self::Gone) {
            Self::Own(landing) => quarantine.keep(landing),
            Self::Shared(shared) => shared.poison(),
            Self::Gone => {}
        }
    }

    /// The same memory, to be written by several transfers.
    pub(super) fn shared(self, quarantine: &Arc<Quarantine>) -> Arc<SharedLanding> {
        match self {
            Self::Own(landing) => SharedLanding::new(quarantine, landing),
            Self::Shared(shared) => shared,
            Self::Gone => unreachable!("what is cut again is not quarantined"),
        }
    }
}

/// Memory that several transfers write. Once poisoned it goes to quarantine when the last of them lets go of it.
#[derive(Debug)]
pub(crate) struct SharedLanding {
    landing: Option<Landing>,
    poisoned: AtomicBool,
    quarantine: Arc<Quarantine>,
}

impl SharedLanding {
    pub(super) fn new(quarantine: &Arc<Quarantine>, landing: Landing) -> Arc<Self> {
        Arc::new(Self {
            landing: Some(landing),
            poisoned: AtomicBool::new(false),
            quarantine: Arc::clone(quarantine),
        })
    }

    pub(super) fn landing(&self) -> &Landing {
        self.landing.as_ref().expect("taken only by its last owner")
    }

    pub(super) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// The memory, once all transfers have let go of it.
    pub(super) fn into_landing(shared: Arc<Self>) -> Landing {
        let mut last =
            Arc::into_inner(shared).expect("every group has been handed back, and with it every other owner");
        assert!(
            !last.is_poisoned(),
            "poisoned memory is read again elsewhere before delivery"
        );
        last.landing.take().expect("taken once")
    }
}

impl Drop for SharedLanding {
    fn drop(&mut self) {
        if let Some(landing) = self.landing.take().filter(|_| self.is_poisoned()) {
            self.quarantine.keep(landing);
        }
    }
}

/// Positions fit: they were checked against memory that is mapped.
pub(crate) fn index(position: u64) -> usize {
    usize::try_from(position).expect("a position inside mapped memory is an address")
}
