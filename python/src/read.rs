//! Arguments of reads as requests to the client.
use crate::{
    dtype::{DTypes, Flavour, Resolved},
    error::{named, refuse, shown},
    keys::{flag_of, keys_of, list_of, same_length},
    shape::{Dims, Specs, Unsigned, dims_of, signed},
};
use pyo3::{
    prelude::*,
    types::{PyAnyMethods, PyDict, PyList, PyTuple},
};
use std::sync::Arc;
use tensorlease::{Delivery, Expected, ReadItem};

/// What the caller takes for a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    /// A value of any kind.
    Any,
    /// A tensor.
    Tensor(Flavour),
    /// A value that is no tensor.
    Value,
}

/// Arguments of one `get`, checked.
pub(crate) struct Wanted<'py> {
    pub(crate) keys: Bound<'py, PyList>,
    pub(crate) wishes: Vec<Wish>,
    pub(crate) allow_pickle: bool,
}

impl<'py> Wanted<'py> {
    /// Checks the arguments of `get`, and returns what to ask the client for too. `describes`: the engine knows what it
    /// holds.
    pub(crate) fn new(
        keys: &Bound<'py, PyAny>,
        shapes: Option<&Bound<'py, PyAny>>,
        dtypes: Option<&Bound<'py, PyAny>>,
        metas: Option<&Bound<'py, PyAny>>,
        allow_pickle: &Bound<'_, PyAny>,
        describes: bool,
    ) -> PyResult<(Self, Vec<ReadItem>)> {
        let py = keys.py();
        let allow_pickle = flag_of(allow_pickle, "allow_pickle")?;
        let keys = list_of(keys, "keys")?;
        let count = keys.len();
        let names = keys_of(&keys)?;
        let metas = metas
            .map(|metas| one_each(metas, count, "custom_backend_meta"))
            .transpose()?;
        let shapes = shapes.map(|shapes| shapes_of(shapes, count)).transpose()?;
        let dtypes = dtypes.map(|dtypes| dtypes_of(dtypes, count)).transpose()?;
        let whole = Columns {
            shapes,
            dtypes,
            metas,
            describes,
        };
        let (mut specs, mut resolver) = (Specs::default(), DTypes::default());
        let (mut items, mut wishes) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (index, key) in names.into_iter().enumerate() {
            let (expected, wish) = whole.row(py, index, &key, &mut specs, &mut resolver)?;
            items.push(ReadItem { key, expected });
            wishes.push(wish);
        }
        let wanted = Self {
            keys,
            wishes,
            allow_pickle,
        };
        Ok((wanted, items))
    }
}

/// The lists beside the keys.
struct Columns<'py> {
    shapes: Option<Bound<'py, PyList>>,
    dtypes: Option<DTypeColumn<'py>>,
    metas: Option<Bound<'py, PyList>>,
    describes: bool,
}

