//! Numbers, strings and lists in a body.
/// Longest key, bytes.
pub(crate) const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Longest tag, bytes.
pub(crate) const TAG_BYTES_MAX: usize = 1024;
/// Most keys, tickets or blocks in one list of a request. It bounds the answer too.
pub const LIST_MAX: usize = 1024;

/// Memory of the daemon's arena. The generation tells the present owner of these bytes from earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Number of the slab.
    pub slab: u32,
    /// First byte, from the slab's beginning.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// Generation of the block.
    pub generation: u32,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The body is longer than any may be.
    #[error("a message of {len} bytes is longer than any may be")]
    TooLong {
        /// As announced.
        len: usize,
    },
    /// The body ends before its last field.
    #[error("a message ends before its last field")]
    Truncated,
    /// Bytes follow the last field.
    #[error("{bytes} bytes follow the last field of a message")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// There is no such kind of message.
    #[error("there is no message of kind {kind}")]
    UnknownKind {
        /// As sent.
        kind: u8,
    },
    /// A field has a value that it can't have.
    #[error("a message has a field that makes no sense: {field}")]
    BadField {
        /// Its name.
        field: &'static str,
    },
}

/// What is left of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let bytes = self.bytes(N)?;
        bytes.try_into().map_err(|_| WireError::Truncated)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn flag(&mut self, field: &'static str) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::BadField { field }),
        }
    }

    /// Bytes behind a length of 16 bits.
    pub(super) fn short(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.u16()?;
        self.bytes(usize::from(len))
    }

    pub(super) fn tag(&mut self) -> Result<&'a [u8], WireError> {
        let tag = self.short()?;
        if TAG_BYTES_MAX < tag.len() {
            return Err(WireError::BadField { field: "tag" });
        }
        Ok(tag)
    }

    pub(super) fn text(&mut self, field: &'static str) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.short()?).map_err(|_| WireError::BadField { field })
    }

    /// A flag, and what follows where it is set.
    pub(super) fn option<T>(
        &mut self,
        field: &'static str,
        item: impl FnOnce(&mut Self) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        self.flag(field)?.then(|| item(self)).transpose()
    }

    /// A list: its length, and that many items of at least `least` bytes each.
    pub(super) fn list<T>(
        &mut self,
        least: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = self.u32()? as usize;
        if self.rest.len() / least < count {
            return Err(WireError::Truncated);
        }
        if LIST_MAX < count {
            return Err(WireError::BadField {
                field: "length of a list",
            });
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    pub(super) fn position(&mut self) -> Result<Position, WireError> {
        Ok(Position {
            slab: self.u32()?,
            offset: self.u64()?,
            len: self.u64()?,
            generation: self.u32()?,
        })
    }

    pub(super) fn end(self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(WireError::Trailing { bytes }),
        }
    }
}

/// The beginning of a text that may be too long.
pub(crate) fn beginning(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

pub(super) fn put_position(out: &mut Vec<u8>, position: Position) {
    put_u32(out, position.slab);
    put_u64(out, position.offset);
    put_u64(out, position.len);
    put_u32(out, position.generation);
}

pub(super) fn put_u16(out: &mut Vec<u8>, number: u16) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Bytes behind a length of 16 bits. The caller has checked that they are not longer.
pub(super) fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    debug_assert!(bytes.len() <= KEY_BYTES_MAX);
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    put_u16(out, len);
    out.extend_from_slice(&bytes[..usize::from(len)]);
}

pub(super) fn put_option<T>(out: &mut Vec<u8>, item: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(item.is_some()));
    if let Some(item) = item {
        put(out, item);
    }
}

pub(super) fn put_list<T>(out: &mut Vec<u8>, items: &[T], mut put: impl FnMut(&mut Vec<u8>, &T)) {
    put_u32(out, u32::try_from(items.len()).unwrap_or(u32::MAX));
    for each in items {
        put(out, each);
    }
}
