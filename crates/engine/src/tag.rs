//! What kind of value an object is.

/// Dtype and shape of a value, encoded by the client: opaque bytes to the engine, compared for equality only.
///
/// Cheap to clone: 16,384 of them go with one read, most of them equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tag(std::sync::Arc<[u8]>);

impl Tag {
    /// A tag that holds a copy of `bytes` (which may be empty).
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// The bytes given to [`Tag::new`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
