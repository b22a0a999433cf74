//! What a read brought, as Python objects.
use crate::{
    buffer::{InPlace, Lease},
    dlpack::Owner,
    dtype::Flavour,
    error::{config_error, mismatch_error},
    numpy::{self, Form, Numpy},
    numpy_api::Memory,
    read::Wish,
    shape::{self, Dims},
    torch::{self, Torch},
};
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyBytes, PyList},
};
use std::{sync::Arc, time::Instant};
use tensorlease::{Buffer, DType, ObjectKind, ReadValue, Store, TensorSpec, ValueView};

static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Makes tensors of either framework.
pub(crate) struct Wrapper<'py> {
    py: Python<'py>,
    /// Looked for when the first tensor wants it: values that are none need no framework, and torch takes seconds to import.
    torch: Option<Option<&'static Torch>>,
    numpy: Option<&'static Numpy>,
}

impl<'py> Wrapper<'py> {
    /// With whatever is installed.
    pub(crate) fn new(py: Python<'py>) -> Self {
        Self {
            py,
            torch: None,
            numpy: None,
        }
    }

    /// torch, for a tensor of this flavour.
    fn torch(&mut self, flavour: Flavour) -> PyResult<Option<&'static Torch>> {
        if flavour == Flavour::Numpy {
            return Ok(None);
        }
        match self.torch {
            Some(torch) => Ok(torch),
            None => Ok(*self.torch.insert(torch::installed(self.py)?)),
        }
    }

    /// One tensor that owns its memory.
    pub(crate) fn tensor(
        &mut self,
        spec: &TensorSpec,
        buffer: Option<Buffer>,
        flavour: Flavour,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(torch) = self.torch(flavour)? {
            return torch.wrap(self.py, spec, buffer);
        }
        self.dims(spec.dtype(), &shape::signed(spec.shape()), buffer, flavour)
    }

    /// The same, from a dtype and dimensions.
    pub(crate) fn dims(
        &mut self,
        dtype: DType,
        dims: &Dims,
        buffer: Option<Buffer>,
        flavour: Flavour,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(torch) = self.torch(flavour)? {
            return torch.wrap_dims(self.py, dtype, dims, buffer.map(Owner::Buffer));
        }
        if self.numpy.is_none() {
            self.numpy = numpy::installed(self.py)?;
        }
        let Some(numpy) = self.numpy else {
            let message = "tensors need torch or numpy, and neither is installed; install one of them";
            return Err(config_error(self.py, message));
        };
        numpy.wrap(self.py, dtype, dims, buffer)
    }

    /// A tensor of int64 in ordinary memory. Only torch has a use for it.
    pub(crate) fn words(&mut self, words: Vec<i64>) -> PyResult<Bound<'py, PyAny>> {
        let Some(torch) = self.torch(Flavour::Any)? else {
            let message = "rows of different lengths make a jagged tensor, which needs torch; install torch, or read the rows with get()";
            return Err(config_error(self.py, message));
        };
        let dims = Dims::from_slice(&[i64::try_from(words.len()).expect("fewer than bytes of memory")]);
        torch.wrap_dims(self.py, DType::I64, &dims, Some(Owner::Words(words.into())))
    }
}

