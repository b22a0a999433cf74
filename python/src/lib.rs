//! The Python module `tensorlease._core`: tensors of Python in and out of the client.
#![deny(unsafe_code)]

// From the outside in: the store, its arguments, its results, an engine that lives in Python, and the two interfaces of
// frameworks.
mod store;

mod keys;
mod options;
mod patience;
mod read;
mod shape;
mod tree;
mod write;

mod deliver;
mod dtype;
mod error;
mod logging;

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

mod switch;
#[cfg(feature = "test-hooks")]
mod test_hooks;

/// Native part of tensorlease.
#[pyo3::pymodule]
mod _core {
    use pyo3::{Bound, PyResult, types::PyModule};

    #[pymodule_export]
    use crate::{
        buffer::{InPlace, Lease, live_views},
        dtype::dtype_names,
        host::{
            HostDaemon, host_holder, host_listens, host_make_folder, host_report, host_silent_seconds, host_socket,
        },
        keys::listed,
        logging::{log_records_dropped, set_log_level},
        options::parse_bytes,
        patience::Interrupt,
        store::CoreStore,
        tree::{count_extensions, levels_max},
    };

    #[pymodule_init]
    #[cfg_attr(
        not(feature = "test-hooks"),
        expect(unused_variables, reason = "only the tests' module is added here")
    )]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::logging::install();
        #[cfg(feature = "test-hooks")]
        crate::test_hooks::add_to(module)?;
        Ok(())
    }
}
