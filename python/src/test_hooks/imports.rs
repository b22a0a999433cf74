//! How delivered memory gets into numpy and torch, chosen by a test.
use crate::{
    buffer::Lease,
    dlpack::{DLDataType, Export, Owner},
    error::IntoPython,
    numpy,
    shape::Dims,
    store::CoreStore,
    torch::{self, ImportMethod, TORCH},
};
use pyo3::{exceptions::PyImportError, prelude::*};
use tensorlease::Patience;

/// Arrays are made and looked at by calls of Python (true) or the fastest way (false).
#[pyfunction]
pub(super) fn arrays_by_call(only: bool) {
    numpy::BY_CALL.set(only);
}

/// Tensors go into torch as capsules (true) or the fastest way (false).
#[pyfunction]
pub(super) fn import_as_capsules(only: bool) {
    torch::CAPSULES_ONLY.set(only);
}

/// Makes a tensor in the arena of a dtype that torch refuses. A test then sees that its memory comes back.
#[pyfunction]
pub(super) fn import_what_torch_refuses<'py>(
    py: Python<'py>,
    store: &CoreStore,
    as_capsule: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let torch = TORCH.installed(py)?.ok_or_else(|| PyImportError::new_err("torch"))?;
    let buffer = py.detach(|| store.store().empty(4096, Patience::default()));
    let buffer = buffer.map_err(|error| error.into_python(py))?;
    let unknown = DLDataType {
        code: 200,
        bits: 8,
        lanes: 1,
    };
    let export = Export::new(Owner::Buffer(buffer), unknown, 1, &Dims::from_slice(&[4096]));
    torch.import_by(
        py,
        if as_capsule {
            ImportMethod::Capsule
        } else {
            ImportMethod::Exchange
        },
        export,
    )
}

/// Does it lie in the arena (leased), rather than in copied memory?
#[pyfunction]
pub(super) fn is_leased(lease: &Bound<'_, Lease>) -> bool {
    lease.get().is_leased()
}
