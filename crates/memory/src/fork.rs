//! Did this process fork? One pthread_atfork handler, one atomic, no syscall on the hot path.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a forked child gets of the slabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForkPolicy {
    /// A copy: leased bytes stay readable, but the kernel copies pinned pages at every fork.
    #[default]
    Inherit,
    /// Nothing: fork is cheap, and a touch in the child is a fault.
    Exclude,
}

static FORKS: AtomicU64 = AtomicU64::new(0);
static HANDLER: Once = Once::new();

/// Number of forks between the first call in an ancestor and this process; the same value = the same process.
///
/// Whoever wants to notice a fork calls this before it, and compares later.
pub fn generation() -> u64 {
    HANDLER.call_once(|| {
        // SAFETY: the handler is a function of this library and only adds to an atomic, which is allowed after a fork.
        let installed = unsafe { libc::pthread_atfork(None, None, Some(count)) };
        assert_eq!(installed, 0, "a fork handler of a few bytes can be installed");
    });
    seen()
}

/// As `generation`, for those who know that it was called before: a load, fit for a deleter.
pub(crate) fn seen() -> u64 {
    // Relaxed: a child starts with one thread, which is the one that ran the handler.
    FORKS.load(Ordering::Relaxed)
}

// SAFETY: only the C library calls it, in the child and before any other of its code runs; it touches one atomic.
unsafe extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
