//! The lender of these tests keeps the contract that real ones keep.

use crate::support::{KIB, Lending, Terms, free_engine};
use std::sync::Arc;
use tensorlease::engine::{conformance::Rig, conformance_tests};

const TERMS: Terms = Terms {
    arena_bytes: 256 * KIB,
    bytes_max: 64 * KIB,
    keys_max: 400,
    loans_max: 3,
};

fn lender() -> Option<Rig> {
    Some(Rig::new(Arc::new(Lending::new(free_engine(), TERMS))))
}

conformance_tests!(lending_engine, lender);