enum DTypeColumn<'py> {
    One(Bound<'py, PyAny>),
    Each(Bound<'py, PyList>),
}

impl<'py> Columns<'py> {
    fn row(
        &self,
        py: Python<'py>,
        index: usize,
        key: &str,
        specs: &mut Specs,
        resolver: &mut DTypes,
    ) -> PyResult<(Expected, Wish)> {
        let name = || named(key);
        let dtype = match &self.dtypes {
            None => None,
            Some(DTypeColumn::One(dtype)) => Some(dtype.clone()),
            Some(DTypeColumn::Each(list)) => Some(list.get_item(index)?).filter(|dtype| !dtype.is_none()),
        };
        let refused = |what: &str| refuse!(py, "{} {what}", named(key));
        if let Some(dtype) = dtype {
            let Some(shapes) = &self.shapes else {
                return refused("has a dtype and shapes is missing; give the shape of each tensor");
            };
            let Resolved { dtype, flavour } = resolver.resolve(&dtype, &name)?;
            let shape = shapes.get_item(index)?;
            if shape.is_none() {
                return refused("has a dtype and no shape; give both, or None for both");
            }
            let expected = Expected::Tensor(specs.of_object(&shape, dtype, &name)?);
            return Ok((expected, Wish::Tensor(flavour)));
        }
        if self.dtypes.is_none()
            && let Some(shapes) = &self.shapes
            && !shapes.get_item(index)?.is_none()
        {
            return refused("has a shape and dtypes is missing; give the dtype of each tensor");
        }
        let wish = if self.dtypes.is_some() { Wish::Value } else { Wish::Any };
        if let Some(metas) = &self.metas
            && let Some(bytes) = packed_size(&metas.get_item(index)?, key)?
        {
            return Ok((Expected::Packed(bytes), Wish::Value));
        }
        if self.describes {
            return Ok((Expected::Described, wish));
        }
        refuse!(
            py,
            "{}: this engine does not know what it holds; pass shapes and dtypes for tensors, and for other values dtype None with the \
             custom_backend_meta that put() returned",
            named(key)
        )
    }
}

fn packed_size(meta: &Bound<'_, PyAny>, key: &str) -> PyResult<Option<u64>> {
    if meta.is_none() {
        return Ok(None);
    }
    let size = match meta.cast::<PyDict>() {
        Ok(meta) => meta.get_item("packed_size")?,
        Err(_) => None,
    };
    match size.and_then(|size| size.extract::<u64>().ok()) {
        Some(bytes) => Ok(Some(bytes)),
        None => {
            let (py, key, meta) = (meta.py(), named(key), shown(meta));
            refuse!(
                py,
                "custom_backend_meta of {key} is {meta}; pass what put() returned for it"
            )
        }
    }
}

fn one_each<'py>(object: &Bound<'py, PyAny>, count: usize, argument: &str) -> PyResult<Bound<'py, PyList>> {
    let list = list_of(object, argument)?;
    same_length(object.py(), count, &list, argument)?;
    Ok(list)
}

fn shapes_of<'py>(shapes: &Bound<'py, PyAny>, count: usize) -> PyResult<Bound<'py, PyList>> {
    // A tuple of ints is one shape, not one shape per key.
    if let Ok(tuple) = shapes.cast::<PyTuple>()
        && !tuple.is_empty()
        && tuple.iter().all(|dim| dim.extract::<i64>().is_ok())
    {
        let (py, shapes) = (shapes.py(), shown(shapes));
        return refuse!(py, "shapes is {shapes}, one shape; give a list with one shape per key");
    }
    one_each(shapes, count, "shapes")
}

fn dtypes_of<'py>(dtypes: &Bound<'py, PyAny>, count: usize) -> PyResult<DTypeColumn<'py>> {
    if dtypes.is_instance_of::<PyList>() || dtypes.is_instance_of::<PyTuple>() {
        return one_each(dtypes, count, "dtypes").map(DTypeColumn::Each);
    }
    Ok(DTypeColumn::One(dtypes.clone()))
}

