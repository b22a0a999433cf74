//! Fixtures of the suite: a store over an engine that checks the client, values with recognisable bytes, and what must
//! hold once a store is idle.

mod checking;
mod hooked;
mod lending;
mod log_lines;
mod rig;

pub(crate) use checking::{Checking, Claims};
pub(crate) use hooked::Hooked;
pub(crate) use lending::{Lending, Terms, no_loan};
pub(crate) use log_lines::{announcements_of, warnings_of};
pub(crate) use rig::{Rig, tensor_item};

use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tensorlease::{
    DType, Options, Store, TensorSpec,
    engine::{Embedded, EmbeddedOptions, Engine, WriteOp},
};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
/// Long enough for anything that ends at all.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// An embedded engine that takes any memory.
pub(crate) fn free_engine() -> Arc<dyn Engine> {
    embedded(false).expect("an engine that pins nothing opens everywhere")
}

/// An embedded engine that really pins memory; `None` where the kernel allows no `io_uring`.
pub(crate) fn pinned_engine() -> Option<Arc<dyn Engine>> {
    embedded(true)
}

fn embedded(pinned: bool) -> Option<Arc<dyn Engine>> {
    let capacity_bytes = 1 << 30;
    let engine = Embedded::new(&EmbeddedOptions { capacity_bytes, pinned });
    engine.ok().map(|engine| Arc::new(engine) as Arc<dyn Engine>)
}

/// Every kind of engine that this machine has, named: free, registration checked in software, and pinned by the kernel.
pub(crate) fn every_engine() -> Vec<(&'static str, Arc<dyn Engine>)> {
    let checked = Checking::new(free_engine(), Claims::registering());
    let mut engines: Vec<(&'static str, Arc<dyn Engine>)> =
        vec![("free", free_engine()), ("checked", Arc::new(checked))];
    engines.extend(pinned_engine().map(|engine| ("pinned", engine)));
    engines
}

/// A free engine that holds one value per length under `k0`, `k1`, ..., and the values: none of them went through a store.
pub(crate) fn stored(lens: &[u64]) -> (Arc<dyn Engine>, Vec<Vec<u8>>) {
    let engine = free_engine();
    let values: Vec<Vec<u8>> = (0..).zip(lens).map(|(seed, len)| pattern(seed, *len)).collect();
    for (at, value) in values.iter().enumerate() {
        let (key, spec) = (format!("k{at}"), bytes_spec(value.len() as u64));
        let write = WriteOp {
            key: &key,
            segments: &[value.as_slice().into()],
            tag: spec.tag(),
        };
        assert_eq!(engine.write_batch(&[write]), [Ok(())]);
    }
    (engine, values)
}

/// Options with this budget and two readers.
pub(crate) fn budget(max_bytes: u64) -> Options {
    Options {
        max_bytes,
        readers: 2,
        ..Options::default()
    }
}

/// `len` bytes that differ from seed to seed and from place to place.
pub(crate) fn pattern(seed: u64, len: u64) -> Vec<u8> {
    // A tile of a prime length: shifted by a page, a cache line or a block the bytes are others.
    const TILE_BYTES: usize = 4099;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let tile: Vec<u8> = (0..TILE_BYTES)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect();
    let len = usize::try_from(len).unwrap();
    let mut bytes = tile.repeat(len.div_ceil(TILE_BYTES));
    bytes.truncate(len);
    bytes
}

/// A spec of this dtype and shape.
pub(crate) fn spec(dtype: DType, shape: &[u64]) -> Arc<TensorSpec> {
    Arc::new(TensorSpec::new(dtype, shape).unwrap())
}

/// A vector of `len` bytes.
pub(crate) fn bytes_spec(len: u64) -> Arc<TensorSpec> {
    spec(DType::U8, &[len])
}

/// One counter.
#[allow(clippy::cast_sign_loss, reason = "counters are not negative")]
pub(crate) fn stat(store: &Store, name: &str) -> u64 {
    store.stats().get(name) as u64
}

/// Waits until `reached` says so; panics with `what` where it never does.
pub(crate) fn eventually(what: &str, reached: impl Fn() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < SOON, "never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Nobody holds a value and no call runs: every block must be back.
pub(crate) fn assert_idle(store: &Store) {
    for name in [
        "running_calls",
        "abandoned_running_calls",
        "in_flight_bytes",
        "leased_bytes",
        "copy_cache_held_bytes",
    ] {
        eventually(&format!("{name} = 0"), || stat(store, name) == 0);
    }
}
