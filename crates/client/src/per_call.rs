//! Reads and writes that take memory for each call, as clients without an arena do: on loan from the engine's own pool (`pool=store`), or registered
//! for the call (`register-per-call`, the baseline of the benchmarks).
//!
//! They stand beside the reads and writes of the arena and use their mechanisms. Nothing in those knows of them: `store.rs` chooses, `open.rs` tells.

mod lent;
mod loan;
mod write;

pub(crate) use write::put;

use crate::{
    Delivery, Patience, PutMode, ReadError, ReadOutput, ReadRequest,
    parts::Parts,
    patience::Wait,
    read::{Plain, get_by, groups::TransferMode, job::Job, land},
    terms::Terms,
};
use lent::Lent;
use std::sync::Arc;

/// Reads a request, where it is one of these.
pub(crate) fn get(
    parts: &Arc<Parts>,
    request: ReadRequest,
    patience: Patience<'_>,
) -> Result<Result<ReadOutput, ReadError>, ReadRequest> {
    let registers = request.delivery.unwrap_or(parts.options.delivery) == Delivery::RegisterPerCall;
    // Destinations are the caller's memory, whatever the delivery.
    if registers && request.into.is_empty() {
        let land = |_: &Job| Plain(land_registered);
        return Ok(get_by(parts, terms(parts), &land, request, patience));
    }
    let Some(staging) = parts.calls.engine().staging() else {
        return Err(request);
    };
    let limits = staging.limits();
    let lent = |job: &Job| Lent::new(limits, job);
    Ok(get_by(parts, terms(parts), &lent, request, patience))
}

/// Staged transfers are cut by the engine's loans, where it lends.
fn terms(parts: &Parts) -> Terms {
    let mut terms = parts.terms();
    if let Some(staging) = parts.calls.engine().staging() {
        terms.staged_bytes_max = staging.limits().bytes_max;
    }
    terms
}

/// The baseline: batches of keys, and per dtype one fresh allocation, one registration, one transfer.
fn land_registered(parts: &Parts, job: &mut Job, _wait: &Wait<'_>) -> Result<(), ReadError> {
    let limits = job.terms.registered_limits();
    for batch in job.waiting().chunks(parts.options.batch_keys as usize) {
        for of_one_dtype in job.of_one_dtype(batch) {
            land::in_mappings(parts, job, &of_one_dtype, TransferMode::Registered, limits)?;
        }
    }
    Ok(())
}

/// Does a put of this mode take memory for each call?
pub(crate) fn puts(parts: &Parts, mode: PutMode) -> bool {
    mode == PutMode::RegisterPerCall && parts.calls.registers()
}

/// What becomes of a read that names no delivery of its own, where it is one of these.
pub(crate) fn path_of_reads(parts: &Parts) -> Option<&'static str> {
    match parts.options.delivery {
        Delivery::RegisterPerCall if parts.calls.registers() => {
            Some("each read registers its own memory (delivery=register-per-call)")
        }
        Delivery::RegisterPerCall => {
            Some("each read takes memory of its own (delivery=register-per-call, no registration needed)")
        }
        Delivery::Auto if parts.calls.engine().staging().is_some() => {
            Some("reads are copied (the engine lends the memory for it)")
        }
        Delivery::Auto | Delivery::Leased | Delivery::Copied => None,
    }
}

/// Where copies go, for the line that is logged at open.
pub(crate) fn remark(parts: &Parts) -> String {
    parts.calls.engine().staging().map_or_else(String::new, |staging| {
        let limits = staging.limits();
        format!(
            ", copies go through leases of the engine's own pool (up to {} bytes, batches of {} keys)",
            limits.bytes_max, limits.keys_max
        )
    })
}
