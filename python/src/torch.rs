//! torch, where it is installed: its objects, looked up once, and its tensors over delivered memory.
use crate::{
    dlpack::{self, DLDataType, Export, Owner},
    dtype::index_of,
    exchange::Exchange,
    imported::{is_imported, not_imported},
    shape::{self, Dims},
    switch::Switch,
};
use pyo3::{
    exceptions::PyImportError,
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyTuple},
};
use tensorlease::{Buffer, DType, TensorSpec};
use tensorlease_memory::Region;

static TORCH: PyOnceLock<Option<Torch>> = PyOnceLock::new();
/// Tensors go in as capsules, as with a torch that has no exchange interface.
pub(crate) static CAPSULES_ONLY: Switch = Switch::off();

/// How tensors of one dtype get into torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Exchange,
    Capsule,
    /// As bytes that torch then sees as the dtype: DLPack doesn't know it.
    Bytes,
}

/// What is used of torch.
pub(crate) struct Torch {
    tensor: Py<PyAny>,
    parameter: Py<PyAny>,
    empty: Py<PyAny>,
    from_dlpack: Py<PyAny>,
    exchange: Option<Exchange>,
    /// torch's dtype objects in the order of `DType::ALL`; None: this torch has no such dtype.
    dtypes: Vec<Option<Py<PyAny>>>,
    /// Found by one tensor each, when the dtype is first used, in the order of `DType::ALL`.
    ways: Vec<PyOnceLock<Way>>,
}

