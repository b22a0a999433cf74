//! What a packed tree (the msgpack part of a value that is no tensor) holds, found without making objects and without
//! recursion.
use pyo3::{exceptions::PyValueError, prelude::*};

/// Most levels of containers inside each other. Reading takes no stack for them; freeing, hashing and comparing what
/// was read does, in Python and numpy: so many fit into the smallest stacks that threads are given.
const LEVELS_MAX: usize = 1024;
/// More levels for an array of objects than those of its packed form, which are two: numpy takes more than a KiB of
/// stack to free each.
const OBJECT_ARRAY_LEVELS: usize = 8;

/// Codes of the format's extension types; `tensorlease.codec` says what each is.
const CODES: std::ops::RangeInclusive<i8> = 1..=12;
const OBJECT_ARRAY: i8 = 6;
/// Its content is no tree.
const PICKLE: i8 = 9;

/// Something whose values are not all read.
struct Open {
    values_left: usize,
    /// Where its bytes end, at the latest.
    end: usize,
    /// It is an extension value, which ends exactly there.
    exact: bool,
    levels: usize,
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    open: Vec<Open>,
    levels: usize,
    extensions: usize,
}

/// How many extension values a packed tree has.
///
/// Raises `ValueError`: it is no whole tree, or deeper than is read.
#[pyfunction]
pub(crate) fn count_extensions(tree: &[u8]) -> PyResult<usize> {
    let mut scan = Scan {
        bytes: tree,
        at: 0,
        open: Vec::new(),
        levels: 0,
        extensions: 0,
    };
    scan.run().map_err(PyValueError::new_err)?;
    Ok(scan.extensions)
}

impl Scan<'_> {
    fn run(&mut self) -> Result<(), String> {
        let end = self.bytes.len();
        self.enter(1, end, false, 0)?;
        while let Some(top) = self.open.last_mut() {
            if top.values_left > 0 {
                top.values_left -= 1;
                let end = top.end;
                self.value(end)?;
                continue;
            }
            if top.exact && self.at != top.end {
                return Err("an extension value of another length than it says".to_owned());
            }
            self.levels -= top.levels;
            self.open.pop();
        }
        if self.at == end {
            Ok(())
        } else {
            Err("more bytes than its values".to_owned())
        }
    }

    /// One value, or the head of one that holds others.
    fn value(&mut self, end: usize) -> Result<(), String> {
        match self.number(1, end)? {
            0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => Ok(()),
            head @ 0x80..=0x8f => self.container(2 * (head & 0x0f), end),
            head @ 0x90..=0x9f => self.container(head & 0x0f, end),
            head @ 0xa0..=0xbf => self.skip(head & 0x1f, end),
            head @ (0xc4..=0xc6 | 0xd9..=0xdb) => {
                let width = 1 << ((head - 0xc4) % 7);
                let length = self.number(width, end)?;
                self.skip(length, end)
            }
            head @ 0xc7..=0xc9 => {
                let length = self.number(1 << (head - 0xc7), end)?;
                self.extension(length, end)
            }
            head @ 0xca..=0xcb => self.skip(4 << (head - 0xca), end),
            head @ 0xcc..=0xcf => self.skip(1 << (head - 0xcc), end),
            head @ 0xd0..=0xd3 => self.skip(1 << (head - 0xd0), end),
            head @ 0xd4..=0xd8 => self.extension(1 << (head - 0xd4), end),
            head @ 0xdc..=0xdd => {
                let count = self.number(2 << (head - 0xdc), end)?;
                self.container(count, end)
            }
            head @ 0xde..=0xdf => {
                let count = self.number(2 << (head - 0xde), end)?;
                self.container(2 * count, end)
            }
            head => Err(format!("a byte {head:#04x} where a value begins")),
        }
    }

    fn container(&mut self, values: usize, end: usize) -> Result<(), String> {
        // Each has a byte at least.
        if values > end - self.at {
            return Err("cut short".to_owned());
        }
        self.enter(values, end, false, 1)
    }

    fn extension(&mut self, length: usize, end: usize) -> Result<(), String> {
        let code = self.number(1, end)?.to_le_bytes()[0].cast_signed();
        self.extensions += 1;
        let start = self.at;
        self.skip(length, end)?;
        if !CODES.contains(&code) || code == PICKLE {
            return Ok(());
        }
        self.at = start;
        let levels = if code == OBJECT_ARRAY { OBJECT_ARRAY_LEVELS } else { 0 };
        self.enter(1, start + length, true, levels)
    }

    fn enter(&mut self, values_left: usize, end: usize, exact: bool, levels: usize) -> Result<(), String> {
        self.levels += levels;
        // Extension values that hold nothing but each other are no levels, and no value of ours has them.
        if self.levels > LEVELS_MAX || self.open.len() > 2 * LEVELS_MAX + 2 {
            return Err(format!("more than {LEVELS_MAX} levels of containers inside each other"));
        }
        self.open.push(Open {
            values_left,
            end,
            exact,
            levels,
        });
        Ok(())
    }

    /// A big-endian number of `width` bytes.
    fn number(&mut self, width: usize, end: usize) -> Result<usize, String> {
        let start = self.at;
        self.skip(width, end)?;
        Ok(self.bytes[start..self.at]
            .iter()
            .fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn skip(&mut self, length: usize, end: usize) -> Result<(), String> {
        if length > end - self.at {
            return Err("cut short".to_owned());
        }
        self.at += length;
        Ok(())
    }
}

/// The bound of what `count_extensions` takes.
#[pyfunction]
pub(crate) fn levels_max() -> usize {
    LEVELS_MAX
}
