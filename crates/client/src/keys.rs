//! Names of objects: what a key may be, and its namespace.

use crate::{CallError, error::quoted};

/// Longest key, bytes of UTF-8: 10,000 characters of any language.
const KEY_BYTES_MAX: usize = 40_000;

/// Keys are 1 to 40,000 bytes of UTF-8.
pub(crate) fn check(key: &str) -> Result<(), CallError> {
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

/// The key as the engine knows it.
pub(crate) fn namespaced(namespace: &str, key: String) -> String {
    if namespace.is_empty() {
        key
    } else {
        [namespace, &key].concat()
    }
}

/// The keys as the engine knows them.
pub(crate) fn all_namespaced(namespace: &str, keys: &[String]) -> Vec<String> {
    keys.iter().map(|key| [namespace, key].concat()).collect()
}
