//! What can be refused before anything is touched.

use crate::{CallError, ReadRequest, error::quoted, request::Expected};

/// Longest key, bytes of UTF-8: 10,000 characters of any language.
const KEY_BYTES_MAX: usize = 40_000;

/// Lengths, batches and keys of a read.
pub(super) fn arguments(request: &ReadRequest) -> Result<(), CallError> {
    let invalid = |message: String| Err(CallError::Invalid { message });
    for item in &request.items {
        key(&item.key)?;
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
        let expected = match &item.expected {
            Expected::Tensor(spec) => spec.bytes(),
            Expected::Packed(bytes) => *bytes,
            Expected::Described => continue,
        };
        if expected != destination.len() as u64 {
            let (key, len) = (quoted(&item.key), destination.len());
            let message = format!("key {key} has {expected} bytes, its destination {len}; they must be equal");
            return Err(CallError::Invalid { message });
        }
    }
    Ok(())
}

/// Keys are 1 to 40,000 bytes of UTF-8.
pub(crate) fn key(key: &str) -> Result<(), CallError> {
    if key.is_empty() {
        return Err(CallError::Invalid {
            message: "a key is empty; keys have at least one character".to_owned(),
        });
    }
    if KEY_BYTES_MAX < key.len() {
        let (key, len) = (quoted(key), key.len());
        let message = format!("key {key} has {len} bytes of UTF-8; at most {KEY_BYTES_MAX} are allowed");
        return Err(CallError::Invalid { message });
    }
    Ok(())
}
