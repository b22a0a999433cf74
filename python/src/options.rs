//! Sizes as people write them.
use crate::error::refuse;
use pyo3::prelude::*;

/// Bytes of "1GiB", "64 MiB", "4096". An error names `argument`, where there is one.
#[pyfunction]
#[pyo3(signature = (text, argument=None))]
pub(crate) fn parse_bytes(py: Python<'_>, text: &str, argument: Option<&str>) -> PyResult<u64> {
    match (tensorlease::parse_bytes(text), argument) {
        (Ok(bytes), _) => Ok(bytes),
        (Err(allowed), Some(argument)) => refuse!(py, "{argument} is {text:?}; {allowed}"),
        (Err(allowed), None) => refuse!(py, "{allowed}"),
    }
}
