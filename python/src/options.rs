//! Sizes as people write them.
use crate::error::config_error;
use pyo3::prelude::*;

/// Bytes of "1GiB", "64 MiB", "4096". `argument` is named in the error.
#[pyfunction]
pub(crate) fn parse_bytes(py: Python<'_>, text: &str, argument: &str) -> PyResult<u64> {
    tensorlease::parse_bytes(text).map_err(|allowed| config_error(py, &format!("{argument} is {text:?}; {allowed}")))
}
