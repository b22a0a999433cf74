//! What is used of torch, and its tensors over delivered memory.
use crate::{
    dlpack::{self, DLDataType, Export, Owner},
    dtype::{index_of, item_bytes},
    error::config_error,
    exchange::Exchange,
    imported::Framework,
    shape::Dims,
    switch::Switch,
};
use pyo3::{
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyTuple},
};
use tensorlease::DType;
use tensorlease_memory::Region;

/// torch, where it is installed.
pub(crate) static TORCH: Framework<Torch> = Framework::new("torch", Torch::load);
/// Tensors go in as capsules, as with a torch that has no exchange interface.
pub(crate) static CAPSULES_ONLY: Switch = Switch::off();

/// How tensors of one dtype get into torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImportMethod {
    Exchange,
    Capsule,
    /// As bytes that torch then views as the dtype, which its DLPack doesn't know.
    Bytes,
}

/// What is used of torch.
pub(crate) struct Torch {
    tensor: Py<PyAny>,
    parameter: Py<PyAny>,
    empty: Py<PyAny>,
    from_dlpack: Py<PyAny>,
    exchange: Option<Exchange>,
    /// torch's dtype objects in the order of `DType::ALL`. None: this torch has no such dtype.
    dtypes: Vec<Option<Py<PyAny>>>,
    /// Tried with one tensor each when the dtype is first used, in the order of `DType::ALL`.
    methods: Vec<PyOnceLock<ImportMethod>>,
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
            methods: DType::ALL.iter().map(|_| PyOnceLock::new()).collect(),
            tensor: tensor.unbind(),
        })
    }

    /// The exchange interface, for exactly a tensor or a parameter. None: only Python can tell where the object lies.
    pub(crate) fn plain(&self, object: &Bound<'_, PyAny>) -> Option<Exchange> {
        let class = object.get_type_ptr().cast();
        if class == self.tensor.as_ptr() || class == self.parameter.as_ptr() {
            self.exchange
        } else {
            None
        }
    }

    /// Does torch call its dtype `dtype`?
    pub(crate) fn has_dtype(&self, tensor: &Bound<'_, PyAny>, dtype: DType) -> PyResult<bool> {
        let found = tensor.getattr(intern!(tensor.py(), "dtype"))?;
        Ok(self.dtypes[index_of(dtype)]
            .as_ref()
            .is_some_and(|known| found.is(known)))
    }

    /// Is it a tensor of any class?
    pub(crate) fn is_tensor(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        object.is_instance(self.tensor.bind(object.py()))
    }

    /// A tensor of `dtype` and `dims` that owns `owner`.
    pub(crate) fn wrap<'py>(
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
        match self.method(py, dtype)? {
            ImportMethod::Bytes => {
                let bytes = dims.iter().product::<i64>() * i64::try_from(item_bytes).expect("a few bytes");
                let export = Export::new(owner, DType::U8.into(), 1, &Dims::from_slice(&[bytes]));
                let flat = self.import_by(py, self.method(py, DType::U8)?, export)?;
                let typed = flat.call_method1("view", (self.dtype_object(py, dtype)?,))?;
                typed.call_method1("reshape", (PyTuple::new(py, dims)?,))
            }
            method => self.import_by(
                py,
                method,
                Export::new(owner, DLDataType::from(dtype), item_bytes, dims),
            ),
        }
    }

    fn make_empty<'py>(&self, py: Python<'py>, dtype: DType, dims: &Dims) -> PyResult<Bound<'py, PyAny>> {
        let keywords = PyDict::new(py);
        keywords.set_item("dtype", self.dtype_object(py, dtype)?)?;
        // torch.set_default_device must not move it.
        keywords.set_item("device", "cpu")?;
        self.empty.bind(py).call((PyTuple::new(py, dims)?,), Some(&keywords))
    }

    fn dtype_object<'py>(&self, py: Python<'py>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
        self.dtypes[index_of(dtype)]
            .as_ref()
            .map(|object| object.bind(py).clone())
            .ok_or_else(|| {
                let name = dtype.name();
                let message = format!("this torch has no dtype {name}; install a newer one, or ask for numpy arrays");
                config_error(py, &message)
            })
    }

    pub(crate) fn import_by<'py>(
        &self,
        py: Python<'py>,
        method: ImportMethod,
        export: Export,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let (ImportMethod::Exchange, Some(exchange)) = (method, &self.exchange)
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

    fn method(&self, py: Python<'_>, dtype: DType) -> PyResult<ImportMethod> {
        let method = self.methods[index_of(dtype)].get_or_try_init(py, || self.find_method(py, dtype))?;
        Ok(*method)
    }

    /// Tries a small tensor, since versions of torch differ in the dtypes that their DLPack knows.
    fn find_method(&self, py: Python<'_>, dtype: DType) -> PyResult<ImportMethod> {
        const PROBE_BYTES: usize = 16;
        let wanted = self.dtype_object(py, dtype)?;
        let methods = if self.exchange.is_some() {
            &[ImportMethod::Exchange, ImportMethod::Capsule][..]
        } else {
            &[ImportMethod::Capsule]
        };
        for &method in methods {
            let item_bytes = item_bytes(dtype);
            let dims = Dims::from_slice(&[i64::try_from(PROBE_BYTES / item_bytes).expect("a few items")]);
            let owner = Owner::Words(vec![0; PROBE_BYTES / size_of::<i64>()].into());
            let export = Export::new(owner, DLDataType::from(dtype), item_bytes, &dims);
            if let Ok(tensor) = self.import_by(py, method, export)
                && tensor.getattr("dtype")?.is(&wanted)
                && tensor.getattr("shape")?.eq(PyTuple::new(py, &dims)?)?
            {
                return Ok(method);
            }
        }
        Ok(ImportMethod::Bytes)
    }
}

/// The tensor's storage, if it holds the `bytes` from `data` on. A failed `resize_` leaves a shape that it does not
/// hold, and a freed storage (as FSDP leaves it) holds nothing.
pub(crate) fn storage_of(tensor: &Bound<'_, PyAny>, data: usize, bytes: usize) -> PyResult<Option<Region>> {
    let py = tensor.py();
    // A tensor without a storage (a transform's, a wrapper's) has no memory of its own.
    let Ok(storage) = tensor.call_method0(intern!(py, "untyped_storage")) else {
        return Ok(None);
    };
    let addr: usize = storage.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let len: usize = storage.call_method0(intern!(py, "nbytes"))?.extract()?;
    let holds = addr <= data && data - addr <= len && bytes <= len - (data - addr);
    Ok(holds.then_some(Region { addr, len }))
}
