//! Python's cycle collector, switched off while many tensors are made.
//!
//! 16,384 new tensors set off a full collection every few reads, which costs more than making them.
use pyo3::{prelude::*, sync::PyOnceLock, types::PyModule};

/// Fewer new objects than this don't set a collection off.
const OBJECTS_MIN: usize = 256;

static GC: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// While it lives the collector is off; then it is as it was.
pub(crate) struct CollectorPause<'py> {
    resume: Option<Bound<'py, PyModule>>,
}

impl<'py> CollectorPause<'py> {
    /// For the making of `objects` objects.
    pub(crate) fn new(py: Python<'py>, objects: usize) -> PyResult<Self> {
        if objects < OBJECTS_MIN {
            return Ok(Self { resume: None });
        }
        let gc = GC.get_or_try_init(py, || py.import("gc").map(Bound::unbind))?.bind(py);
        if !gc.call_method0("isenabled")?.is_truthy()? {
            return Ok(Self { resume: None });
        }
        gc.call_method0("disable")?;
        Ok(Self {
            resume: Some(gc.clone()),
        })
    }
}

impl Drop for CollectorPause<'_> {
    fn drop(&mut self) {
        if let Some(gc) = &self.resume
            && let Err(error) = gc.call_method0("enable")
        {
            error.write_unraisable(gc.py(), None);
        }
    }
}
