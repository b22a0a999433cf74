//! Shapes from Python, and the specs made of them. All keys of a read with one shape share a spec, and so do neighbours
//! of a put.
use crate::error::{config_error, named, refuse, shown};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use pyo3::{
    prelude::*,
    types::{PyInt, PyList, PyTuple},
};
use smallvec::SmallVec;
use std::{hash::BuildHasher, sync::Arc};
use tensorlease::{DType, TensorSpec};

/// Sizes of the dimensions, outermost first; never negative.
pub(crate) type Dims = SmallVec<[i64; 6]>;

/// The same, as the client counts them.
pub(crate) type Unsigned = SmallVec<[u64; 6]>;

/// Most dimensions of a tensor, as in torch.
const RANK_MAX: usize = 64;

/// Makes specs. A read makes one for each distinct shape, and a put makes one where the shape changes.
#[derive(Default)]
pub(crate) struct Specs {
    known: HashTable<Arc<TensorSpec>>,
    hashing: RandomState,
    /// The last answer and the shape object it was made from, which all keys share in most reads.
    last: Option<(usize, Arc<TensorSpec>)>,
}

impl Specs {
    /// The spec of `shape` and `dtype`. `name` tells an error which key it is about.
    pub(crate) fn of_object(
        &mut self,
        shape: &Bound<'_, PyAny>,
        dtype: DType,
        name: &dyn Fn() -> String,
    ) -> PyResult<Arc<TensorSpec>> {
        let identity = shape.as_ptr() as usize;
        if let Some((last, spec)) = &self.last
            && *last == identity
            && spec.dtype() == dtype
        {
            return Ok(Arc::clone(spec));
        }
        let spec = self.of_dims(shape.py(), dtype, &dims_of(shape, name)?, name)?;
        // The caller's sequence keeps every shape object alive during the call, so that an address stands for one
        // shape. A list is read again, since another thread could change it in between.
        if shape.is_instance_of::<PyTuple>() {
            self.last = Some((identity, Arc::clone(&spec)));
        }
        Ok(spec)
    }

    /// The spec of known dimensions.
    pub(crate) fn of_dims(
        &mut self,
        py: Python<'_>,
        dtype: DType,
        dims: &[u64],
        name: &dyn Fn() -> String,
    ) -> PyResult<Arc<TensorSpec>> {
        let is_it = |spec: &Arc<TensorSpec>| spec.dtype() == dtype && spec.shape() == dims;
        if let Some((_, spec)) = self.last.as_ref().filter(|(_, spec)| is_it(spec)) {
            return Ok(Arc::clone(spec));
        }
        let hash = self.hashing.hash_one((dtype, dims));
        if let Some(spec) = self.known.find(hash, is_it) {
            return Ok(Arc::clone(spec));
        }
        let spec = made(py, dtype, dims, name)?;
        let rehash = |spec: &Arc<TensorSpec>| self.hashing.hash_one((spec.dtype(), spec.shape()));
        self.known.insert_unique(hash, Arc::clone(&spec), rehash);
        Ok(spec)
    }

    /// The spec of a framework's own tensor, whose dimensions are known to be valid. Only the last one is kept, because
    /// making a spec takes less time than remembering and forgetting those of ragged rows.
    pub(crate) fn of_view(
        &mut self,
        py: Python<'_>,
        dtype: DType,
        dims: &Dims,
        key: &str,
    ) -> PyResult<Arc<TensorSpec>> {
        let equal = |spec: &TensorSpec| {
            spec.shape().len() == dims.len() && spec.shape().iter().zip(dims).all(|(a, b)| i64::try_from(*a) == Ok(*b))
        };
        if let Some((_, spec)) = &self.last
            && spec.dtype() == dtype
            && equal(spec)
        {
            return Ok(Arc::clone(spec));
        }
        let unsigned: Unsigned = dims.iter().map(|&dim| u64::try_from(dim).unwrap_or(0)).collect();
        let spec = made(py, dtype, &unsigned, &|| named(key))?;
        self.last = Some((0, Arc::clone(&spec)));
        Ok(spec)
    }
}

fn made(py: Python<'_>, dtype: DType, dims: &[u64], name: &dyn Fn() -> String) -> PyResult<Arc<TensorSpec>> {
    let refused = |error| config_error(py, &format!("shape of {}: {error}; check the shape", name()));
    TensorSpec::new(dtype, dims).map(Arc::new).map_err(refused)
}

/// Dimensions of a tuple, a list, a `torch.Size` or one int (one dimension).
pub(crate) fn dims_of(shape: &Bound<'_, PyAny>, name: &dyn Fn() -> String) -> PyResult<Unsigned> {
    let dim = |dim: Bound<'_, PyAny>| dim_of(&dim, shape, name);
    let dims: Unsigned = if let Ok(tuple) = shape.cast::<PyTuple>() {
        tuple.iter().map(dim).collect::<PyResult<_>>()?
    } else if let Ok(list) = shape.cast::<PyList>() {
        list.iter().map(dim).collect::<PyResult<_>>()?
    } else if shape.is_instance_of::<PyInt>() {
        dim(shape.clone()).map(|dim| Unsigned::from_slice(&[dim]))?
    } else {
        let (name, kind) = (name(), shape.get_type().name()?);
        return refuse!(
            shape.py(),
            "shape of {name} is a {kind}; give a tuple of ints, a torch.Size or one int"
        );
    };
    let (py, rank) = (shape.py(), dims.len());
    if rank > RANK_MAX {
        return refuse!(
            py,
            "shape of {} has {rank} dimensions; at most {RANK_MAX} are allowed",
            name()
        );
    }
    Ok(dims)
}

fn dim_of(dim: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>, name: &dyn Fn() -> String) -> PyResult<u64> {
    // The frameworks count in i64, and no tensor is larger.
    if let Ok(value) = dim.extract::<i64>()
        && let Ok(value) = u64::try_from(value)
    {
        return Ok(value);
    }
    let (name, shape, dim, py) = (name(), shown(shape), shown(dim), dim.py());
    refuse!(
        py,
        "shape of {name} is {shape}; each dimension must be an int from 0 to 2**63 - 1 (here {dim})"
    )
}

/// Dimensions as the frameworks count them.
pub(crate) fn signed(shape: &[u64]) -> Dims {
    let signed = |dim: &u64| i64::try_from(*dim).expect("checked where shapes come in");
    shape.iter().map(signed).collect()
}
