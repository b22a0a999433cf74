//! Shapes from Python, and the specs made of them: those of a read are shared by all keys of one shape, those of a put by neighbours.
use crate::error::{config_error, named, shown};
use pyo3::{
    prelude::*,
    types::{PyInt, PyList, PyTuple},
};
use smallvec::SmallVec;
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};
use tensorlease::{DType, TensorSpec};

/// Sizes of the dimensions, outermost first; never negative.
pub(crate) type Dims = SmallVec<[i64; 6]>;

/// Most dimensions of a tensor, as in torch.
const RANK_MAX: usize = 64;

type ByShape = HashMap<(DType, SmallVec<[u64; 6]>), Arc<TensorSpec>, BuildHasherDefault<Mixer>>;

/// Makes specs: of shapes that are passed each distinct one once, of values a new one where the shape changes.
#[derive(Default)]
pub(crate) struct Specs {
    known: ByShape,
    /// The last answer and the shape object it was made from: in most reads all keys share one.
    last: Option<(usize, DType, Arc<TensorSpec>)>,
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
        if let Some((last, last_dtype, spec)) = &self.last
            && *last == identity
            && *last_dtype == dtype
        {
            return Ok(Arc::clone(spec));
        }
        let dims = dims_of(shape, name)?;
        let spec = self.of_dims(dtype, dims, || (shape.py(), name()))?;
        // The caller's sequence keeps every shape object alive during the call, so an address stands for one shape; a list could be
        // changed in between by another thread, and is read again.
        if shape.is_instance_of::<PyTuple>() {
            self.last = Some((identity, dtype, Arc::clone(&spec)));
        }
        Ok(spec)
    }

    /// The spec of known dimensions.
    pub(crate) fn of_dims<'py>(
        &mut self,
        dtype: DType,
        dims: SmallVec<[u64; 6]>,
        context: impl FnOnce() -> (Python<'py>, String),
    ) -> PyResult<Arc<TensorSpec>> {
        if let Some((_, last_dtype, spec)) = &self.last
            && *last_dtype == dtype
            && spec.shape() == dims.as_slice()
        {
            return Ok(Arc::clone(spec));
        }
        let key = (dtype, dims);
        if let Some(spec) = self.known.get(&key) {
            return Ok(Arc::clone(spec));
        }
        let spec = made(dtype, &key.1, context)?;
        self.known.insert(key, Arc::clone(&spec));
        Ok(spec)
    }

    /// The spec of a framework's own tensor, whose dimensions are known to be valid. One more spec is made in less time than ragged rows take to
    /// be remembered and forgotten, so that only the last one is kept.
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
        if let Some((_, last_dtype, spec)) = &self.last
            && *last_dtype == dtype
            && equal(spec)
        {
            return Ok(Arc::clone(spec));
        }
        let unsigned: SmallVec<[u64; 6]> = dims.iter().map(|&dim| u64::try_from(dim).unwrap_or(0)).collect();
        let spec = made(dtype, &unsigned, || (py, named(key)))?;
        self.last = Some((0, dtype, Arc::clone(&spec)));
        Ok(spec)
    }
}

fn made<'py>(dtype: DType, dims: &[u64], context: impl FnOnce() -> (Python<'py>, String)) -> PyResult<Arc<TensorSpec>> {
    let spec = TensorSpec::new(dtype, dims).map_err(|error| {
        let (py, name) = context();
        config_error(py, &format!("shape of {name}: {error}; check the shape"))
    })?;
    Ok(Arc::new(spec))
}

/// Dimensions of a tuple, a list, a `torch.Size` or one int (one dimension).
pub(crate) fn dims_of(shape: &Bound<'_, PyAny>, name: &dyn Fn() -> String) -> PyResult<SmallVec<[u64; 6]>> {
    let mut dims = SmallVec::new();
    if let Ok(tuple) = shape.cast::<PyTuple>() {
        for dim in tuple.iter() {
            dims.push(dim_of(&dim, shape, name)?);
        }
    } else if let Ok(list) = shape.cast::<PyList>() {
        for dim in list.iter() {
            dims.push(dim_of(&dim, shape, name)?);
        }
    } else if shape.is_instance_of::<PyInt>() {
        dims.push(dim_of(shape, shape, name)?);
    } else {
        let kind = shape.get_type().name()?;
        let message = format!(
            "shape of {} is a {kind}; give a tuple of ints, a torch.Size or one int",
            name()
        );
        return Err(config_error(shape.py(), &message));
    }
    if dims.len() > RANK_MAX {
        let message = format!(
            "shape of {} has {} dimensions; at most {RANK_MAX} are allowed",
            name(),
            dims.len()
        );
        return Err(config_error(shape.py(), &message));
    }
    Ok(dims)
}

fn dim_of(dim: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>, name: &dyn Fn() -> String) -> PyResult<u64> {
    // i64 and not u64: more than that is no size of a tensor, and the frameworks count in i64.
    if let Ok(value) = dim.extract::<i64>()
        && let Ok(value) = u64::try_from(value)
    {
        return Ok(value);
    }
    let message = format!(
        "shape of {} is {}; each dimension must be an int from 0 to 2**63 - 1 (here {})",
        name(),
        shown(shape),
        shown(dim)
    );
    Err(config_error(dim.py(), &message))
}

/// Dimensions as the frameworks count them.
pub(crate) fn signed(shape: &[u64]) -> Dims {
    shape
        .iter()
        .map(|&dim| i64::try_from(dim).expect("checked where shapes come in"))
        .collect()
}

/// A hash for shapes: a ragged read looks one up per key. Whoever picks shapes that collide slows only their own call down.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u64(&mut self, word: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (self.0.rotate_left(23) ^ word).wrapping_mul(ODD);
        // The map looks at the top bits and the bottom ones, and a product has its entropy at the top.
        self.0 = mixed ^ (mixed >> 32);
    }
}
