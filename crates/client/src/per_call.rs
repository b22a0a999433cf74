//! Reads and writes that take memory for each call, as clients without an arena do: on loan from the engine's own pool (`pool=store`), or registered
//! for the call (`register-per-call`, the baseline of the benchmarks).
//!
//! They stand beside the reads and writes of the arena and use their mechanisms. Nothing in those knows of them: `store.rs` chooses, `open.rs` tells.

mod lent;
mod loan;
mod read;
mod write;

pub(crate) use write::put;

use crate::{Delivery, Patience, PutMode, ReadError, ReadOutput, ReadRequest, parts::Parts, read::get as get_by};
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
        return Ok(get_by::<read::Registered>(parts, request, patience));
    }
    if loan::lends(parts) {
        return Ok(get_by::<lent::Lent>(parts, request, patience));
    }
    Err(request)
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
        Delivery::Auto if loan::lends(parts) => Some("reads are copied (the engine lends the memory for it)"),
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