/// The values of one read, in order. `keys` are named in errors.
pub(crate) fn values<'py>(
    store: &Store,
    keys: &Bound<'py, PyList>,
    found: Vec<ReadValue>,
    wishes: &[Wish],
    allow_pickle: bool,
) -> PyResult<Bound<'py, PyList>> {
    let py = keys.py();
    let key = |index: usize| keys.get_item(index).and_then(|key| key.extract::<String>());
    let mut wrapper = Wrapper::new(py);
    let mut packed = Vec::new();
    let mut objects = Vec::with_capacity(found.len());
    let started = Instant::now();
    for (index, (value, wish)) in found.into_iter().zip(wishes).enumerate() {
        match (value.kind, wish) {
            (ObjectKind::Tensor(spec), Wish::Tensor(flavour)) => {
                objects.push(wrapper.tensor(&spec, value.buffer, *flavour)?);
            }
            (ObjectKind::Tensor(spec), Wish::Any) => {
                objects.push(wrapper.tensor(&spec, value.buffer, Flavour::Any)?);
            }
            // Asked for as no tensor: arrays are values, and nobody remembers which framework an object came from.
            (ObjectKind::Tensor(spec), Wish::Value) => {
                objects.push(wrapper.tensor(&spec, value.buffer, Flavour::Numpy)?);
            }
            (ObjectKind::Packed, Wish::Tensor(_)) => {
                let message = "holds a value that is no tensor; pass dtype None";
                return Err(mismatch_error(py, &key(index)?, message));
            }
            (ObjectKind::Packed, Wish::Value | Wish::Any) => {
                objects.push(py.None().into_bound(py));
                packed.push((index, value.buffer));
            }
        }
    }
    store.count_wrap(started.elapsed());
    for (index, buffer) in packed {
        objects[index] = decode(py, buffer, &key(index)?, allow_pickle)?;
    }
    PyList::new(py, objects)
}

/// The same for values that are read in place: numpy arrays over the store's own memory, read-only.
pub(crate) fn in_place<'py>(
    store: &Store,
    keys: &Bound<'py, PyList>,
    found: Vec<ValueView>,
    wishes: &[Wish],
    allow_pickle: bool,
) -> PyResult<Bound<'py, PyList>> {
    let py = keys.py();
    let key = |index: usize| keys.get_item(index).and_then(|key| key.extract::<String>());
    let Some(numpy) = numpy::installed(py)? else {
        return Err(config_error(
            py,
            "view=True gives numpy arrays, and numpy is not installed; install it",
        ));
    };
    let started = Instant::now();
    let mut objects = Vec::with_capacity(found.len());
    // Values of one kind share their spec, and then shape and dtype as numpy takes them.
    let mut last: Option<(Arc<TensorSpec>, Form<'py>)> = None;
    for (index, (value, wish)) in found.into_iter().zip(wishes).enumerate() {
        let memory = value.view.map(|view| InPlace::memory(py, view)).transpose()?;
        objects.push(match value.kind {
            ObjectKind::Tensor(spec) => {
                let form = match last.take() {
                    Some((known, form)) if Arc::ptr_eq(&known, &spec) => form,
                    _ => numpy.form(py, spec.dtype(), &shape::signed(spec.shape()))?,
                };
                let (_, form) = last.insert((spec, form));
                numpy.over(form, memory)?
            }
            ObjectKind::Packed if matches!(wish, Wish::Tensor(_)) => {
                let message = "holds a value that is no tensor; pass dtype None";
                return Err(mismatch_error(py, &key(index)?, message));
            }
            ObjectKind::Packed => {
                let owner = memory.map(Memory::into_owner);
                decoded(py, owner, &key(index)?, allow_pickle)?
            }
        });
    }
    store.count_wrap(started.elapsed());
    PyList::new(py, objects)
}

fn decode<'py>(py: Python<'py>, buffer: Option<Buffer>, key: &str, allow_pickle: bool) -> PyResult<Bound<'py, PyAny>> {
    let memory = Lease::object(py, buffer)?;
    decoded(py, memory, key, allow_pickle)
}

fn decoded<'py>(
    py: Python<'py>,
    memory: Option<Bound<'py, PyAny>>,
    key: &str,
    allow_pickle: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let decode = DECODE
        .get_or_try_init(py, || {
            py.import("tensorlease.codec")?.getattr("decode").map(Bound::unbind)
        })?
        .bind(py);
    match memory {
        Some(memory) => decode.call1((memory, key, allow_pickle)),
        None => decode.call1((PyBytes::new(py, b""), key, allow_pickle)),
    }
}
