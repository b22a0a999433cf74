//! What a read brought, as Python objects.
use crate::{
    buffer::{InPlace, Lease},
    dlpack::Owner,
    dtype::Flavour,
    error::{config_error, mismatch_error, refuse},
    numpy::{Form, NUMPY},
    numpy_api::Memory,
    read::{Field, Wanted, Wish},
    shape::{self, Dims},
    torch::TORCH,
};
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyBytes, PyList},
};
use std::{collections::HashMap, sync::Arc, time::Instant};
use tensorlease::{Buffer, DType, ObjectKind, ReadOutput, ReadValue, Store, TensorSpec, ValueView};

static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// A tensor that owns its memory, of the framework that `flavour` asks for.
pub(crate) fn tensor<'py>(
    py: Python<'py>,
    dtype: DType,
    dims: &Dims,
    buffer: Option<Buffer>,
    flavour: Flavour,
) -> PyResult<Bound<'py, PyAny>> {
    if flavour != Flavour::Numpy
        && let Some(torch) = TORCH.installed(py)?
    {
        return torch.wrap(py, dtype, dims, buffer.map(Owner::Buffer));
    }
    match NUMPY.installed(py)? {
        Some(numpy) => numpy.wrap(py, dtype, dims, buffer),
        None => refuse!(
            py,
            "tensors need torch or numpy, and neither is installed; install one of them"
        ),
    }
}

/// A tensor of int64 in ordinary memory. Only torch has a use for it.
fn words(py: Python<'_>, words: Vec<i64>) -> PyResult<Bound<'_, PyAny>> {
    let Some(torch) = TORCH.installed(py)? else {
        let message = "rows of different lengths make a jagged tensor, which needs torch; install torch, or read the rows with get()";
        return Err(config_error(py, message));
    };
    let dims = Dims::from_slice(&[i64::try_from(words.len()).expect("fewer than bytes of memory")]);
    torch.wrap(py, DType::I64, &dims, Some(Owner::Words(words.into())))
}

/// The values of a read, in the order of its keys.
pub(crate) fn values<'py>(store: &Store, wanted: &Wanted<'py>, found: Vec<ReadValue>) -> PyResult<Bound<'py, PyList>> {
    let py = wanted.keys.py();
    let mut packed = Vec::new();
    let mut objects = Vec::with_capacity(found.len());
    let started = Instant::now();
    for (index, value) in found.into_iter().enumerate() {
        objects.push(match value.kind {
            ObjectKind::Tensor(spec) => {
                let flavour = match wanted.wishes[index] {
                    Wish::Tensor(flavour) => flavour,
                    Wish::Any => Flavour::Any,
                    // The caller asked for a value that is no tensor, and an array is one. The framework that the
                    // object came from is not known.
                    Wish::Value => Flavour::Numpy,
                };
                tensor(py, spec.dtype(), &shape::signed(spec.shape()), value.buffer, flavour)?
            }
            ObjectKind::Packed => {
                check_packed(wanted, index)?;
                packed.push((index, value.buffer));
                py.None().into_bound(py)
            }
        });
    }
    store.count_wrap(started.elapsed());
    // Decoding is no part of wrapping, and is not counted as such.
    for (index, buffer) in packed {
        objects[index] = decoded(wanted, index, Lease::memory(py, buffer)?)?;
    }
    PyList::new(py, objects)
}

/// Values that are read in place, as read-only numpy arrays over the store's own memory.
pub(crate) fn in_place<'py>(
    store: &Store,
    wanted: &Wanted<'py>,
    found: Vec<ValueView>,
) -> PyResult<Bound<'py, PyList>> {
    let py = wanted.keys.py();
    let Some(numpy) = NUMPY.installed(py)? else {
        return refuse!(
            py,
            "view=True gives numpy arrays, and numpy is not installed; install it"
        );
    };
    let started = Instant::now();
    let mut objects = Vec::with_capacity(found.len());
    // Values of one kind share their spec, and then shape and dtype as numpy takes them.
    let mut last: Option<(Arc<TensorSpec>, Form<'py>)> = None;
    for (index, value) in found.into_iter().enumerate() {
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
            ObjectKind::Packed => {
                check_packed(wanted, index)?;
                decoded(wanted, index, memory)?
            }
        });
    }
    store.count_wrap(started.elapsed());
    PyList::new(py, objects)
}

/// A value that is no tensor may be delivered only where no tensor was asked for.
fn check_packed(wanted: &Wanted<'_>, index: usize) -> PyResult<()> {
    if !matches!(wanted.wishes[index], Wish::Tensor(_)) {
        return Ok(());
    }
    let message = "holds a value that is no tensor; pass dtype None";
    Err(mismatch_error(wanted.keys.py(), &key(wanted, index)?, message))
}

fn key(wanted: &Wanted<'_>, index: usize) -> PyResult<String> {
    wanted.keys.get_item(index)?.extract()
}

fn decoded<'py>(wanted: &Wanted<'py>, index: usize, memory: Option<Memory<'py>>) -> PyResult<Bound<'py, PyAny>> {
    let py = wanted.keys.py();
    let decode = DECODE.import(py, "tensorlease.codec", "decode")?;
    let bytes = memory.map_or_else(|| PyBytes::new(py, b"").into_any(), Memory::into_owner);
    decode.call1((bytes, key(wanted, index)?, wanted.allow_pickle))
}

/// The batches of a read: a tensor each, or for ragged rows a tuple `(values, offsets, length_min, length_max)`.
pub(crate) fn batches<'py>(
    py: Python<'py>,
    store: &Store,
    output: ReadOutput,
    fields: Vec<Field>,
) -> PyResult<Bound<'py, PyList>> {
    let started = Instant::now();
    let mut offsets_of: HashMap<Vec<i64>, Bound<'py, PyAny>> = HashMap::new();
    let mut objects: Vec<Bound<'py, PyAny>> = Vec::with_capacity(fields.len());
    for (field, buffer) in fields.into_iter().zip(output.batches) {
        let values = tensor(py, field.resolved.dtype, &field.dims, buffer, field.resolved.flavour)?;
        let Some(lengths) = field.lengths else {
            objects.push(values);
            continue;
        };
        let least = lengths.iter().min().copied().unwrap_or(0);
        let most = lengths.iter().max().copied().unwrap_or(0);
        let offsets = match offsets_of.get(&lengths) {
            Some(offsets) => offsets.clone(),
            None => {
                let offsets = words(py, offsets_from(&lengths))?;
                offsets_of.insert(lengths, offsets.clone());
                offsets
            }
        };
        let parts = (values, offsets, least, most).into_pyobject(py)?;
        objects.push(parts.into_any());
    }
    store.count_wrap(started.elapsed());
    PyList::new(py, objects)
}

fn offsets_from(lengths: &[i64]) -> Vec<i64> {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}
