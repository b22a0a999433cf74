//! What only the tests of this project call, as `tensorlease._core._tests`. The feature `test-hooks` compiles it, and a
//! wheel has no features.
mod conformance;
mod imports;

use pyo3::{prelude::*, types::PyModule, wrap_pyfunction};

/// Adds the module. It stays out of `__all__` and out of the stub, so that the package can't name it.
pub(crate) fn add_to(core: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = core.py();
    let name = "tensorlease._core._tests";
    let tests = PyModule::new(py, name)?;
    tests.add_function(wrap_pyfunction!(conformance::conformance_checks, &tests)?)?;
    tests.add_function(wrap_pyfunction!(conformance::run_conformance_check, &tests)?)?;
    tests.add_function(wrap_pyfunction!(imports::arrays_by_call, &tests)?)?;
    tests.add_function(wrap_pyfunction!(imports::import_as_capsules, &tests)?)?;
    tests.add_function(wrap_pyfunction!(imports::import_what_torch_refuses, &tests)?)?;
    tests.add_function(wrap_pyfunction!(imports::is_leased, &tests)?)?;
    core.setattr("_tests", &tests)?;
    py.import("sys")?.getattr("modules")?.set_item(name, &tests)
}
