//! Which modules this process has imported already.
use crate::error::config_error;
use pyo3::{
    exceptions::PyException,
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

/// A module that is there and fails while it is imported (a library that it needs, two versions that do not fit): an error that names it.
pub(crate) fn not_imported(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyException>(py) {
        // Ctrl-C, for one.
        return error;
    }
    let named = config_error(
        py,
        &format!("importing {name} fails ({error}); mend it, `python -c 'import {name}'` shows the same"),
    );
    named.set_cause(py, Some(error));
    named
}
