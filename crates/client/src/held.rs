//! All memory that a store holds.

pub(crate) mod slabs;
