//! The keys of one read and what is expected under each: shared by its caller and its workers.

use crate::{
    Expected, ObjectKind, ReadItem, keys,
    spec::{ZERO_MARKER, packed_empty_tag, packed_tag},
};
use tensorlease_engine::Tag;
use tensorlease_memory::View;

/// One key.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// Bytes of the value.
    pub(crate) len: u64,
    pub(crate) kind: ObjectKind,
}

impl From<Expected> for Item {
    fn from(expected: Expected) -> Self {
        let len = expected.bytes();
        let kind = match expected {
            Expected::Tensor(spec) => ObjectKind::Tensor(spec),
            Expected::Packed(_) => ObjectKind::Packed,
            Expected::Described => unreachable!("described items are replaced by what the engine said"),
        };
        Self { len, kind }
    }
}

/// All keys of one read, in the order of the request.
#[derive(Debug)]
pub(crate) struct Items {
    /// With the namespace.
    pub(super) keys: Vec<String>,
    pub(super) items: Vec<Item>,
    namespace_len: usize,
    /// Does the engine compare tags?
    pub(super) tagged: bool,
    /// The very objects, where they are held for this read, each at the first item of its key; `None` at the others, and for a value of zero bytes.
    pub(super) held: Option<Vec<Option<View>>>,
    packed: Tag,
    packed_empty: Tag,
}

impl Items {
    /// `tagged`: the engine knows shapes and dtypes. `held`: the objects themselves, one for each item, where the engine holds them for this read.
    pub(crate) fn new(namespace: &str, items: Vec<ReadItem>, tagged: bool, held: Option<Vec<Option<View>>>) -> Self {
        let named = |item: ReadItem| (keys::namespaced(namespace, item.key), Item::from(item.expected));
        let (keys, items) = items.into_iter().map(named).unzip();
        Self {
            keys,
            items,
            namespace_len: namespace.len(),
            tagged,
            held,
            packed: packed_tag(),
            packed_empty: packed_empty_tag(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Bytes of the value.
    pub(crate) fn len_of(&self, item: u32) -> u64 {
        self.items[item as usize].len
    }

    /// The key as the user wrote it.
    pub(crate) fn name(&self, item: usize) -> &str {
        &self.keys[item][self.namespace_len..]
    }

    /// Size of the object that the engine must find under the key. A marker stands for a value of zero bytes.
    pub(super) fn object_len(&self, item: usize) -> u64 {
        self.items[item].len.max(ZERO_MARKER.len() as u64)
    }

    /// What the engine must find under the key.
    pub(super) fn tag(&self, item: usize) -> Option<&Tag> {
        self.tagged.then(|| match &self.items[item].kind {
            ObjectKind::Tensor(spec) => spec.tag(),
            ObjectKind::Packed if self.items[item].len == 0 => &self.packed_empty,
            ObjectKind::Packed => &self.packed,
        })
    }

    /// Which items may share one registration: the dtype, or "no tensor".
    pub(super) fn dtype_code(&self, item: usize) -> u32 {
        match &self.items[item].kind {
            ObjectKind::Tensor(spec) => u32::from(spec.dtype().code()),
            ObjectKind::Packed => u32::MAX,
        }
    }
}
