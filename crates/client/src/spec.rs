//! dtype and shape of one tensor.

use crate::DType;
use tensorlease_engine::Tag;

/// First byte of a type tag: what the object is.
const TENSOR: u8 = b'T';
/// First byte of the tag of a value that is no tensor.
const PACKED: u8 = b'P';
/// First byte of the tag of such a value of zero bytes: a marker is stored for it.
const PACKED_EMPTY: u8 = b'E';

/// The object that stands for a value of zero bytes.
pub(crate) const ZERO_MARKER: [u8; 1] = [0];

/// Why there is no such tensor.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// dtype x shape overflows.
    #[error("shape {shape:?} of {dtype} needs more bytes than a process can address")]
    Overflow {
        /// The shape asked for.
        shape: Vec<u64>,
        /// Its dtype.
        dtype: &'static str,
    },
    /// An object's tag is none that this version writes.
    #[error("the stored type tag can't be read; the object was written by another version or another client")]
    BadTag,
}

/// dtype, shape, size and type tag of a tensor. Make one per distinct shape and share it: a read holds one per key.
#[derive(Debug, PartialEq, Eq)]
pub struct TensorSpec {
    dtype: DType,
    shape: Box<[u64]>,
    bytes: u64,
    tag: Tag,
}

impl TensorSpec {
    /// # Errors
    /// [`SpecError::Overflow`] when the bytes don't fit into an address.
    pub fn new(dtype: DType, shape: &[u64]) -> Result<Self, SpecError> {
        let overflow = || SpecError::Overflow {
            shape: shape.to_vec(),
            dtype: dtype.name(),
        };
        let bytes = tensorlease_arena::plan::tensor_bytes(shape, dtype.item_bytes()).ok_or_else(overflow)?;
        let mut tag = Vec::with_capacity(2 + shape.len() * 8);
        tag.push(TENSOR);
        tag.push(dtype.code());
        for dimension in shape {
            tag.extend_from_slice(&dimension.to_le_bytes());
        }
        Ok(Self {
            dtype,
            shape: shape.into(),
            bytes,
            tag: Tag::new(&tag),
        })
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extent of each dimension; empty for a scalar.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Size, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the engine stores beside the object and compares at reads.
    #[must_use]
    pub fn tag(&self) -> &Tag {
        &self.tag
    }

    /// As people write it: `float32 (3, 4)`.
    #[must_use]
    pub fn words(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        match shape.as_slice() {
            [len] => format!("{} ({len},)", self.dtype.name()),
            _ => format!("{} ({})", self.dtype.name(), shape.join(", ")),
        }
    }
}

/// The tag of a value that is no tensor.
pub(crate) fn packed_tag() -> Tag {
    Tag::new(&[PACKED])
}

/// The tag of a value that is no tensor and has no bytes. A tensor's own tag tells as much by its shape.
pub(crate) fn packed_empty_tag() -> Tag {
    Tag::new(&[PACKED_EMPTY])
}

/// What a tag says. `Ok(None)`: a value that is no tensor.
pub(crate) fn from_tag(tag: &Tag) -> Result<Option<TensorSpec>, SpecError> {
    match tag.as_bytes() {
        [PACKED | PACKED_EMPTY] => Ok(None),
        [TENSOR, code, shape @ ..] => {
            let (dimensions, rest) = shape.as_chunks::<8>();
            if !rest.is_empty() {
                return Err(SpecError::BadTag);
            }
            let shape: Vec<u64> = dimensions
                .iter()
                .map(|dimension| u64::from_le_bytes(*dimension))
                .collect();
            TensorSpec::new(DType::from_code(*code).ok_or(SpecError::BadTag)?, &shape).map(Some)
        }
        _ => Err(SpecError::BadTag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_leads_back_to_its_spec() {
        for shape in [&[][..], &[0], &[3, 4], &[1, 0, 7]] {
            let spec = TensorSpec::new(DType::Bf16, shape).unwrap();
            assert_eq!(
                from_tag(spec.tag()),
                Ok(Some(TensorSpec::new(DType::Bf16, shape).unwrap()))
            );
        }
        assert_eq!(from_tag(&packed_tag()), Ok(None));
        assert_eq!(from_tag(&packed_empty_tag()), Ok(None));
    }

    #[test]
    fn foreign_tags_are_refused() {
        for tag in [&[][..], b"X", b"T", b"T\xff", b"T\x01\x01\x02"] {
            assert_eq!(from_tag(&Tag::new(tag)), Err(SpecError::BadTag), "{tag:?}");
        }
    }

    #[test]
    fn a_shape_that_overflows_is_refused() {
        let error = TensorSpec::new(DType::F32, &[u64::MAX, 2]).unwrap_err();
        assert!(matches!(error, SpecError::Overflow { .. }));
        assert!(TensorSpec::new(DType::F32, &[1 << 62]).is_err());
    }
}
