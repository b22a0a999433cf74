//! Engines around engines that do harm on purpose: what a client must survive, made to happen in a test.
//!
//! Each wraps any other engine and passes on what it does not spoil. All are deterministic: what is spoiled depends on the
//! seed and on the order of the calls, never on the clock. In the setting that spoils nothing each passes the
//! conformance suite.
//!
//! They can be stacked from a text, for tests that only have a URL: [`from_spec`]. Those that only tests in Rust use come with the feature `conformance`.
#![warn(clippy::missing_trait_methods)]
mod choice;
mod failing;
#[cfg(feature = "conformance")]
mod gated;
mod hanging;
mod key_losing;
mod late_writing;
#[cfg(feature = "conformance")]
mod observing;
mod short_reading;
mod slow;
mod spec;
mod withheld;

pub use choice::Choice;
pub use failing::{FailOn, Failing};
#[cfg(feature = "conformance")]
pub use gated::{Gate, Gated};
pub use hanging::Hanging;
pub use key_losing::KeyLosing;
pub use late_writing::LateWriting;
#[cfg(feature = "conformance")]
pub use observing::{Call, ObservedRead, Observing};
pub use short_reading::ShortReading;
pub use slow::Slow;
pub use spec::{SpecError, from_spec};

/// The methods of `Engine` that a decorator, here or in a test, passes on unchanged to `self.inner`.
#[doc(hidden)]
#[macro_export]
macro_rules! forward {
    ($($method:ident),+ $(,)?) => { $( $crate::forward!(@ $method); )+ };
    (@ capabilities) => { fn capabilities(&self) -> &$crate::Capabilities { self.inner.capabilities() } };
    (@ register) => {
        fn register(&self, region: tensorlease_memory::Region) -> Result<(), $crate::RegisterError> {
            self.inner.register(region)
        }
    };
    (@ unregister) => {
        fn unregister(&self, region: tensorlease_memory::Region) -> Result<(), $crate::RegisterError> {
            self.inner.unregister(region)
        }
    };
    (@ read_batch) => {
        fn read_batch(&self, reads: &[$crate::ReadOp<'_>]) -> Vec<Result<u64, $crate::Fault>> {
            self.inner.read_batch(reads)
        }
    };
    (@ write_batch) => {
        fn write_batch(&self, writes: &[$crate::WriteOp<'_>]) -> Vec<Result<(), $crate::Fault>> {
            self.inner.write_batch(writes)
        }
    };
    (@ remove_batch) => {
        fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, $crate::Fault>> { self.inner.remove_batch(keys) }
    };
    (@ remove_prefix) => {
        fn remove_prefix(&self, prefix: &str) -> Result<u64, $crate::Fault> { self.inner.remove_prefix(prefix) }
    };
    (@ contains_batch) => {
        fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, $crate::Fault>> { self.inner.contains_batch(keys) }
    };
    (@ describe_batch) => {
        fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<$crate::ObjectInfo>, $crate::Fault>> {
            self.inner.describe_batch(keys)
        }
    };
    // Every call on objects, each after `self.$first()`.
    (@ objects_after $first:ident) => {
        fn read_batch(&self, reads: &[$crate::ReadOp<'_>]) -> Vec<Result<u64, $crate::Fault>> {
            self.$first();
            self.inner.read_batch(reads)
        }
        fn write_batch(&self, writes: &[$crate::WriteOp<'_>]) -> Vec<Result<(), $crate::Fault>> {
            self.$first();
            self.inner.write_batch(writes)
        }
        fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, $crate::Fault>> {
            self.$first();
            self.inner.remove_batch(keys)
        }
        fn remove_prefix(&self, prefix: &str) -> Result<u64, $crate::Fault> {
            self.$first();
            self.inner.remove_prefix(prefix)
        }
        fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, $crate::Fault>> {
            self.$first();
            self.inner.contains_batch(keys)
        }
        fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<$crate::ObjectInfo>, $crate::Fault>> {
            self.$first();
            self.inner.describe_batch(keys)
        }
    };
    // What no decorator changes: questions about the engine, and memory of its own.
    (@ asides) => { $crate::forward!(stats, local_reads, late_bytes, remark, staging, views, slabs); };
    (@ remark) => { fn remark(&self) -> Option<String> { self.inner.remark() } };
    (@ staging) => { fn staging(&self) -> Option<&dyn $crate::Staging> { self.inner.staging() } };
    (@ views) => { fn views(&self) -> Option<&dyn $crate::Views> { self.inner.views() } };
    (@ slabs) => {
        fn slabs(&self) -> Option<std::sync::Arc<dyn tensorlease_memory::SlabSource>> { self.inner.slabs() }
    };
    (@ local_reads) => { fn local_reads(&self) -> u64 { self.inner.local_reads() } };
    (@ late_bytes) => { fn late_bytes(&self) -> u64 { self.inner.late_bytes() } };
    (@ stats) => { fn stats(&self) -> $crate::EngineStats { self.inner.stats() } };
    (@ close) => { fn close(&self) -> Result<(), $crate::CloseError> { self.inner.close() } };
}
