//! All memory that a store holds: slabs, their registrations, the staging blocks, and what is in quarantine.

mod bounce;
mod exhausted;
mod memory;
mod quarantine;
mod registrations;
mod slabs;

pub(crate) use memory::Memory;
pub(crate) use quarantine::{Quarantine, is_late};
pub(crate) use registrations::{Registrations, cuts_at_multiples};
pub(crate) use slabs::Refused;
