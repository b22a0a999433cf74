//! The keys of one read and what is expected under each: shared by its caller and its workers.

use crate::{
    ObjectKind,
    spec::{packed_empty_tag, packed_tag},
};
use tensorlease_engine::Tag;
use tensorlease_memory::View;

/// The object that stands for a value of zero bytes.
pub(crate) const ZERO_MARKER: [u8; 1] = [0];

/// One key.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// Bytes of the value.
    pub(crate) len: u64,
    pub(crate) kind: ObjectKind,
}

/// All keys of one read, in the order of the request.
#[derive(Debug)]
pub(crate) struct Items {
    /// With the namespace.
    pub(crate) keys: Vec<String>,
    pub(crate) items: Vec<Item>,
    pub(crate) namespace_len: usize,
    /// Does the engine compare tags?
    pub(crate) tagged: bool,
    /// The very objects, where they are held for this read, each at the first item of its key; `None` at the others, and for a value of zero bytes.
    pub(crate) held: Option<Vec<Option<View>>>,
    packed: Tag,
    packed_empty: Tag,
}

impl Items {
    pub(crate) fn new(keys: Vec<String>, items: Vec<Item>, namespace_len: usize, tagged: bool) -> Self {
        assert!(keys.len() == items.len(), "one item per key");
        Self {
            keys,
            items,
            namespace_len,
            tagged,
            held: None,
            packed: packed_tag(),
            packed_empty: packed_empty_tag(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The key as the user wrote it.
    pub(crate) fn name(&self, item: usize) -> &str {
        &self.keys[item][self.namespace_len..]
    }

    /// What the engine must find under the key.
    pub(crate) fn tag(&self, item: usize) -> Option<&Tag> {
        self.tagged.then(|| match &self.items[item].kind {
            ObjectKind::Tensor(spec) => spec.tag(),
            ObjectKind::Packed if self.items[item].len == 0 => &self.packed_empty,
            ObjectKind::Packed => &self.packed,
        })
    }

    /// Which items may share one registration: the dtype, or "no tensor".
    pub(crate) fn dtype_code(&self, item: usize) -> u32 {
        match &self.items[item].kind {
            ObjectKind::Tensor(spec) => u32::from(spec.dtype().code()),
            ObjectKind::Packed => u32::MAX,
        }
    }
}
