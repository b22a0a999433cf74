//! The client beside it: holds one of everything, and looks at every byte of it.

use tensorlease_engine::{Engine, FaultKind, ReadOp, Tag, Viewed, WriteOp};
use tensorlease_host::{HostEngine, SocketPath};
use tensorlease_memory::{SlabMemory, Source};

/// Keys of its objects.
pub const OWN_KEYS: [&str; 2] = ["own/small", "own/large"];
const LENS: [usize; 2] = [1_000, 70_000];
const EXTENT_BYTES: usize = 64 << 10;
/// What its extent is full of: copies of this.
const MARK: [u8; 8] = *b"mine own";

/// A client that does what clients do.
pub struct Honest {
    engine: HostEngine,
    /// Objects that were replaced since: only these views still show them.
    views: Vec<Viewed>,
    extent: SlabMemory,
    /// Bytes that are out when only this client holds anything.
    held_bytes: u64,
}

impl Honest {
    pub fn come(socket: &SocketPath) -> Self {
        let engine = HostEngine::connect(socket).expect("a client connects");
        let extent = engine.slabs().expect("a host lends slabs").make(EXTENT_BYTES);
        let extent = extent.expect("there is room");
        let mut honest = Self {
            engine,
            views: Vec::new(),
            extent,
            held_bytes: 0,
        };
        honest.put_all();
        let views = honest.engine.views().expect("a host shows its objects");
        let views = views.view_batch(&OWN_KEYS).into_iter();
        honest.views = views.map(|viewed| viewed.expect("just put")).collect();
        honest.fill_extent();
        // What it reserves ahead is the same from the second time on.
        for _ in 0..3 {
            honest.start_over();
        }
        honest.held_bytes = honest.out_bytes();
        honest
    }

    fn put_all(&self) {
        for (key, len) in OWN_KEYS.into_iter().zip(LENS) {
            let bytes = pattern(len);
            let write = WriteOp {
                key,
                segments: &[Source::from(bytes.as_slice())],
                tag: &Tag::new(b"own"),
            };
            assert_eq!(self.engine.write_batch(&[write]), [Ok(())], "{key}");
        }
    }

    /// Removes everybody's objects, and puts its own.
    fn start_over(&self) {
        self.engine.remove_prefix("").expect("the daemon answers");
        self.put_all();
    }

    fn fill_extent(&self) {
        let start = self.extent.region().addr - self.extent.mapping().region().addr;
        let target = self.extent.mapping().target(start..start + EXTENT_BYTES);
        let bytes = MARK.repeat(EXTENT_BYTES / MARK.len());
        tensorlease_memory::copy(
            Source::from(bytes.as_slice()),
            &target,
            tensorlease_memory::CopyMode::Cached,
        );
    }

    /// Panics where anything is not as it was. `touched`: the objects by name may have been replaced or removed, as any client may do.
    pub fn is_unharmed(&self, touched: bool) {
        for (viewed, len) in self.views.iter().zip(LENS) {
            assert!(viewed.view.to_vec() == pattern(len), "an object changed under a view");
        }
        let start = self.extent.region().addr - self.extent.mapping().region().addr;
        let extent = self.extent.mapping().source(start..start + EXTENT_BYTES).to_vec();
        assert!(
            extent.chunks_exact(MARK.len()).all(|piece| piece == MARK),
            "an extent changed under its owner"
        );
        for (key, len) in OWN_KEYS.into_iter().zip(LENS) {
            let mut bytes = vec![0; len];
            let read = ReadOp {
                key,
                offset: 0,
                target: bytes.as_mut_slice().into(),
                object_len: len as u64,
                tag: Some(&Tag::new(b"own")),
                by_transport: false,
            };
            match self.engine.read_batch(&[read]).remove(0) {
                Ok(_) => assert!(touched || bytes == pattern(len), "{key} has changed"),
                Err(fault) => assert!(
                    touched && matches!(fault.kind, FaultKind::NotFound | FaultKind::Mismatch),
                    "{key}: {fault}"
                ),
            }
        }
    }

    /// Starts over; is what is out then its own and no more?
    pub fn holds_all_that_is_out(&self) -> bool {
        if self.held_bytes < self.out_bytes() {
            self.engine.remove_prefix("").expect("the daemon answers");
            let free = self.report().capacity_bytes - self.out_bytes();
            // Something that others reserved may still keep the room.
            if free < 2 * LENS.iter().sum::<usize>() as u64 {
                return false;
            }
        }
        self.start_over();
        self.out_bytes() == self.held_bytes
    }

    fn out_bytes(&self) -> u64 {
        self.report().held_bytes
    }

    fn report(&self) -> tensorlease_host::HostReport {
        self.engine.report().expect("the daemon answers")
    }

    /// Who holds what.
    pub fn account(&self) -> String {
        format!("{} bytes are its neighbour's own; {:?}", self.held_bytes, self.report())
    }
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}
