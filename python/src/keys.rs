//! Lists of keys, and other lists beside them, as Python passes them.
use crate::error::{no_room, refuse, shown};
use pyo3::{
    prelude::*,
    types::{PyBool, PyByteArray, PyBytes, PyFrozenSet, PyList, PyMapping, PyMemoryView, PySet, PyString, PyTuple},
};
use tensorlease_memory::has_room;

/// The most that a call keeps for each of its keys while it runs, here and in the client.
const BYTES_PER_KEY: usize = 2 << 10;
const MANY_KEYS: usize = 1 << 10;

/// One list argument. A list is copied, and another iterable is listed. What iterates by accident (a str, a tensor) is
/// refused. A set is refused because its order differs from run to run, and so would the keys that values land under.
pub(crate) fn list_of<'py>(object: &Bound<'py, PyAny>, argument: &str) -> PyResult<Bound<'py, PyList>> {
    if let Ok(list) = object.cast_exact::<PyList>() {
        // The call looks at the list again after other threads have run, and they may change theirs.
        return Ok(list.get_slice(0, list.len()));
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return Ok(tuple.to_list());
    }
    let by_accident = object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>()
        || object.is_instance_of::<PyMemoryView>()
        || object.cast::<PyMapping>().is_ok()
        || object.hasattr("__array__")?;
    let py = object.py();
    if is_set(object) {
        return refuse!(
            py,
            "{argument} is a {}, which has no order; give a list with one entry per key, as sorted() makes one",
            object.get_type().name()?
        );
    }
    if !by_accident && let Ok(iterator) = object.try_iter() {
        let items = iterator.collect::<PyResult<Vec<_>>>()?;
        return PyList::new(py, items);
    }
    let kind = object.get_type().name()?;
    refuse!(py, "{argument} is a {kind}; give a list with one entry per key")
}

/// The keys of a call, one for each of its values.
pub(crate) fn keys_in_order(object: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    keys_of(&list_of(object, "keys")?)
}

/// The keys of a call whose outcome does not depend on their order. A set will do.
pub(crate) fn keys_in_any_order(object: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if !is_set(object) {
        return keys_of(&list_of(object, "keys")?);
    }
    let items = object.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    keys_of(&PyList::new(object.py(), items)?)
}

fn is_set(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PySet>() || object.is_instance_of::<PyFrozenSet>()
}

/// One list argument as a list of its own, as every call takes it.
#[pyfunction]
pub(crate) fn listed<'py>(values: &Bound<'py, PyAny>, argument: &str) -> PyResult<Bound<'py, PyList>> {
    list_of(values, argument)
}

/// The keys, checked. A call with very many keys that has no memory for its own books ends here. Later on that would
/// end the process.
pub(crate) fn keys_of(list: &Bound<'_, PyList>) -> PyResult<Vec<String>> {
    if MANY_KEYS <= list.len() && !has_room(list.len().saturating_mul(BYTES_PER_KEY)) {
        return Err(no_room(list.py(), list.len()));
    }
    list.iter()
        .enumerate()
        .map(|(index, key)| key_of(&key, index))
        .collect()
}

/// One key, checked: a str of at least one character that UTF-8 can hold.
pub(crate) fn key_of(key: &Bound<'_, PyAny>, index: usize) -> PyResult<String> {
    let py = key.py();
    let Ok(text) = key.cast::<PyString>() else {
        let kind = key.get_type().name()?;
        return refuse!(py, "keys[{index}] is a {kind}; a key is a str");
    };
    let Ok(text) = text.to_str() else {
        let shown = key.repr()?;
        return refuse!(
            py,
            "keys[{index}] is {shown}, which UTF-8 can't hold (a lone surrogate); use another key"
        );
    };
    if text.is_empty() {
        return refuse!(py, "keys[{index}] is empty; a key has at least one character");
    }
    Ok(text.to_owned())
}

/// Refuses an argument whose length differs from that of `keys`.
pub(crate) fn same_length(py: Python<'_>, keys: usize, list: &Bound<'_, PyList>, argument: &str) -> PyResult<()> {
    if list.len() == keys {
        return Ok(());
    }
    refuse!(
        py,
        "{argument} has {} entries and keys has {keys}; give one entry per key",
        list.len()
    )
}

/// An argument that is True or False, and nothing that merely counts as such: `allow_pickle="no"` would.
pub(crate) fn flag_of(value: &Bound<'_, PyAny>, argument: &str) -> PyResult<bool> {
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(flag.is_true());
    }
    refuse!(value.py(), "{argument} is {}; give True or False", shown(value))
}
