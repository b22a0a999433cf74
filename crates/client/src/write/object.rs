//! What a put is to store.

use crate::{
    CallError, ObjectKind, PutItem, Segment, TensorSpec,
    error::quoted,
    keys,
    spec::{ZERO_MARKER, packed_empty_tag, packed_tag},
};
use std::{collections::HashSet, sync::Arc};
use tensorlease_engine::Tag;
use tensorlease_memory::{Region, Source};

/// One object on its way.
#[derive(Debug)]
pub(crate) struct Object {
    /// With the namespace.
    pub(crate) key: String,
    pub(crate) segments: Vec<Segment>,
    kind: Kind,
    pub(crate) len: u64,
}

impl Object {
    pub(super) fn tag(&self) -> &Tag {
        match &self.kind {
            Kind::Tensor(spec) => spec.tag(),
            Kind::Packed(tag) => tag,
        }
    }

    /// Its bytes, in order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        let segments = self.segments.iter().filter(|segment| !segment.is_empty());
        segments.map(|segment| match segment {
            Segment::Caller(foreign) | Segment::Leased(foreign) => foreign.source(0..foreign.len()),
            Segment::Owned(bytes) => Source::from(bytes.as_slice()),
            Segment::Buffer(buffer) => Source::from(buffer.as_slice()),
        })
    }

    /// Does every segment lie in live blocks of the arena? Then it is registered already.
    pub(super) fn lies_in(&self, arena: impl Fn(Region) -> bool) -> bool {
        self.segments.iter().all(|segment| match segment {
            Segment::Caller(foreign) => foreign.is_empty() || arena(foreign.region()),
            Segment::Leased(_) => true,
            Segment::Owned(bytes) => bytes.is_empty(),
            Segment::Buffer(buffer) => buffer.is_empty() || arena(buffer.region()),
        })
    }
}

/// A spec goes with its object, so that those of ragged rows are freed beside other calls that still move bytes.
#[derive(Debug)]
enum Kind {
    Tensor(Arc<TensorSpec>),
    Packed(Tag),
}

/// The objects of a put; every item is checked before anything is written.
pub(super) fn checked(namespace: &str, items: Vec<PutItem>) -> Result<Vec<Object>, CallError> {
    let invalid = |message: String| Err(CallError::Invalid { message });
    let mut seen = HashSet::with_capacity(items.len());
    for item in &items {
        keys::check(&item.key)?;
        let len = item.bytes();
        if !seen.insert(item.key.as_str()) {
            let key = quoted(&item.key);
            return invalid(format!("key {key} comes twice in one put; put each key once"));
        }
        if let ObjectKind::Tensor(spec) = &item.kind
            && spec.bytes() != len
        {
            return invalid(format!(
                "key {}: {} has {} bytes, its value {len}",
                quoted(&item.key),
                spec.words(),
                spec.bytes()
            ));
        }
    }
    let (packed, packed_empty) = (packed_tag(), packed_empty_tag());
    let object = |item: PutItem| {
        let len = item.bytes();
        let kind = match item.kind {
            ObjectKind::Tensor(spec) => Kind::Tensor(spec),
            ObjectKind::Packed if len == 0 => Kind::Packed(packed_empty.clone()),
            ObjectKind::Packed => Kind::Packed(packed.clone()),
        };
        // A value of zero bytes never reaches the engine. A marker says that it is there.
        let (segments, len) = match len {
            0 => (vec![Segment::Owned(ZERO_MARKER.to_vec())], ZERO_MARKER.len() as u64),
            len => (item.segments, len),
        };
        Object {
            key: keys::namespaced(namespace, item.key),
            segments,
            kind,
            len,
        }
    };
    Ok(items.into_iter().map(object).collect())
}
