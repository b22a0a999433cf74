//! How many objects, and bytes, lie under each namespace.
use super::object::Object;
use crate::wire::{NamespaceRow, StoreCounts, beginning};
use std::collections::HashMap;
use tensorlease_engine::ObjectIndex;

/// Most namespaces in a report. The others are the rest of its sums.
const NAMESPACES_MAX: usize = 64;
/// A longer name is cut.
const NAME_BYTES_MAX: usize = 256;

/// The namespaces that hold the most bytes, those first. A key's namespace ends with its first `/`.
pub(super) fn rows(index: &ObjectIndex<Object>) -> Vec<NamespaceRow> {
    let mut counted: HashMap<String, StoreCounts> = HashMap::new();
    index.each(|key, object| {
        let name = key.find('/').map_or("", |slash| &key[..=slash]);
        let name = beginning(name, NAME_BYTES_MAX);
        if !counted.contains_key(name) {
            counted.insert(name.to_owned(), StoreCounts::default());
        }
        if let Some(counts) = counted.get_mut(name) {
            counts.objects += 1;
            counts.object_bytes += object.len;
        }
    });
    let row = |(namespace, counts)| NamespaceRow { namespace, counts };
    let mut rows: Vec<_> = counted.into_iter().map(row).collect();
    rows.sort_unstable_by(|a, b| (b.counts.object_bytes, &a.namespace).cmp(&(a.counts.object_bytes, &b.namespace)));
    rows.truncate(NAMESPACES_MAX);
    rows
}
