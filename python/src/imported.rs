//! Modules that may be missing, and that this process may not have imported.
use crate::error::config_error;
use pyo3::{
    exceptions::{PyException, PyImportError},
    prelude::*,
    sync::PyOnceLock,
    types::PyDict,
};

static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// What is used of a module, looked up once.
pub(crate) struct Framework<T: 'static> {
    name: &'static str,
    load: fn(Python<'_>) -> PyResult<T>,
    loaded: PyOnceLock<Option<T>>,
}

impl<T> Framework<T> {
    pub(crate) const fn new(name: &'static str, load: fn(Python<'_>) -> PyResult<T>) -> Self {
        let loaded = PyOnceLock::new();
        Self { name, load, loaded }
    }

    /// `None`: it is not installed.
    pub(crate) fn installed(&'static self, py: Python<'_>) -> PyResult<Option<&'static T>> {
        let loaded = self.loaded.get_or_try_init(py, || match (self.load)(py) {
            Ok(loaded) => Ok(Some(loaded)),
            Err(error) if error.is_instance_of::<PyImportError>(py) => Ok(None),
            Err(error) => Err(not_imported(py, self.name, error)),
        });
        Ok(loaded?.as_ref())
    }

    /// `None`: nothing in this process has imported it. No value is then of its types, and importing it only to know that may take seconds.
    pub(crate) fn imported(&'static self, py: Python<'_>) -> PyResult<Option<&'static T>> {
        let modules = MODULES.import(py, "sys", "modules")?;
        match modules.get_item(self.name)? {
            // None stands for a module that must not be imported.
            Some(module) if !module.is_none() => self.installed(py),
            _ => Ok(None),
        }
    }
}

/// A module that is there and fails while it is imported (a library that it needs, two versions that do not fit): an
/// error that names it.
fn not_imported(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyException>(py) {
        // Ctrl-C, for one.
        return error;
    }
    let message = format!("importing {name} fails ({error}); mend it, `python -c 'import {name}'` shows the same");
    let named = config_error(py, &message);
    named.set_cause(py, Some(error));
    named
}
