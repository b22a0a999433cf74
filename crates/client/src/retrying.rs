//! Which faults are worth another try, and how long to wait before it.

use std::time::Duration;
use tensorlease_engine::FaultKind;

/// Is a read that failed so worth another try?
pub(crate) fn passes_in_a_read(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::NoHandle | FaultKind::NoLoan | FaultKind::Expired | FaultKind::Transient
    )
}

/// Is a write that failed so worth another try? `evicts`: the engine makes room by itself.
pub(crate) fn passes_in_a_write(evicts: bool, kind: FaultKind) -> bool {
    match kind {
        FaultKind::NoHandle | FaultKind::Expired | FaultKind::Transient => true,
        FaultKind::Full => evicts,
        _ => false,
    }
}

/// The pause of a write before its next try. `waits`: others may make room; `full`: there was none.
pub(crate) fn pause_of_a_write(waits: bool, full: bool, tries: u32) -> Duration {
    match (waits, full) {
        (true, _) => room_pause(tries),
        (false, true) => eviction_pause(tries),
        (false, false) => backoff(tries),
    }
}

/// 5 ms, 20 ms, 80 ms, ... at most 1 s, each between half and whole, so that clients that failed together don't return together.
pub(crate) fn backoff(tries: u32) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let whole = (5_u64 << (2 * tries).min(8)).min(1000);
    let jitter = RandomState::new().hash_one(tries) % (whole / 2 + 1);
    Duration::from_millis(whole - jitter)
}

/// The pause before an object that was replaced while it was read is asked for again: 50 us, 100 us, ... at most 12.8 ms. A writer that does nothing
/// else wins often, and not always.
pub(crate) fn replaced_pause(tries: u32) -> Duration {
    Duration::from_micros(50 << tries.min(8))
}

/// 50 ms, 100 ms, 200 ms, ... at most 1 s: an engine that evicts was seen to have room again after 50 ms.
fn eviction_pause(tries: u32) -> Duration {
    Duration::from_millis((50 << tries.min(5)).min(1000))
}

/// 1 ms, 2 ms, ... at most 20 ms: others may make room at any time.
fn room_pause(tries: u32) -> Duration {
    Duration::from_millis((1 << tries.min(5)).min(20))
}
