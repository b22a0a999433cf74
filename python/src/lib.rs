//! The Python module `tensorlease._core`: tensors of Python in and out of the client.
#![deny(unsafe_code)]

// From the outside in: the store, its arguments, its results, an engine that lives in Python, and the two interfaces of frameworks.
mod store;

mod keys;
mod options;
mod patience;
mod read;
mod shape;
mod write;

mod deliver;
mod dtype;
mod error;
mod logging;

mod conformance;
mod host;
mod mooncake;

mod buffer;
mod dlpack;
mod exchange;
mod foreign;
mod imported;
mod numpy;
mod numpy_api;
mod torch;

/// Native part of tensorlease.
#[pyo3::pymodule]
mod _core {
    use pyo3::{Bound, PyResult, types::PyModule};

    #[pymodule_export]
    use crate::{
        buffer::{InPlace, Lease, live_views},
        conformance::{conformance_checks, run_conformance_check},
        dtype::dtype_names,
        host::{HostDaemon, host_listens, host_make_folder, host_report, host_silent_seconds, host_socket},
        logging::{log_records_dropped, set_log_level},
        numpy::arrays_by_call,
        options::parse_bytes,
        patience::Interrupt,
        store::CoreStore,
        torch::{import_as_capsules, import_what_torch_refuses},
    };

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::logging::install();
        Ok(())
    }
}
