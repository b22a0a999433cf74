//! What is used of numpy, and its arrays over delivered memory.
use crate::{
    buffer::Lease,
    dtype::{index_of, item_bytes},
    imported::Framework,
    numpy_api::{ArrayView, Memory, NumpyApi},
    shape::Dims,
    switch::Switch,
};
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyTuple, PyType},
};
use smallvec::SmallVec;
use tensorlease::{Buffer, DType};

/// numpy, where it is installed.
pub(crate) static NUMPY: Framework<Numpy> = Framework::new("numpy", Numpy::load);
/// Arrays are made, and looked at, by calls of Python, as with a numpy whose C interface is not known.
pub(crate) static BY_CALL: Switch = Switch::off();

/// What is used of numpy.
pub(crate) struct Numpy {
    array: Py<PyType>,
    /// The class of read-only arrays, loaded with the first of them.
    view: PyOnceLock<Py<PyType>>,
    memmap: Py<PyAny>,
    empty: Py<PyAny>,
    /// Makes arrays faster than calls of Python, where this numpy has it.
    api: Option<NumpyApi>,
    /// numpy's dtype objects in the order of `DType::ALL`, made when first used.
    dtypes: Vec<PyOnceLock<Py<PyAny>>>,
}

/// Shape and dtype of arrays as numpy takes them.
pub(crate) struct Form<'py> {
    shape: Bound<'py, PyTuple>,
    dims: SmallVec<[isize; 6]>,
    dtype: Bound<'py, PyAny>,
    item_bytes: usize,
    empty: bool,
}

impl Numpy {
    fn load(py: Python<'_>) -> PyResult<Self> {
        let numpy = py.import("numpy")?;
        Ok(Self {
            array: numpy.getattr("ndarray")?.cast_into::<PyType>()?.unbind(),
            view: PyOnceLock::new(),
            memmap: numpy.getattr("memmap")?.unbind(),
            empty: numpy.getattr("empty")?.unbind(),
            api: NumpyApi::load(numpy.as_any()),
            dtypes: DType::ALL.iter().map(|_| PyOnceLock::new()).collect(),
        })
    }

    /// Is it an array that is nothing but its elements? A masked array is more.
    pub(crate) fn is_plain(&self, object: &Bound<'_, PyAny>) -> bool {
        let class = object.get_type_ptr().cast();
        let seen = self.view.get(object.py());
        class == self.array.as_ptr() || class == self.memmap.as_ptr() || seen.is_some_and(|view| class == view.as_ptr())
    }

    /// The class of arrays over memory that may be written or not.
    fn class<'py>(&self, py: Python<'py>, writable: bool) -> PyResult<&Bound<'py, PyType>> {
        if writable {
            return Ok(self.array.bind(py));
        }
        self.view.import(py, "tensorlease.numpy_views", "View")
    }

    /// What an array is of and where it lies. `None`: only a call of Python can tell.
    pub(crate) fn look(
        &self,
        array: &Bound<'_, PyAny>,
        known: impl FnOnce(&Bound<'_, PyAny>) -> Option<DType>,
    ) -> Option<(DType, ArrayView)> {
        self.api.filter(|_| !BY_CALL.is_on())?.look(array, known)
    }

    /// An array of `dtype` and `dims` that owns `buffer`. `buffer` is None exactly when the array has no bytes.
    pub(crate) fn wrap<'py>(
        &self,
        py: Python<'py>,
        dtype: DType,
        dims: &Dims,
        buffer: Option<Buffer>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = Lease::memory(py, buffer)?;
        self.over(&self.form(py, dtype, dims)?, memory)
    }

    /// What arrays of `dtype` and `dims` have in common.
    pub(crate) fn form<'py>(&self, py: Python<'py>, dtype: DType, dims: &Dims) -> PyResult<Form<'py>> {
        let object = self.dtypes[index_of(dtype)]
            .get_or_try_init(py, || {
                let found = py
                    .import("tensorlease.dtypes")?
                    .call_method1("numpy_dtype", (dtype.name(),));
                found.map(Bound::unbind)
            })?
            .bind(py);
        Ok(Form {
            shape: PyTuple::new(py, dims)?,
            dims: dims
                .iter()
                .map(|dim| isize::try_from(*dim).expect("memory has no more"))
                .collect(),
            dtype: object.clone(),
            item_bytes: item_bytes(dtype),
            empty: dims.contains(&0),
        })
    }

    /// An array over memory, writable where the memory is. `memory` is None exactly when the array has no bytes.
    pub(crate) fn over<'py>(&self, form: &Form<'py>, memory: Option<Memory<'py>>) -> PyResult<Bound<'py, PyAny>> {
        let py = form.shape.py();
        let Some(mut memory) = memory.filter(|_| !form.empty) else {
            return self.empty.bind(py).call1((&form.shape, &form.dtype));
        };
        let class = self.class(py, memory.is_writable())?;
        if let Some(api) = &self.api
            && !BY_CALL.is_on()
        {
            match api.array(class, &form.dtype, form.item_bytes, &form.dims, memory) {
                Ok(array) => return array,
                Err(unsuitable) => memory = unsuitable,
            }
        }
        class.call1((&form.shape, &form.dtype, memory.into_owner()))
    }
}
