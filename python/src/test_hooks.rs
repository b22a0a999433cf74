//! What only the tests of this project call: `tensorlease._core._tests`, with the feature `test-hooks`. A wheel is built without it.
use pyo3::{prelude::*, types::PyModule};
use std::sync::atomic::{AtomicBool, Ordering};

/// A way that a test switches to. Without the feature it is off, which the compiler knows.
pub(crate) struct Switch(AtomicBool);

impl Switch {
    pub(crate) const fn off() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn is_on(&self) -> bool {
        cfg!(feature = "test-hooks") && self.0.load(Ordering::Relaxed)
    }

    #[cfg(feature = "test-hooks")]
    pub(crate) fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }
}

#[cfg(not(feature = "test-hooks"))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature as with the feature")]
pub(crate) fn add_to(_core: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}

/// Adds the module. It stays out of `__all__`, as it is out of the stubs.
#[cfg(feature = "test-hooks")]
pub(crate) fn add_to(core: &Bound<'_, PyModule>) -> PyResult<()> {
    use crate::{buffer, conformance, numpy, torch};
    use pyo3::wrap_pyfunction;

    let py = core.py();
    let name = "tensorlease._core._tests";
    let tests = PyModule::new(py, name)?;
    tests.add_function(wrap_pyfunction!(buffer::is_leased, &tests)?)?;
    tests.add_function(wrap_pyfunction!(conformance::conformance_checks, &tests)?)?;
    tests.add_function(wrap_pyfunction!(conformance::run_conformance_check, &tests)?)?;
    tests.add_function(wrap_pyfunction!(numpy::arrays_by_call, &tests)?)?;
    tests.add_function(wrap_pyfunction!(torch::import_as_capsules, &tests)?)?;
    tests.add_function(wrap_pyfunction!(torch::import_what_torch_refuses, &tests)?)?;
    core.setattr("_tests", &tests)?;
    py.import("sys")?.getattr("modules")?.set_item(name, &tests)
}
