//! Which modules this process has imported already.
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyString},
};

static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// Has anybody imported it? Without that no value can be of its types, so that nothing has to be imported, which may take seconds, to know that.
pub(crate) fn is_imported(py: Python<'_>, name: &Bound<'_, PyString>) -> PyResult<bool> {
    let modules = MODULES.get_or_try_init(py, || {
        let modules = py.import("sys")?.getattr("modules")?;
        Ok::<_, PyErr>(modules.cast_into::<PyDict>()?.unbind())
    })?;
    // None stands for a module that must not be imported.
    Ok(modules.bind(py).get_item(name)?.is_some_and(|module| !module.is_none()))
}
