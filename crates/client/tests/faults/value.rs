//! Values with recognisable bytes.

use crate::random::Random;
use std::sync::Arc;
use tensorlease::{DType, Expected, ObjectKind, TensorSpec, engine::Tag};

const DTYPES: [DType; 8] = [
    DType::U8,
    DType::Bool,
    DType::Bf16,
    DType::F32,
    DType::I64,
    DType::F8E4M3Fn,
    DType::C64,
    DType::C128,
];
/// One cache line, one page, and the limit below which `auto` copies, each with its neighbours.
/// What a read asks for that nobody put is no larger.
pub(crate) const WRONG_BYTES_MAX: u64 = 5_000;
const EDGES: [u64; 10] = [1, 63, 64, 65, 4095, 4096, 4097, 16 << 10, (16 << 10) + 1, 64 << 10];

/// One value that was, or may have been, stored.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) kind: ObjectKind,
    pub(crate) bytes: Arc<Vec<u8>>,
}

impl Value {
    /// A value of this kind; `number` makes its bytes differ from those of every other value of the program.
    pub(crate) fn new(shape: &Shape, number: u64) -> Self {
        Self {
            kind: shape.kind(),
            bytes: Arc::new(pattern(number, shape.bytes())),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// What a read that expects this kind and size may have got of it. An engine that keeps no tags only compares sizes, and there the marker of
    /// a value without bytes is a byte like any other.
    pub(crate) fn read_as(mut self, kind: &ObjectKind, len: u64, tagged: bool) -> Option<Self> {
        if !tagged && self.len() == 0 {
            self.bytes = Arc::new(vec![0]);
        }
        (self.len() == len && (!tagged || self.kind == *kind)).then_some(self)
    }

    /// Is this how an engine holds it?
    pub(crate) fn is_stored_as(&self, tag: Option<&Tag>, bytes: &[u8]) -> bool {
        let tagged = match &self.kind {
            ObjectKind::Tensor(spec) => tag == Some(spec.tag()),
            ObjectKind::Packed => tag.is_some(),
        };
        // A marker of one byte stands for a value without bytes.
        tagged && (*self.bytes == bytes || (self.bytes.is_empty() && bytes == [0]))
    }
}

/// What a value is, short enough to be read in a printed program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Tensor(DType, Vec<u64>),
    Packed(u64),
}

impl Shape {
    /// Of up to about `most` bytes.
    pub(crate) fn random(random: &mut Random, most: u64) -> Self {
        let len = match random.below(10) {
            0 => 0,
            1..=2 => random.between(1, 200),
            3..=5 => random.pick(&EDGES),
            6..=7 => random.between(1, 40_000),
            _ => random.between(1, 300_000),
        }
        .min(most);
        if random.one_in(5) {
            return Self::Packed(len);
        }
        let dtype = random.pick(&DTYPES);
        let elements = len / dtype.item_bytes();
        match random.below(4) {
            0 => Self::Tensor(dtype, Vec::new()),
            1 => Self::Tensor(dtype, vec![elements / 3, 3]),
            _ => Self::Tensor(dtype, vec![elements]),
        }
    }

    pub(crate) fn kind(&self) -> ObjectKind {
        match self {
            Self::Packed(_) => ObjectKind::Packed,
            Self::Tensor(dtype, shape) => {
                let spec = TensorSpec::new(*dtype, shape).expect("small enough for an address");
                ObjectKind::Tensor(Arc::new(spec))
            }
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Packed(len) => *len,
            Self::Tensor(dtype, shape) => dtype.item_bytes() * shape.iter().product::<u64>(),
        }
    }
}

/// What a read asks for to get a value of this kind and size.
pub(crate) fn expected(kind: &ObjectKind, len: u64) -> Expected {
    match kind {
        ObjectKind::Tensor(spec) => Expected::Tensor(Arc::clone(spec)),
        ObjectKind::Packed => Expected::Packed(len),
    }
}

/// Bytes that differ from number to number and from place to place.
fn pattern(number: u64, len: u64) -> Vec<u8> {
    // A tile of a prime length: shifted by a page, a cache line or a block the bytes are others.
    const TILE_BYTES: usize = 4099;
    let len = usize::try_from(len).expect("a value of this suite is small");
    let mut random = Random::new(number);
    let mut bytes: Vec<u8> = Vec::with_capacity(len.min(TILE_BYTES) + 8);
    while bytes.len() < len.min(TILE_BYTES) {
        bytes.extend_from_slice(&random.number().to_le_bytes());
    }
    bytes.truncate(TILE_BYTES);
    let mut bytes = bytes.repeat(len.div_ceil(TILE_BYTES));
    bytes.truncate(len);
    bytes
}