/// How a call wants its bytes.
pub(crate) fn delivery_of(name: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Delivery>> {
    let Some(name) = name else { return Ok(None) };
    let known = name.extract::<String>().ok();
    if let Some(known) = known.and_then(|name| Delivery::from_name(&name)) {
        return Ok(Some(known));
    }
    let [others @ .., last] = Delivery::ALL.map(|delivery| format!("{:?}", delivery.name()));
    let (py, name, others) = (name.py(), shown(name), others.join(", "));
    refuse!(py, "delivery is {name:?}; allowed are {others} and {last}")
}

/// One field of a batched read, checked.
pub(crate) struct Field {
    pub(crate) items: Vec<ReadItem>,
    pub(crate) resolved: Resolved,
    /// Dimensions of the batch's values.
    pub(crate) dims: Dims,
    /// Lengths of the rows of a jagged batch. None: all rows have one shape.
    pub(crate) lengths: Option<Vec<i64>>,
}

impl Field {
    /// `shape` is a tuple or int for all rows, or a list with the shape of each.
    pub(crate) fn new(
        keys: &Bound<'_, PyAny>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        name: &str,
    ) -> PyResult<Self> {
        let py = keys.py();
        let names = keys_of(&list_of(keys, &format!("keys{name}"))?)?;
        if dtype.is_none() {
            return refuse!(
                py,
                "dtype{name} is None; a batch holds tensors, read other values with get()"
            );
        }
        let about = || format!("the batch{name}");
        let resolved = DTypes::default().resolve(dtype, &about)?;
        match shape.cast::<PyList>() {
            Ok(shapes) => {
                let argument =
                    format!("shape{name} (a list gives the shape of each row; one shape for all is a tuple)");
                same_length(py, names.len(), shapes, &argument)?;
                Self::of_rows(names, shapes, resolved, name)
            }
            Err(_) => Self::of_one_shape(names, shape, resolved, &about),
        }
    }

    fn of_one_shape(
        names: Vec<String>,
        shape: &Bound<'_, PyAny>,
        resolved: Resolved,
        about: &dyn Fn() -> String,
    ) -> PyResult<Self> {
        let spec = Specs::default().of_object(shape, resolved.dtype, about)?;
        let mut dims = Dims::from_slice(&[i64::try_from(names.len()).expect("fewer than bytes of memory")]);
        dims.extend(signed(spec.shape()));
        // The whole batch must be countable, too.
        let whole: Unsigned = dims.iter().map(|&dim| u64::try_from(dim).unwrap_or(0)).collect();
        Specs::default().of_dims(shape.py(), resolved.dtype, &whole, about)?;
        let item = |key| ReadItem {
            key,
            expected: Expected::Tensor(Arc::clone(&spec)),
        };
        Ok(Self {
            items: names.into_iter().map(item).collect(),
            resolved,
            dims,
            lengths: None,
        })
    }

    fn of_rows(names: Vec<String>, shapes: &Bound<'_, PyList>, resolved: Resolved, name: &str) -> PyResult<Self> {
        let py = shapes.py();
        if resolved.flavour == Flavour::Numpy {
            return refuse!(
                py,
                "dtype{name} is numpy's and shape{name} a list, whose batch is a jagged tensor of torch; give a torch dtype or its name, or \
                 one shape for all rows as a tuple"
            );
        }
        let mut specs = Specs::default();
        let mut items = Vec::with_capacity(names.len());
        let mut lengths = Vec::with_capacity(names.len());
        let mut rest: Option<Dims> = None;
        let mut total: i64 = 0;
        for (key, shape) in names.into_iter().zip(shapes.iter()) {
            let spec = specs.of_object(&shape, resolved.dtype, &|| named(&key))?;
            let dims = signed(spec.shape());
            let Some((&length, inner)) = dims.split_first() else {
                let key = named(&key);
                return refuse!(
                    py,
                    "shape of {key} is (); rows of a jagged batch have at least one dimension (one shape for all rows is a tuple)"
                );
            };
            let before = rest.get_or_insert_with(|| Dims::from_slice(inner));
            if before.as_slice() != inner {
                let (key, before) = (named(&key), before.as_slice());
                return refuse!(
                    py,
                    "shapes{name}: {key} has {inner:?} after its first dimension and the rows before it {before:?}; rows may differ in the first only"
                );
            }
            let Some(sum) = total.checked_add(length) else {
                return refuse!(
                    py,
                    "shapes{name}: all rows together are longer than 2**63 - 1; check the shapes"
                );
            };
            total = sum;
            lengths.push(length);
            let expected = Expected::Tensor(spec);
            items.push(ReadItem { key, expected });
        }
        let mut dims = Dims::from_slice(&[total]);
        dims.extend_from_slice(rest.as_deref().unwrap_or(&[]));
        Ok(Self {
            items,
            resolved,
            dims,
            lengths: Some(lengths),
        })
    }
}

/// Dimensions of `empty`.
pub(crate) fn empty_dims(shape: &Bound<'_, PyAny>, about: &dyn Fn() -> String) -> PyResult<Unsigned> {
    match shape.cast::<PyList>() {
        Ok(list) => dims_of(list.to_tuple().as_any(), about),
        Err(_) => dims_of(shape, about),
    }
}
