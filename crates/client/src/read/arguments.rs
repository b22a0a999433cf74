//! What can be refused before anything is touched.

use crate::{CallError, Expected, ReadRequest, error::quoted, keys};

/// Lengths, batches and keys of a read.
pub(super) fn check(request: &ReadRequest) -> Result<(), CallError> {
    let invalid = |message: String| Err(CallError::Invalid { message });
    for item in &request.items {
        keys::check(&item.key)?;
    }
    if !request.into.is_empty() {
        return into(request);
    }
    let mut end = 0;
    for batch in &request.batches {
        if batch.start < end || batch.end < batch.start || request.items.len() < batch.end {
            return invalid(format!(
                "batches must be ascending, disjoint ranges of the items; found {batch:?} after {end}"
            ));
        }
        end = batch.end;
    }
    Ok(())
}

fn into(request: &ReadRequest) -> Result<(), CallError> {
    let (items, into) = (request.items.len(), request.into.len());
    if items != into || !request.batches.is_empty() {
        let message =
            format!("{into} destinations for {items} keys; get_into takes one destination per key and no batches");
        return Err(CallError::Invalid { message });
    }
    for (item, destination) in request.items.iter().zip(&request.into) {
        let expected = item.expected.bytes();
        if item.expected == Expected::Described {
            continue;
        }
        if expected != destination.len() as u64 {
            let (key, len) = (quoted(&item.key), destination.len());
            let message = format!("key {key} has {expected} bytes, its destination {len}; they must be equal");
            return Err(CallError::Invalid { message });
        }
    }
    Ok(())
}
