//! What a copy and a registration cost here, measured once at open.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Times of the same number of bytes, ns; 0 while not measured.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    copy_into_fresh: AtomicU64,
    register_fresh: AtomicU64,
}

impl Costs {
    /// Is copying into fresh memory cheaper than registering fresh memory for one transfer?
    pub(crate) fn copy_is_cheaper(&self) -> bool {
        self.copy_into_fresh.load(Relaxed) <= self.register_fresh.load(Relaxed)
    }

    pub(crate) fn note(&self, copied: Duration, registered: Duration) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.copy_into_fresh.store(nanoseconds(copied), Relaxed);
        self.register_fresh.store(nanoseconds(registered), Relaxed);
    }
}
