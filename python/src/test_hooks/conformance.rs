//! The conformance suite for engines that only exist inside Python.
use crate::mooncake;
use pyo3::{exceptions::PyAssertionError, prelude::*};
use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tensorlease::Options;
use tensorlease_engine::{
    Engine,
    conformance::{self, Factory, Rig},
    for_each_conformance_check,
};
use tensorlease_host::{HostEngine, SocketPath};

type Check = fn(&Factory<'_>);

macro_rules! named_checks {
    (() [$($check:ident)+]) => {
        const CHECKS: &[(&str, Check)] = &[$((stringify!($check), conformance::$check as Check)),+];
    };
}

for_each_conformance_check!(named_checks, ());

/// Rigs of this process get keys of their own each: engines that share a cluster must not meet.
static RIGS: AtomicU64 = AtomicU64::new(0);

/// Names of the checks of the engine contract.
#[pyfunction]
pub(super) fn conformance_checks() -> Vec<&'static str> {
    CHECKS.iter().map(|(name, _)| *name).collect()
}

/// Runs one check on fresh engines of `url`. `capacity`: bytes after which the engine is full; None leaves the checks
/// of a full store out.
#[pyfunction]
#[pyo3(signature = (name, url, *, capacity, key_prefix))]
pub(super) fn run_conformance_check(
    py: Python<'_>,
    name: &str,
    url: &str,
    capacity: Option<u64>,
    key_prefix: &str,
) -> PyResult<()> {
    let Some((_, check)) = CHECKS.iter().find(|(known, _)| *known == name) else {
        return Err(PyAssertionError::new_err(format!("there is no check {name:?}")));
    };
    py.detach(|| run(*check, url, capacity, key_prefix))
        .map_err(PyAssertionError::new_err)
}

/// An engine of a Mooncake cluster, or of a daemon whose engine lives in Python.
fn open(url: &str) -> Arc<dyn Engine> {
    match url.strip_prefix("host://") {
        None => mooncake::open(url, &Options::default()).unwrap_or_else(|error| panic!("{url}: {error}")),
        Some(path) => {
            let place = SocketPath::new(path).unwrap_or_else(|error| panic!("{url}: {error}"));
            Arc::new(HostEngine::connect(&place).unwrap_or_else(|error| panic!("{url}: {error}")))
        }
    }
}

/// What the check says is wrong.
fn run(check: Check, url: &str, capacity: Option<u64>, key_prefix: &str) -> Result<(), String> {
    let engines: RefCell<Vec<Arc<dyn Engine>>> = RefCell::default();
    let factory = || {
        let engine = open(url);
        engines.borrow_mut().push(Arc::clone(&engine));
        let rig = Rig::new(engine).with_key_prefix(format!("{key_prefix}{}/", RIGS.fetch_add(1, Ordering::Relaxed)));
        Some(match capacity {
            Some(capacity) => rig.with_capacity(capacity),
            None => rig,
        })
    };
    let result = catch_unwind(AssertUnwindSafe(|| check(&factory)));
    engines
        .borrow()
        .iter()
        .for_each(|engine| mooncake::close_quietly(&**engine));
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "it panicked".to_owned())
    })
}
