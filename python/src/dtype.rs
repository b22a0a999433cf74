//! dtypes as Python passes them: torch's, numpy's, or names.
use crate::error::config_error;
use pyo3::{prelude::*, sync::PyOnceLock};
use smallvec::SmallVec;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};
use tensorlease::DType;

/// Whose tensors a caller wants back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// torch's where torch is installed, else numpy's.
    Any,
    /// The dtype was one of torch.
    Torch,
    /// The dtype was one of numpy.
    Numpy,
}

/// A dtype and whose it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved {
    pub(crate) dtype: DType,
    pub(crate) flavour: Flavour,
}

/// dtype objects by address. Each is kept alive, so that the address stays its own.
type ByAddress = HashMap<usize, (Py<PyAny>, Resolved)>;

/// dtype objects seen so far.
static KNOWN: Mutex<Option<ByAddress>> = Mutex::new(None);
/// So many dtype objects are remembered. A caller that makes new ones for each call would fill the memory.
const KNOWN_MAX: usize = 256;

/// So many are remembered by one call, which looks through them one by one.
const SEEN_MAX: usize = 16;

static RESOLVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Resolves the dtypes of one call.
#[derive(Default)]
pub(crate) struct DTypes {
    seen: SmallVec<[(usize, Resolved); 4]>,
}

impl DTypes {
    /// `name` tells an error which key it is about.
    pub(crate) fn resolve(&mut self, object: &Bound<'_, PyAny>, name: &dyn Fn() -> String) -> PyResult<Resolved> {
        match self.resolved_before(object) {
            Some(resolved) => Ok(resolved),
            None => resolve_new(object, name),
        }
    }

    /// A dtype that some call has resolved already.
    pub(crate) fn resolved_before(&mut self, object: &Bound<'_, PyAny>) -> Option<Resolved> {
        let identity = object.as_ptr() as usize;
        if let Some((_, resolved)) = self.seen.iter().find(|(seen, _)| *seen == identity) {
            return Some(*resolved);
        }
        let resolved = known(identity)?;
        if self.seen.len() < SEEN_MAX {
            self.seen.push((identity, resolved));
        }
        Some(resolved)
    }
}

/// Position of a dtype in `DType::ALL`, which stands in the order of the codes.
pub(crate) fn index_of(dtype: DType) -> usize {
    usize::from(dtype.code())
}

/// Bytes of one element.
pub(crate) fn item_bytes(dtype: DType) -> usize {
    usize::try_from(dtype.item_bytes()).expect("a few bytes")
}

fn known(identity: usize) -> Option<Resolved> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.as_ref()?.get(&identity).map(|(_, resolved)| *resolved)
}

fn resolve_new(object: &Bound<'_, PyAny>, name: &dyn Fn() -> String) -> PyResult<Resolved> {
    let py = object.py();
    let resolve = RESOLVE.import(py, "tensorlease.dtypes", "resolve")?;
    let (text, flavour): (String, String) = resolve.call1((object, name()))?.extract()?;
    let dtype = DType::from_name(&text).map_err(|error| config_error(py, &format!("dtype of {}: {error}", name())))?;
    let flavour = match flavour.as_str() {
        "torch" => Flavour::Torch,
        "numpy" => Flavour::Numpy,
        _ => Flavour::Any,
    };
    let resolved = Resolved { dtype, flavour };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if known.len() < KNOWN_MAX {
        known.insert(object.as_ptr() as usize, (object.clone().unbind(), resolved));
    }
    Ok(resolved)
}

/// Names of all dtypes.
#[pyfunction]
pub(crate) fn dtype_names() -> Vec<&'static str> {
    DType::ALL.iter().map(|dtype| dtype.name()).collect()
}
