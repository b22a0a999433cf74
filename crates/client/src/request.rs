//! What is asked of a store, and what comes back.

use crate::{Delivery, TensorSpec};
use std::{ops::Range, sync::Arc};
use tensorlease_memory::{Buffer, CallerMemory};

/// What the reader expects under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A tensor of this dtype and shape.
    Tensor(Arc<TensorSpec>),
    /// A value that is no tensor, of this many bytes.
    Packed(u64),
    /// Whatever is there: the engine is asked first (it must describe its objects).
    Described,
}

impl Expected {
    /// Bytes of the value; 0 where only the engine knows.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Tensor(spec) => spec.bytes(),
            Self::Packed(bytes) => *bytes,
            Self::Described => 0,
        }
    }
}

/// One key to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadItem {
    /// Without the namespace.
    pub key: String,
    /// What must be there.
    pub expected: Expected,
}

impl ReadItem {
    /// A tensor under `key`.
    pub fn tensor(key: impl Into<String>, spec: Arc<TensorSpec>) -> Self {
        Self {
            key: key.into(),
            expected: Expected::Tensor(spec),
        }
    }
}

/// One read.
#[derive(Debug, Default)]
pub struct ReadRequest {
    /// The keys, in the order of the answer. The same key twice is fetched once and delivered twice.
    pub items: Vec<ReadItem>,
    /// Ranges of items that land back to back in one buffer each: disjoint and ascending. Items in none are delivered alone.
    pub batches: Vec<Range<usize>>,
    /// `None`: the store's default.
    pub delivery: Option<Delivery>,
    /// One destination per item, or none at all. With destinations, `batches` is empty and `delivery` is ignored.
    pub into: Vec<CallerMemory>,
    /// With `into`: transfers write the caller's memory directly, which may then still change after a timeout.
    pub direct: bool,
}

impl ReadRequest {
    /// This request for other items, without destinations.
    pub(crate) fn with(&self, items: Vec<ReadItem>) -> Self {
        Self {
            items,
            batches: self.batches.clone(),
            delivery: self.delivery,
            into: Vec::new(),
            direct: self.direct,
        }
    }
}

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A tensor.
    Tensor(Arc<TensorSpec>),
    /// A value that is no tensor, in the encoding of its writer.
    Packed,
}

/// What was found under a key.
#[derive(Debug)]
pub struct ReadValue {
    /// Tensor or not.
    pub kind: ObjectKind,
    /// The bytes. `None` for a value of zero bytes, for an item of a batch, and where the request named destinations.
    pub buffer: Option<Buffer>,
}

/// Answer of a read.
#[derive(Debug, Default)]
pub struct ReadOutput {
    /// In the order of the request's items.
    pub values: Vec<ReadValue>,
    /// In the order of the request's batches; `None` where a batch has zero bytes.
    pub batches: Vec<Option<Buffer>>,
}

/// A piece of a value to store.
#[derive(Debug)]
pub enum Segment {
    /// Memory of the caller, sent as it is where the engine can.
    Caller(CallerMemory),
    /// As `Caller`, of which [`Store::owns`](crate::Store::owns) has said that it lies in a live block of the arena, which it keeps alive: not asked again.
    Leased(CallerMemory),
    /// Bytes given away.
    Owned(Vec<u8>),
    /// A buffer of [`Store::empty`](crate::Store::empty) or of a read, which the caller may keep: sent without a copy and
    /// without a registration where it is leased.
    Buffer(Arc<Buffer>),
}

impl Segment {
    /// Bytes of this piece.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Caller(foreign) | Self::Leased(foreign) => foreign.len(),
            Self::Owned(bytes) => bytes.len(),
            Self::Buffer(buffer) => buffer.len(),
        }
    }

    /// No bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One object to store.
#[derive(Debug)]
pub struct PutItem {
    /// Without the namespace.
    pub key: String,
    /// Gathered in this order. Zero bytes in all is fine.
    pub segments: Vec<Segment>,
    /// A tensor's segments must sum to the size of its spec.
    pub kind: ObjectKind,
}

impl PutItem {
    /// A tensor from owned bytes.
    pub fn tensor(key: impl Into<String>, spec: Arc<TensorSpec>, bytes: Vec<u8>) -> Self {
        Self {
            key: key.into(),
            segments: vec![Segment::Owned(bytes)],
            kind: ObjectKind::Tensor(spec),
        }
    }

    /// A tensor that lies in a buffer.
    pub fn tensor_in(key: impl Into<String>, spec: Arc<TensorSpec>, buffer: Arc<Buffer>) -> Self {
        Self {
            key: key.into(),
            segments: vec![Segment::Buffer(buffer)],
            kind: ObjectKind::Tensor(spec),
        }
    }

    /// A value that is no tensor.
    pub fn packed(key: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self {
            key: key.into(),
            segments: vec![Segment::Owned(bytes)],
            kind: ObjectKind::Packed,
        }
    }

    /// Size of the object, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len() as u64).sum()
    }
}

/// How the bytes of a put reach the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PutMode {
    /// Memory of the arena as it lies, all other through a staging block.
    #[default]
    Staged,
    /// The baseline of the benchmarks, the way of `TransferQueue`'s client today: batches of `batch_keys` keys, whose own memory is registered
    /// for the batch.
    RegisterPerCall,
}

/// What is under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Tensor or not.
    pub kind: ObjectKind,
    /// Size of the value, bytes.
    pub bytes: u64,
}
