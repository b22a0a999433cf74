//! An engine under test, and memory that it accepts.
use crate::{Engine, Fault, FaultKind, ReadOp, Registration, Tag, WriteOp};
use std::ops::Range;
use std::sync::Arc;
use tensorlease_memory::{
    CopyMode, Mapping, MappingKind, Region, SlabMemory, SlabSource, Source, Target, copy, limits::page_bytes,
};

/// Makes a fresh engine for each check. `None`: this engine can't exist on this machine; the check then passes without
/// having run, so the factory should say why (or panic where that must not happen).
pub type Factory<'a> = dyn Fn() -> Option<Rig> + 'a;

/// One fresh engine and what a check needs to use it.
pub struct Rig {
    engine: Arc<dyn Engine>,
    capacity_bytes: Option<u64>,
    key_prefix: String,
}

impl Rig {
    /// An engine that is empty.
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self {
            engine,
            capacity_bytes: None,
            key_prefix: String::new(),
        }
    }

    /// Bytes after which the engine says `Full`; without it the checks of a full store are skipped.
    #[must_use]
    pub fn with_capacity(self, capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes: Some(capacity_bytes),
            ..self
        }
    }

    /// A prefix of all keys, for engines that share a store with others.
    #[must_use]
    pub fn with_key_prefix(self, key_prefix: impl Into<String>) -> Self {
        Self {
            key_prefix: key_prefix.into(),
            ..self
        }
    }

    /// The engine.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub(super) fn capacity_bytes(&self) -> Option<u64> {
        self.capacity_bytes
    }

    /// A key of this rig.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.key_prefix)
    }

    /// At least `len` bytes, registered with the engine where it wants that: of its own slabs where it makes any, as a client's are.
    ///
    /// # Panics
    /// Where the memory can't be had or registered.
    pub fn memory(&self, len: usize) -> RigMemory {
        let late = self.engine.capabilities().late_writes;
        if self.engine.capabilities().registration == Registration::Free {
            let mut memory = RigMemory::unregistered(len);
            memory.written_late = late;
            return memory;
        }
        let mut memory = match self.engine.slabs() {
            Some(slabs) => RigMemory::lent(&*slabs, len),
            None => RigMemory::unregistered(len),
        };
        memory.written_late = late;
        let region = memory.region();
        if let Err(error) = self.engine.register(region) {
            panic!(
                "{} bytes for a check can't be registered: {error} ({:?})",
                region.len, error
            );
        }
        memory.registered_with = Some(Arc::clone(&self.engine));
        memory
    }

    /// Writes `bytes` as one object of one segment.
    ///
    /// # Errors
    /// The fault of the key.
    pub fn write(&self, key: &str, bytes: &[u8], tag: &Tag) -> Result<(), Fault> {
        let memory = self.memory(bytes.len());
        memory.fill(0, bytes);
        self.write_segments(key, &[memory.source(0..bytes.len())], tag)
    }

    pub(super) fn write_segments(&self, key: &str, segments: &[Source<'_>], tag: &Tag) -> Result<(), Fault> {
        only(self.engine.write_batch(&[WriteOp { key, segments, tag }]))
    }

    /// Writes an object that a check needs.
    ///
    /// # Panics
    /// Where it can't be written.
    pub fn put(&self, key: &str, bytes: &[u8]) {
        if let Err(fault) = self.write(key, bytes, &any_tag()) {
            panic!("writing {} bytes failed: {:?} {fault}", bytes.len(), fault.kind);
        }
    }

    /// Reads a whole object of `len` bytes.
    ///
    /// # Errors
    /// The fault of the key.
    ///
    /// # Panics
    /// Where the engine claims another number of bytes than asked.
    pub fn read(&self, key: &str, len: usize) -> Result<Vec<u8>, Fault> {
        self.read_tagged(key, len, None)
    }

    pub(super) fn read_tagged(&self, key: &str, len: usize, tag: Option<&Tag>) -> Result<Vec<u8>, Fault> {
        let memory = self.memory(len);
        let read = ReadOp {
            tag,
            ..ReadOp::whole(key, memory.target(0..len))
        };
        let read = only(self.engine.read_batch(&[read]))?;
        assert_eq!(read, len as u64, "a complete read returns the bytes asked for");
        Ok(memory.bytes(0..len))
    }

    /// Removes an object that is there.
    ///
    /// # Panics
    /// Where it is not.
    pub(super) fn remove(&self, key: &str) {
        assert_eq!(self.engine.remove_batch(&[key]), [Ok(true)], "an object that is there");
    }

    /// Reads a whole object and compares it.
    ///
    /// # Panics
    /// Where it can't be read or is another.
    pub fn expect(&self, key: &str, bytes: &[u8]) {
        match self.read(key, bytes.len()) {
            Ok(found) => assert_same(&found, bytes),
            Err(fault) => panic!("reading {} bytes failed: {:?} {fault}", bytes.len(), fault.kind),
        }
    }
}

