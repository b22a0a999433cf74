//! One stored object: its bytes, its size, its tag.
use crate::{Fault, FaultKind, Indexed, ObjectInfo, ReadOp, Tag};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tensorlease_memory::{CopyMode, Lease, Source, copy};

/// Never changed after it was published, so a reader that holds it needs no lock.
#[derive(Debug)]
pub(super) struct Object {
    len: u64,
    tag: Tag,
    version: u64,
    /// The first piece is nearly always the only one; a second allocation per object is spared for it.
    first: Lease,
    rest: Vec<Lease>,
}

fn next_version() -> u64 {
    static VERSIONS: AtomicU64 = AtomicU64::new(1);
    VERSIONS.fetch_add(1, Relaxed)
}

impl Indexed for Object {
    fn object_len(&self) -> u64 {
        self.len
    }
}

impl Object {
    /// An object of one piece.
    pub(super) fn whole(lease: Lease, tag: Tag) -> Self {
        Self {
            len: lease.len() as u64,
            tag,
            version: next_version(),
            first: lease,
            rest: Vec::new(),
        }
    }

    /// An object of several pieces, of which there must be at least one.
    pub(super) fn scattered(pieces: Vec<Lease>, tag: Tag) -> Self {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        let mut pieces = pieces.into_iter();
        Self {
            len,
            tag,
            version: next_version(),
            first: pieces
                .next()
                .expect("an object has at least one byte, so at least one piece"),
            rest: pieces.collect(),
        }
    }

    pub(super) fn info(&self) -> ObjectInfo {
        ObjectInfo {
            len: self.len,
            tag: Some(self.tag.clone()),
            version: self.version,
        }
    }

    /// Checks identity and range, then copies. Nothing is written on an error.
    pub(super) fn read(&self, read: &ReadOp<'_>, mode: CopyMode) -> Result<u64, Fault> {
        let wanted = read.target.len() as u64;
        self.check(read)?;
        // The range lies inside the object, whose pieces are all mapped: it fits usize.
        let offset = usize::try_from(read.offset).expect("an offset inside mapped memory fits an address");
        if self.rest.is_empty() {
            let source = Source::from(self.first.as_slice());
            copy(source.slice(offset..offset + read.target.len()), &read.target, mode);
        } else {
            // A target can't be written in parts through a shared reference, so the pieces are put together first. Only
            // objects written into a full and fragmented store pay for this second copy.
            let bytes = self.gathered(offset, read.target.len()).ok_or_else(|| {
                let message = "no memory to put the pieces of the object together in; free some";
                Fault::new(FaultKind::NoHandle, 0, message)
            })?;
            copy(Source::from(bytes.as_slice()), &read.target, mode);
        }
        Ok(wanted)
    }

    fn check(&self, read: &ReadOp<'_>) -> Result<(), Fault> {
        if self.len != read.object_len {
            let message = format!("the object has {} bytes, {} were expected", self.len, read.object_len);
            return Err(Fault::new(FaultKind::Mismatch, 0, message));
        }
        if read.tag.is_some_and(|tag| *tag != self.tag) {
            return Err(Fault::new(
                FaultKind::Mismatch,
                0,
                "the object was written with another tag (dtype or shape) than expected",
            ));
        }
        let wanted = read.target.len() as u64;
        if read.offset.checked_add(wanted).is_none_or(|end| end > self.len) {
            let message = format!(
                "{wanted} bytes from {} on are past the object's end at {}",
                read.offset, self.len
            );
            return Err(Fault::new(FaultKind::Mismatch, 0, message));
        }
        Ok(())
    }

    /// `None`: there is no memory for it.
    fn gathered(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).ok()?;
        let mut skip = offset;
        for piece in std::iter::once(&self.first).chain(&self.rest) {
            let piece = piece.as_slice();
            let from = skip.min(piece.len());
            skip -= from;
            let to = (from + len - bytes.len()).min(piece.len());
            bytes.extend_from_slice(&piece[from..to]);
        }
        Some(bytes)
    }
}
