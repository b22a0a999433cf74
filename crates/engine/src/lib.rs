//! The engine contract of tensorlease, its conformance suite, and the embedded engine.
//!
//! - [`Engine`]: what holds the objects. Its documentation is the contract, clause by clause.
//! - [`Capabilities`], [`Fault`], [`Tag`]: the words of that contract.
//! - [`chained`]: an error and its causes in one line.
//! - [`Staging`]: registered memory of an engine's own, on loan.
//! - [`Turns`]: few calls at a time, for engines whose calls are in each other's way.
//! - [`Removals`], [`of_another_size`]: for engines that take objects away from their readers, or lose the memory of replaced ones.
//! - [`ObjectIndex`]: key to object, for engines that keep their objects themselves.
//! - [`Embedded`]: objects in this process, in recycled memory.
//! - [`decorators`]: engines around engines that do harm on purpose, for tests.
//! - `conformance` (feature of the same name): one suite that every engine passes.
#![deny(unsafe_code)]
mod capabilities;
mod causes;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod decorators;
mod embedded;
mod engine;
mod fault;
mod object_index;
mod removals;
mod replaces;
mod staging;
mod tag;
mod turns;

pub use capabilities::{Capabilities, Registration};
pub use causes::chained;
pub use embedded::{Embedded, EmbeddedOptions};
pub use engine::{Engine, EngineStats, ObjectInfo, ReadOp, Viewed, Views, WriteOp};
pub use fault::{CloseError, Fault, FaultKind, RegisterError};
pub use object_index::{Indexed, ObjectIndex};
pub use removals::{Reading, Removals, Removing};
pub use replaces::of_another_size;
pub use staging::{Loan, LoanLimits, Staging};
pub use tag::Tag;
pub use turns::{Turn, Turns};
