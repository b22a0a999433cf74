//! Values from Python as objects to store, and tensors of Python as destinations.
use crate::{
    dlpack::{self, DLDataType},
    dtype::DTypes,
    error::{named, refuse},
    foreign,
    numpy::{NUMPY, Numpy},
    numpy_api::ArrayView,
    shape::{Specs, dims_of},
    torch::{TORCH, Torch, storage_of},
};
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyBytes, PyDict, PyList},
};
use std::sync::Arc;
use tensorlease::{CallerMemory, DType, ObjectKind, PutItem, Segment, Store, TensorSpec};
use tensorlease_memory::Region;

static PREPARE_TENSOR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static IS_NUMERIC: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static PREPARE_ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Turns values into objects to store.
pub(crate) struct Values<'py, 'store> {
    py: Python<'py>,
    store: &'store Store,
    torch: Option<&'static Torch>,
    numpy: Option<&'static Numpy>,
    specs: Specs,
    dtypes: DTypes,
    allow_pickle: bool,
    /// The storage of the last tensor that was asked for it.
    storage: Option<Region>,
}

/// Memory and kind of one tensor.
pub(crate) struct TensorMemory {
    pub(crate) foreign: Option<CallerMemory>,
    pub(crate) spec: Arc<TensorSpec>,
    /// The store has said that it lies in its arena.
    leased: bool,
}

impl TensorMemory {
    fn new(foreign: Option<CallerMemory>, spec: Arc<TensorSpec>) -> Self {
        Self {
            foreign,
            spec,
            leased: false,
        }
    }
}

/// What keeps the bytes of a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// Nothing is known to keep them.
    Not,
    ByStorage,
    ByArena,
}

impl<'py, 'store> Values<'py, 'store> {
    /// For one call.
    pub(crate) fn new(py: Python<'py>, store: &'store Store, allow_pickle: bool) -> PyResult<Self> {
        Ok(Self {
            py,
            store,
            torch: TORCH.imported(py)?,
            numpy: NUMPY.imported(py)?,
            specs: Specs::default(),
            dtypes: DTypes::default(),
            allow_pickle,
            storage: None,
        })
    }

