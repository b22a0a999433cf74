//! numpy, where it is installed: its objects, looked up once, and its arrays over delivered memory.
use crate::{buffer::Lease, dtype::index_of, shape::Dims};
use pyo3::{exceptions::PyImportError, prelude::*, sync::PyOnceLock, types::PyTuple};
use tensorlease::{Buffer, DType};

static NUMPY: PyOnceLock<Option<Numpy>> = PyOnceLock::new();

/// What is used of numpy.
pub(crate) struct Numpy {
    array: Py<PyAny>,
    memmap: Py<PyAny>,
    empty: Py<PyAny>,
    /// numpy's dtype objects in the order of `DType::ALL`, made when first used.
    dtypes: Vec<PyOnceLock<Py<PyAny>>>,
}

/// numpy, or None where it is not installed.
pub(crate) fn installed(py: Python<'_>) -> PyResult<Option<&'static Numpy>> {
    let numpy = NUMPY.get_or_try_init(py, || match Numpy::load(py) {
        Ok(numpy) => Ok(Some(numpy)),
        Err(error) if error.is_instance_of::<PyImportError>(py) => Ok(None),
        Err(error) => Err(error),
    })?;
    Ok(numpy.as_ref())
}

impl Numpy {
    fn load(py: Python<'_>) -> PyResult<Self> {
        let numpy = py.import("numpy")?;
        Ok(Self {
            array: numpy.getattr("ndarray")?.unbind(),
            memmap: numpy.getattr("memmap")?.unbind(),
            empty: numpy.getattr("empty")?.unbind(),
            dtypes: DType::ALL.iter().map(|_| PyOnceLock::new()).collect(),
        })
    }

    /// Is it an array that is nothing but its elements? (A masked array is more.)
    pub(crate) fn is_plain(&self, object: &Bound<'_, PyAny>) -> bool {
        let class = object.get_type_ptr().cast();
        class == self.array.as_ptr() || class == self.memmap.as_ptr()
    }

    /// An array of `dtype` and `dims` that owns `buffer`. `buffer` is None exactly when the array has no bytes.
    pub(crate) fn wrap<'py>(
        &self,
        py: Python<'py>,
        dtype: DType,
        dims: &Dims,
        buffer: Option<Buffer>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = Lease::object(py, buffer)?;
        self.over(py, dtype, dims, memory)
    }

    /// An array over the buffer of a Python object, writable where that is. None exactly when the array has no bytes.
    pub(crate) fn over<'py>(
        &self,
        py: Python<'py>,
        dtype: DType,
        dims: &Dims,
        memory: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let object = self.dtypes[index_of(dtype)]
            .get_or_try_init(py, || {
                let found = py
                    .import("tensorlease.dtypes")?
                    .call_method1("numpy_dtype", (dtype.name(),));
                found.map(Bound::unbind)
            })?
            .bind(py);
        let shape = PyTuple::new(py, dims)?;
        match memory.filter(|_| !dims.contains(&0)) {
            Some(memory) => self.array.bind(py).call1((shape, object, memory)),
            None => self.empty.bind(py).call1((shape, object)),
        }
    }
}