/// torch, or None where it is not installed.
pub(crate) fn installed(py: Python<'_>) -> PyResult<Option<&'static Torch>> {
    let torch = TORCH.get_or_try_init(py, || match Torch::load(py) {
        Ok(torch) => Ok(Some(torch)),
        Err(error) if error.is_instance_of::<PyImportError>(py) => Ok(None),
        Err(error) => Err(not_imported(py, "torch", error)),
    })?;
    Ok(torch.as_ref())
}

/// torch, where this process has imported it: elsewhere no value is a tensor of it.
pub(crate) fn imported(py: Python<'_>) -> PyResult<Option<&'static Torch>> {
    if is_imported(py, intern!(py, "torch"))? {
        installed(py)
    } else {
        Ok(None)
    }
}

impl Torch {
    fn load(py: Python<'_>) -> PyResult<Self> {
        let torch = py.import("torch")?;
        let tensor = torch.getattr("Tensor")?;
        let exchange = tensor
            .getattr_opt("__dlpack_c_exchange_api__")?
            .as_ref()
            .and_then(Exchange::load);
        let dtype_of = |dtype: &DType| torch.getattr_opt(dtype.name()).map(|object| object.map(Bound::unbind));
        Ok(Self {
            parameter: torch.getattr("nn")?.getattr("Parameter")?.unbind(),
            empty: torch.getattr("empty")?.unbind(),
            from_dlpack: py.import("torch.utils.dlpack")?.getattr("from_dlpack")?.unbind(),
            exchange,
            dtypes: DType::ALL.iter().map(dtype_of).collect::<PyResult<_>>()?,
            ways: DType::ALL.iter().map(|_| PyOnceLock::new()).collect(),
            tensor: tensor.unbind(),
        })
    }

    /// Exactly a tensor or a parameter, whose memory the exchange interface tells; None: look at it in Python.
    pub(crate) fn plain(&self, object: &Bound<'_, PyAny>) -> Option<Exchange> {
        let class = object.get_type_ptr().cast();
        if class == self.tensor.as_ptr() || class == self.parameter.as_ptr() {
            self.exchange
        } else {
            None
        }
    }

    /// Is `dtype` what torch says of it?
    pub(crate) fn has_dtype(&self, tensor: &Bound<'_, PyAny>, dtype: DType) -> PyResult<bool> {
        let found = tensor.getattr(pyo3::intern!(tensor.py(), "dtype"))?;
        Ok(self.dtypes[index_of(dtype)]
            .as_ref()
            .is_some_and(|known| found.is(known)))
    }

    /// Is it a tensor of any class?
    pub(crate) fn is_tensor(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        object.is_instance(self.tensor.bind(object.py()))
    }

    /// A tensor of `spec` that owns `buffer`. `buffer` is None exactly when the tensor has no bytes.
    pub(crate) fn wrap<'py>(
        &self,
        py: Python<'py>,
        spec: &TensorSpec,
        buffer: Option<Buffer>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dims = shape::signed(spec.shape());
        self.wrap_dims(py, spec.dtype(), &dims, buffer.map(Owner::Buffer))
    }

    /// A tensor of `dtype` and `dims` that owns `owner`.
    pub(crate) fn wrap_dims<'py>(
        &self,
        py: Python<'py>,
        dtype: DType,
        dims: &Dims,
        owner: Option<Owner>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(owner) = owner.filter(|_| !dims.contains(&0)) else {
            return self.make_empty(py, dtype, dims);
        };
        let item_bytes = item_bytes(dtype);
        match self.way(py, dtype)? {
            Way::Bytes => {
                let bytes = dims.iter().product::<i64>() * i64::try_from(item_bytes).expect("a few bytes");
                let export = Export::new(owner, DType::U8.into(), 1, &Dims::from_slice(&[bytes]));
                let flat = self.import(py, DType::U8, export)?;
                let typed = flat.call_method1("view", (self.dtype_object(py, dtype)?,))?;
                typed.call_method1("reshape", (PyTuple::new(py, dims)?,))
            }
            way => self.import_by(py, way, Export::new(owner, DLDataType::from(dtype), item_bytes, dims)),
        }
    }

    fn make_empty<'py>(&self, py: Python<'py>, dtype: DType, dims: &Dims) -> PyResult<Bound<'py, PyAny>> {
        let keywords = PyDict::new(py);
        keywords.set_item("dtype", self.dtype_object(py, dtype)?)?;
        // Also under torch.set_default_device.
        keywords.set_item("device", "cpu")?;
        self.empty.bind(py).call((PyTuple::new(py, dims)?,), Some(&keywords))
    }

    fn dtype_object<'py>(&self, py: Python<'py>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
        self.dtypes[index_of(dtype)]
            .as_ref()
            .map(|object| object.bind(py).clone())
            .ok_or_else(|| {
                let message = format!(
                    "this torch has no dtype {}; install a newer one, or ask for numpy arrays",
                    dtype.name()
                );
                crate::error::config_error(py, &message)
            })
    }

    fn import<'py>(&self, py: Python<'py>, dtype: DType, export: Export) -> PyResult<Bound<'py, PyAny>> {
        self.import_by(py, self.way(py, dtype)?, export)
    }

    pub(crate) fn import_by<'py>(&self, py: Python<'py>, way: Way, export: Export) -> PyResult<Bound<'py, PyAny>> {
        if let (Way::Exchange, Some(exchange)) = (way, &self.exchange)
            && !CAPSULES_ONLY.is_on()
        {
            return exchange.import(py, export);
        }
        let capsule = export.into_capsule(py)?;
        let tensor = self.from_dlpack.bind(py).call1((&capsule,))?;
        debug_assert!(
            !dlpack::is_unused(&capsule),
            "torch takes the tensor out of the capsule"
        );
        Ok(tensor)
    }

    fn way(&self, py: Python<'_>, dtype: DType) -> PyResult<Way> {
        let way = self.ways[index_of(dtype)].get_or_try_init(py, || self.find_way(py, dtype))?;
        Ok(*way)
    }

    /// Tries a small tensor: which dtypes torch's DLPack knows differs between its versions.
    fn find_way(&self, py: Python<'_>, dtype: DType) -> PyResult<Way> {
        const PROBE_BYTES: usize = 16;
        let wanted = self.dtype_object(py, dtype)?;
        let ways = if self.exchange.is_some() {
            &[Way::Exchange, Way::Capsule][..]
        } else {
            &[Way::Capsule]
        };
        for &way in ways {
            let item_bytes = item_bytes(dtype);
            let dims = Dims::from_slice(&[i64::try_from(PROBE_BYTES / item_bytes).expect("a few items")]);
            let owner = Owner::Words(vec![0; PROBE_BYTES / size_of::<i64>()].into());
            let export = Export::new(owner, DLDataType::from(dtype), item_bytes, &dims);
            if let Ok(tensor) = self.import_by(py, way, export)
                && tensor.getattr("dtype")?.is(&wanted)
                && tensor.getattr("shape")?.eq(PyTuple::new(py, &dims)?)?
            {
                return Ok(way);
            }
        }
        Ok(Way::Bytes)
    }
}

/// The tensor's storage, if it holds the `bytes` from `data` on. A failed `resize_` leaves a shape that it does not hold, and a freed storage
/// (as FSDP leaves it) holds nothing.
pub(crate) fn storage_of(tensor: &Bound<'_, PyAny>, data: usize, bytes: usize) -> PyResult<Option<Region>> {
    let py = tensor.py();
    // A tensor without a storage (a transform's, a wrapper's) has no memory of its own.
    let Ok(storage) = tensor.call_method0(pyo3::intern!(py, "untyped_storage")) else {
        return Ok(None);
    };
    let addr: usize = storage.call_method0(pyo3::intern!(py, "data_ptr"))?.extract()?;
    let len: usize = storage.call_method0(pyo3::intern!(py, "nbytes"))?.extract()?;
    let holds = addr <= data && data - addr <= len && bytes <= len - (data - addr);
    Ok(holds.then_some(Region { addr, len }))
}

fn item_bytes(dtype: DType) -> usize {
    usize::try_from(dtype.item_bytes()).expect("a few bytes")
}