/// Memory of a check. Dropping it ends its registration.
pub struct RigMemory {
    slab: SlabMemory,
    /// A transfer of a check that failed may still write it.
    written_late: bool,
    registered_with: Option<Arc<dyn Engine>>,
}

impl RigMemory {
    /// Whole pages that no engine knows.
    pub(super) fn unregistered(len: usize) -> Self {
        let mapping = Mapping::new(MappingKind::Anonymous, len).expect("a check needs a few MiB of memory");
        Self::of(SlabMemory::whole(Arc::new(mapping)))
    }

    fn lent(slabs: &dyn SlabSource, len: usize) -> Self {
        let slab = slabs.make(len.next_multiple_of(page_bytes()));
        Self::of(slab.expect("a check needs a few MiB of the engine's memory"))
    }

    fn of(slab: SlabMemory) -> Self {
        slab.populate().expect("a check needs a few MiB of memory");
        Self {
            slab,
            written_late: false,
            registered_with: None,
        }
    }

    /// The whole memory.
    pub fn region(&self) -> Region {
        self.slab.region()
    }

    /// Part of it to be written.
    pub fn target(&self, range: Range<usize>) -> Target<'_> {
        self.slab.target(range)
    }

    /// Part of it to be read.
    pub fn source(&self, range: Range<usize>) -> Source<'_> {
        self.slab.source(range)
    }

    /// A copy of part of it.
    pub fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        self.source(range).to_vec()
    }

    /// Writes `bytes` from `at` on.
    pub fn fill(&self, at: usize, bytes: &[u8]) {
        copy(
            Source::from(bytes),
            &self.target(at..at + bytes.len()),
            CopyMode::Cached,
        );
    }
}

impl Drop for RigMemory {
    fn drop(&mut self) {
        if let Some(engine) = &self.registered_with {
            // A check that closed its engine has ended the registration that way.
            let _ended = engine.unregister(self.region());
        }
        if self.written_late && std::thread::panicking() {
            // Clause 5: mapped until the engine is closed, which nobody does after a check that failed. So it stays.
            std::mem::forget(self.slab.clone());
        }
    }
}

/// `len` bytes that differ for every `seed` and from place to place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // xorshift64: quick enough for 8 MiB in a debug build.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A tag where the check does not care which.
pub(super) fn any_tag() -> Tag {
    Tag::new(b"f32 any")
}

/// The one result of a call with one key.
pub(super) fn only<T>(results: Vec<T>) -> T {
    let mut results = results.into_iter();
    match (results.next(), results.next()) {
        (Some(result), None) => result,
        _ => panic!("a call with one key returns one result"),
    }
}

/// A call that must fail, for this reason and no other.
pub(super) fn expect_fault<T: std::fmt::Debug>(result: Result<T, Fault>, kind: FaultKind, what: &str) {
    let fault = result.expect_err(what);
    assert_eq!(fault.kind, kind, "{what}: {fault}");
}

/// Like `assert_eq`, but names the first difference instead of printing megabytes.
pub(super) fn assert_same(found: &[u8], expected: &[u8]) {
    if found == expected {
        return;
    }
    assert_eq!(found.len(), expected.len(), "as many bytes as were written");
    if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
        panic!(
            "byte {at} of {} is {:#04x}, was written as {:#04x}",
            found.len(),
            found[at],
            expected[at]
        );
    }
}