    /// The object to store for `value`, and what `put` returns for it.
    pub(crate) fn item(
        &mut self,
        key: String,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<(PutItem, Option<Bound<'py, PyDict>>)> {
        if let Some(memory) = self.tensor(value, &key)? {
            let segment = if memory.leased {
                Segment::Leased
            } else {
                Segment::Caller
            };
            let segments = memory.foreign.map(segment).into_iter().collect();
            let kind = ObjectKind::Tensor(memory.spec);
            return Ok((PutItem { key, segments, kind }, None));
        }
        let encode = ENCODE.import(self.py, "tensorlease.codec", "encode")?;
        let parts = encode.call1((value, named(&key), self.allow_pickle))?;
        let mut segments = Vec::new();
        let mut bytes = 0;
        for part in parts.cast::<PyList>()?.iter() {
            let foreign = self.segment(part, &key)?;
            bytes += foreign.len();
            segments.push(Segment::Caller(foreign));
        }
        let meta = PyDict::new(self.py);
        meta.set_item("packed_size", bytes)?;
        let kind = ObjectKind::Packed;
        Ok((PutItem { key, segments, kind }, Some(meta)))
    }

    /// One part of an encoded value: bytes, or an array or tensor that the codec made plain.
    fn segment(&mut self, part: Bound<'py, PyAny>, key: &str) -> PyResult<CallerMemory> {
        let part = match part.cast_into::<PyBytes>() {
            Ok(bytes) => return Ok(foreign::of_bytes(bytes)),
            Err(error) => error.into_inner(),
        };
        if self.numpy.is_some_and(|numpy| numpy.is_plain(&part)) {
            let view = ArrayView::of(&part)?;
            // The codec keeps the byte order beside the bytes.
            if view.contiguous {
                return Ok(foreign::of_array(part, &view));
            }
        } else if let Some(foreign) = self.tensor(&part, key)?.and_then(|memory| memory.foreign) {
            return Ok(foreign);
        }
        refuse!(self.py, "{}: the codec made a part that is no plain memory", named(key))
    }

    /// The memory of a tensor or a numeric array. None: it is neither.
    fn tensor(&mut self, value: &Bound<'py, PyAny>, key: &str) -> PyResult<Option<TensorMemory>> {
        if let Some(torch) = self.torch {
            if let Some(memory) = self.plain_tensor(torch, value, key)? {
                return Ok(Some(memory));
            }
            if torch.is_tensor(value)? {
                let prepare = PREPARE_TENSOR.import(self.py, "tensorlease.torch_values", "prepare")?;
                let plain = prepare.call1((value, named(key)))?;
                return self.prepared_tensor(torch, &plain, key).map(Some);
            }
        }
        if self.numpy.is_some_and(|numpy| numpy.is_plain(value)) {
            return self.array(value, key);
        }
        Ok(None)
    }

    /// A tensor whose memory is its value: it is on the CPU and contiguous, and nothing is pending. None: only Python
    /// can tell.
    fn plain_tensor(&mut self, torch: &Torch, value: &Bound<'py, PyAny>, key: &str) -> PyResult<Option<TensorMemory>> {
        let Some(exchange) = torch.plain(value) else {
            return Ok(None);
        };
        // A sparse, meta or quantized tensor has no view. Python finds out which it is and says what to do.
        let Ok(view) = exchange.view(value) else {
            return Ok(None);
        };
        let Some(dtype) = dtype_of(view.dtype) else {
            return Ok(None);
        };
        if view.device_type != dlpack::DEVICE_CPU || !view.contiguous || has_pending_sign(value, dtype)? {
            return Ok(None);
        }
        let spec = self.specs.of_view(self.py, dtype, &view.shape, key)?;
        if spec.bytes() == 0 {
            return Ok(Some(TensorMemory::new(None, spec)));
        }
        let len = usize::try_from(spec.bytes()).expect("the tensor is in memory");
        // A null address, or another dtype than the exported one (torch exports 4-bit integers as bytes), is for Python
        // to find out about.
        if view.data.is_null() || (dtype.item_bytes() == 1 && !torch.has_dtype(value, dtype)?) {
            return Ok(None);
        }
        let addr = view.data as usize;
        let held = self.held(value, Region { addr, len })?;
        let foreign = (held != Held::Not).then(|| foreign::of_tensor(value.clone(), &view, len));
        Ok(foreign.map(|foreign| TensorMemory {
            foreign: Some(foreign),
            spec,
            leased: held == Held::ByArena,
        }))
    }

    /// What keeps the bytes of the tensor alive. Asking torch costs more than all the rest, so it is asked last.
    fn held(&mut self, value: &Bound<'py, PyAny>, bytes: Region) -> PyResult<Held> {
        // Rows of one batch share its storage. A row that was taken before keeps the storage alive for this call, and
        // no other storage lies in it.
        if self.storage.is_some_and(|storage| storage.contains(bytes)) {
            return Ok(Held::ByStorage);
        }
        // A block of the arena can't be shrunk or freed under its tensor.
        if self.store.owns(bytes) {
            return Ok(Held::ByArena);
        }
        let Some(storage) = storage_of(value, bytes.addr, bytes.len)? else {
            return Ok(Held::Not);
        };
        self.storage = Some(storage);
        Ok(Held::ByStorage)
    }

    /// The memory of what `prepare` returned, also where torch has no exchange interface for it.
    fn prepared_tensor(&mut self, torch: &Torch, plain: &Bound<'py, PyAny>, key: &str) -> PyResult<TensorMemory> {
        if let Some(memory) = self.plain_tensor(torch, plain, key)? {
            return Ok(memory);
        }
        // The exchange interface does not cover this dtype or this torch. The array of its bytes and its attributes
        // tell the same.
        let resolved = self.dtypes.resolve(&plain.getattr("dtype")?, &|| named(key))?;
        let dims = dims_of(&plain.getattr("shape")?, &|| named(key))?;
        let spec = self.specs.of_dims(self.py, resolved.dtype, &dims, &|| named(key))?;
        if spec.bytes() == 0 {
            return Ok(TensorMemory::new(None, spec));
        }
        let values = self.py.import("tensorlease.torch_values")?;
        let bytes = values.call_method1("bytes_of", (plain,))?;
        let view = ArrayView::of(&bytes)?;
        Ok(TensorMemory::new(Some(foreign::of_array(bytes, &view)), spec))
    }

    fn array(&mut self, value: &Bound<'py, PyAny>, key: &str) -> PyResult<Option<TensorMemory>> {
        // An array of numbers whose memory is its value needs no call of Python, once its dtype was seen.
        let dtypes = &mut self.dtypes;
        let known = |dtype: &Bound<'_, PyAny>| dtypes.resolved_before(dtype).map(|resolved| resolved.dtype);
        let looked = self.numpy.and_then(|numpy| numpy.look(value, known));
        if let Some((dtype, view)) = looked
            && dtype != DType::Bool
            && view.contiguous
            && view.native
        {
            return self.of_array(value.clone(), &view, dtype, key).map(Some);
        }
        let dtype = value.getattr(pyo3::intern!(self.py, "dtype"))?;
        // Text, dates, records, bools and long doubles are no tensors. The codec keeps them.
        let numeric = match self.dtypes.resolved_before(&dtype) {
            Some(resolved) => resolved.dtype != DType::Bool,
            None => {
                let is_numeric = IS_NUMERIC.import(self.py, "tensorlease.numpy_values", "is_numeric")?;
                is_numeric.call1((dtype,))?.is_truthy()?
            }
        };
        if !numeric {
            return Ok(None);
        }
        let (mut value, mut view) = (value.clone(), ArrayView::of(value)?);
        if !(view.contiguous && view.native) {
            let prepare = PREPARE_ARRAY.import(self.py, "tensorlease.numpy_values", "prepare")?;
            value = prepare.call1((value,))?;
            view = ArrayView::of(&value)?;
        }
        let resolved = self.dtypes.resolve(&value.getattr("dtype")?, &|| named(key))?;
        self.of_array(value, &view, resolved.dtype, key).map(Some)
    }

    /// The memory of an array that is contiguous.
    fn of_array(
        &mut self,
        array: Bound<'py, PyAny>,
        view: &ArrayView,
        dtype: DType,
        key: &str,
    ) -> PyResult<TensorMemory> {
        let spec = self.specs.of_view(self.py, dtype, &view.shape, key)?;
        let foreign = (spec.bytes() > 0).then(|| foreign::of_array(array, view));
        Ok(TensorMemory::new(foreign, spec))
    }

    /// The memory of a destination of `get_into`, which must be contiguous and writeable in place.
    pub(crate) fn destination(&mut self, value: &Bound<'py, PyAny>, key: &str) -> PyResult<TensorMemory> {
        let refuse = |what: &str| {
            let key = named(key);
            refuse!(
                self.py,
                "destination of {key} {what}; give a contiguous tensor or array in CPU memory"
            )
        };
        if let Some(torch) = self.torch
            && torch.is_tensor(value)?
        {
            // Preparing may copy, and a copy is no destination. A tensor that was copied is refused.
            let checked = PREPARE_TENSOR.import(self.py, "tensorlease.torch_values", "prepare")?;
            let plain = checked.call1((value, named(key)))?;
            // A subclass may have no address, and may raise anything to say so.
            let lies_at = |tensor: &Bound<'py, PyAny>| tensor.call_method0("data_ptr")?.extract::<usize>();
            let same = matches!((lies_at(&plain), lies_at(value)), (Ok(a), Ok(b)) if a == b);
            return if same {
                self.prepared_tensor(torch, &plain, key)
            } else {
                refuse("is not contiguous")
            };
        }
        if self.numpy.is_some_and(|numpy| numpy.is_plain(value)) {
            let view = ArrayView::of(value)?;
            if !view.contiguous {
                return refuse("is not contiguous");
            }
            if !view.writeable {
                return refuse("is read-only");
            }
            let resolved = self.dtypes.resolve(&value.getattr("dtype")?, &|| named(key))?;
            return self.of_array(value.clone(), &view, resolved.dtype, key);
        }
        let kind = value.get_type().name()?;
        refuse(&format!("is a {kind}"))
    }
}

/// The dtype that DLPack's codes stand for.
fn dtype_of(code: DLDataType) -> Option<DType> {
    DType::ALL
        .iter()
        .copied()
        .find(|dtype| DLDataType::from(*dtype) == code)
}

/// torch negates and conjugates lazily. The memory then holds another value than the tensor.
fn has_pending_sign(tensor: &Bound<'_, PyAny>, dtype: DType) -> PyResult<bool> {
    let py = tensor.py();
    let complex = matches!(dtype, DType::C32 | DType::C64 | DType::C128);
    if complex && tensor.call_method0(pyo3::intern!(py, "is_conj"))?.is_truthy()? {
        return Ok(true);
    }
    // A view of an imaginary part is a real tensor with the bit set, of a type that complex numbers are made of.
    let signed = complex || matches!(dtype, DType::F16 | DType::F32 | DType::F64);
    Ok(signed && tensor.call_method0(pyo3::intern!(py, "is_neg"))?.is_truthy()?)
}
