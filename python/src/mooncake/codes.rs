//! Mooncake's result codes as faults. Their names and numbers are part of its interface.
use std::time::Duration;
use tensorlease::engine::{Fault, FaultKind};

const INTERNAL_ERROR: i64 = -1;
const BUFFER_OVERFLOW: i64 = -10;
pub(super) const NO_AVAILABLE_HANDLE: i64 = -200;
const INVALID_KEY: i64 = -400;
pub(super) const INVALID_PARAMS: i64 = -600;
const REPLICA_IS_NOT_READY: i64 = -703;
pub(super) const OBJECT_NOT_FOUND: i64 = -704;
const OBJECT_HAS_LEASE: i64 = -706;
pub(super) const LEASE_EXPIRED: i64 = -707;
const REPLICA_IS_GONE: i64 = -712;
const OBJECT_REPLICA_BUSY: i64 = -714;
const TRANSFER_FAIL: i64 = -800;
/// Where `MOONCAKE_STORE_CHECKSUM=1` is set for writers and readers.
const CHECKSUM_MISMATCH: i64 = -801;
const RPC_FAIL: i64 = -900;
const RPC_TIMEOUT: i64 = -901;

/// Mooncake gives a transfer up after 60 s (-800) without cancelling it, and such a transfer was seen to write its
/// destination later. A fast failure comes only when every part of the transfer has ended. Between the two there is
/// room for slow machines.
pub(super) const MAY_STILL_RUN_FROM: Duration = Duration::from_secs(30);

/// Which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
    /// No bytes: removals, questions.
    Asked,
}

/// The fault of a negative code that came after `elapsed`.
pub(super) fn fault(code: i64, direction: Direction, elapsed: Duration) -> Fault {
    let (kind, message) = meaning(code, direction);
    let moved = direction != Direction::Asked && !ended_before_moving(code);
    let (kind, message) = if moved && MAY_STILL_RUN_FROM <= elapsed {
        let seconds = elapsed.as_secs();
        let message = format!("{message}; given up after {seconds} s, the transfer may still go on");
        (FaultKind::MayStillWrite, message)
    } else {
        (kind, message.to_owned())
    };
    Fault::new(kind, i32::try_from(code).unwrap_or(i32::MIN), message)
}

/// The fault of a call that moves no bytes.
pub(super) fn asked(code: i64) -> Fault {
    fault(code, Direction::Asked, Duration::ZERO)
}

/// What a call without a result says.
pub(super) fn done(code: i64) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(asked(code)) }
}

/// Codes that the master gives before any transfer is started.
pub(super) fn ended_before_moving(code: i64) -> bool {
    matches!(
        code,
        OBJECT_NOT_FOUND | INVALID_PARAMS | INVALID_KEY | NO_AVAILABLE_HANDLE | REPLICA_IS_NOT_READY | BUFFER_OVERFLOW
    )
}

fn meaning(code: i64, direction: Direction) -> (FaultKind, &'static str) {
    match code {
        NO_AVAILABLE_HANDLE if direction == Direction::Write => (
            FaultKind::Full,
            "the segments are full or fragmented, or no process contributes one (segment=0 everywhere)",
        ),
        NO_AVAILABLE_HANDLE => (
            FaultKind::NoHandle,
            "no room in this process's local buffer, which objects on disk are read through; raise local_buffer",
        ),
        BUFFER_OVERFLOW => (
            FaultKind::NoHandle,
            "the staging buffer of the SSD's owner is too small for the call",
        ),
        OBJECT_NOT_FOUND => (FaultKind::NotFound, "there is no such object"),
        REPLICA_IS_NOT_READY => (FaultKind::Transient, "the object is being written"),
        LEASE_EXPIRED => (
            FaultKind::Expired,
            "the transfer took longer than the master's read lease; give the master a longer default_kv_lease_ttl",
        ),
        OBJECT_HAS_LEASE | OBJECT_REPLICA_BUSY => (FaultKind::Transient, "the object is in use"),
        REPLICA_IS_GONE => (FaultKind::Transient, "the replica is gone"),
        TRANSFER_FAIL => (
            FaultKind::Transient,
            "the transfer failed: the process that owns the segment has ended or hangs, or the link to it is down, or was within the last 30 s; see whether both are up, and try again",
        ),
        CHECKSUM_MISMATCH => (
            FaultKind::Transient,
            "the bytes are not those that were stored: the object was removed or replaced while it was read, or somebody wrote to its memory",
        ),
        RPC_FAIL | RPC_TIMEOUT => (
            FaultKind::Unavailable,
            "the master does not answer; see whether mooncake_master runs",
        ),
        INTERNAL_ERROR => (FaultKind::Transient, "Mooncake failed inside"),
        INVALID_KEY | INVALID_PARAMS => (FaultKind::Refused, "Mooncake refused the key or its size"),
        _ => (FaultKind::Refused, "Mooncake failed; its code table says why"),
    }
}
