//! The store as Python's `Store` uses it. Each method checks its arguments, makes one call to the client without the
//! GIL, and returns objects.
#![expect(
    clippy::too_many_arguments,
    reason = "one argument per argument of Python's `open` and `Store`"
)]
use crate::{
    deliver,
    dtype::DTypes,
    error::{IntoPython, named, refuse, shown},
    keys::{flag_of, keys_in_any_order, keys_in_order, keys_of, list_of, same_length},
    logging, mooncake,
    patience::{Interrupt, Waiting, seconds},
    read::{Field, Wanted, delivery_of, empty_dims},
    shape::{Specs, signed},
    write::Values,
};
use pyo3::{
    exceptions::PyBaseException,
    prelude::*,
    types::{PyDict, PyList, PyWeakrefReference},
};
use std::sync::Arc;
use tensorlease::{
    CallError, CallerMemory, Delivery, Expected, ForkPolicy, OpenError, Options, Patience, PutItem, PutMode, ReadItem,
    ReadRequest, Store,
};

/// A handle of one open store. `tensorlease.Store` is what users see.
#[pyclass(frozen, module = "tensorlease._core")]
pub struct CoreStore {
    store: Store,
    /// Mooncake's own client object, where Mooncake is the engine.
    mooncake_client: Option<Py<PyWeakrefReference>>,
}

#[pymethods]
impl CoreStore {
    /// Opens a store. Sizes are in bytes.
    #[staticmethod]
    #[pyo3(signature = (url, *, max_bytes, readers, delivery, strict, namespace, prewarm_bytes, bounce_bytes, copy_cache_bytes, quarantine_bytes, batch_keys, retries, fork, call_timeout))]
    fn open(
        py: Python<'_>,
        url: &str,
        max_bytes: u64,
        readers: u32,
        delivery: &Bound<'_, PyAny>,
        strict: bool,
        namespace: String,
        prewarm_bytes: u64,
        bounce_bytes: Option<u64>,
        copy_cache_bytes: Option<u64>,
        quarantine_bytes: Option<u64>,
        batch_keys: u32,
        retries: u32,
        fork: &Bound<'_, PyAny>,
        call_timeout: f64,
    ) -> PyResult<Self> {
        let policy = match fork.extract::<Option<String>>().as_ref().map(Option::as_deref) {
            Ok(None) => None,
            Ok(Some("inherit")) => Some(ForkPolicy::Inherit),
            Ok(Some("exclude")) => Some(ForkPolicy::Exclude),
            _ => {
                return refuse!(
                    py,
                    "fork is {:?}; allowed are \"inherit\", \"exclude\" and None",
                    shown(fork)
                );
            }
        };
        let options = Options {
            max_bytes,
            bounce_bytes,
            copy_cache_bytes,
            quarantine_bytes,
            readers,
            delivery: delivery_of(Some(delivery))?.unwrap_or(Delivery::Auto),
            strict,
            namespace,
            prewarm_bytes,
            batch_keys,
            retries,
            fork: policy,
            call_timeout: seconds(py, call_timeout, "call_timeout")?,
        };
        let waiting = Waiting::new(py, None, None)?;
        let (store, mooncake_client) = waiting.run(py, |patience| open_store(url, &options, patience))?;
        Ok(Self { store, mooncake_client })
    }

    /// Stores values; per key None for a tensor, `{"packed_size": n}` for another value.
    #[pyo3(signature = (keys, values, delivery, allow_pickle, timeout, interrupt))]
    fn put<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        values: &Bound<'py, PyAny>,
        delivery: Option<&Bound<'_, PyAny>>,
        allow_pickle: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<Bound<'py, PyList>> {
        let waiting = Waiting::new(py, timeout, interrupt)?;
        let mode = put_mode(delivery)?;
        let allow_pickle = flag_of(allow_pickle, "allow_pickle")?;
        let keys = keys_in_order(keys)?;
        let values = list_of(values, "values")?;
        same_length(py, keys.len(), &values, "values")?;
        let mut making = Values::new(py, &self.store, allow_pickle)?;
        let mut items: Vec<PutItem> = Vec::with_capacity(keys.len());
        let mut metas = Vec::with_capacity(keys.len());
        for (key, value) in keys.into_iter().zip(values.iter()) {
            let (item, meta) = making.item(key, &value)?;
            items.push(item);
            metas.push(meta);
        }
        waiting.run(py, |patience| self.store.put_by(items, mode, patience))?;
        PyList::new(py, metas)
    }

    /// Reads values, in the order of the keys.
    #[pyo3(signature = (keys, shapes, dtypes, custom_backend_meta, delivery, timeout, allow_pickle, interrupt))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        shapes: Option<&Bound<'py, PyAny>>,
        dtypes: Option<&Bound<'py, PyAny>>,
        custom_backend_meta: Option<&Bound<'py, PyAny>>,
        delivery: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
        allow_pickle: &Bound<'_, PyAny>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<Bound<'py, PyList>> {
        let waiting = Waiting::new(py, timeout, interrupt)?;
        let delivery = delivery_of(delivery)?;
        let describes = self.store.describes();
        let (wanted, items) = Wanted::new(keys, shapes, dtypes, custom_backend_meta, allow_pickle, describes)?;
        let request = ReadRequest {
            items,
            delivery,
            ..ReadRequest::default()
        };
        let output = waiting.run(py, |patience| self.store.get(request, patience))?;
        deliver::values(&self.store, &wanted, output.values)
    }

    /// Reads values where the store keeps them, in the order of the keys. Each array is read-only and pins its object.
    #[pyo3(signature = (keys, shapes, dtypes, custom_backend_meta, timeout, allow_pickle, interrupt))]
    fn view<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        shapes: Option<&Bound<'py, PyAny>>,
        dtypes: Option<&Bound<'py, PyAny>>,
        custom_backend_meta: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
        allow_pickle: &Bound<'_, PyAny>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<Bound<'py, PyList>> {
        let waiting = Waiting::new(py, timeout, interrupt)?;
        // An engine that has views knows what it holds. The client refuses the others.
        let (wanted, items) = Wanted::new(keys, shapes, dtypes, custom_backend_meta, allow_pickle, true)?;
        let items: Vec<(String, Expected)> = items.into_iter().map(|item| (item.key, item.expected)).collect();
        let found = waiting.run(py, |patience| self.store.view(&items, patience))?;
        deliver::in_place(&self.store, &wanted, found)
    }

    /// Reads fields, each `(name, keys, shape, dtype)`, as batches: a tensor, or for ragged rows a tuple
    /// `(values, offsets, length_min, length_max)`; fields with equal lengths get the same offsets object.
    #[pyo3(signature = (fields, *, delivery, timeout, interrupt))]
    fn get_batches<'py>(
        &self,
        py: Python<'py>,
        fields: &Bound<'py, PyList>,
        delivery: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<Bound<'py, PyList>> {
        let waiting = Waiting::new(py, timeout, interrupt)?;
        let mut request = ReadRequest {
            delivery: delivery_of(delivery)?,
            ..ReadRequest::default()
        };
        let mut layouts = Vec::with_capacity(fields.len());
        for field in fields.iter() {
            let (name, keys, shape, dtype): (String, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>) =
                field.extract()?;
            let mut field = Field::new(&keys, &shape, &dtype, &name)?;
            let start = request.items.len();
            request.items.append(&mut field.items);
            request.batches.push(start..request.items.len());
            layouts.push(field);
        }
        let output = waiting.run(py, |patience| self.store.get(request, patience))?;
        deliver::batches(py, &self.store, output, layouts)
    }

    /// Reads into tensors or arrays of the caller.
    #[pyo3(signature = (keys, tensors, direct, timeout, interrupt))]
    fn get_into<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        tensors: &Bound<'py, PyAny>,
        direct: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<()> {
        let waiting = Waiting::new(py, timeout, interrupt)?;
        let keys = keys_in_order(keys)?;
        let tensors = list_of(tensors, "tensors")?;
        let direct = flag_of(direct, "direct")?;
        same_length(py, keys.len(), &tensors, "tensors")?;
        let mut values = Values::new(py, &self.store, false)?;
        let mut request = ReadRequest {
            direct,
            ..ReadRequest::default()
        };
        let mut taken: Vec<(usize, usize, usize)> = Vec::with_capacity(keys.len());
        for (index, (key, tensor)) in keys.into_iter().zip(tensors.iter()).enumerate() {
            let memory = values.destination(&tensor, &key)?;
            let foreign = memory.foreign.unwrap_or_else(|| CallerMemory::from_vec(Vec::new()));
            taken.push((foreign.addr(), foreign.len(), index));
            let expected = Expected::Tensor(memory.spec);
            request.items.push(ReadItem { key, expected });
            request.into.push(foreign);
        }
        refuse_overlaps(py, &mut taken, &request.items)?;
        waiting.run(py, |patience| self.store.get(request, patience))?;
        Ok(())
    }

    /// A tensor in the arena, contents unspecified.
    #[pyo3(signature = (shape, dtype, *, timeout))]
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let waiting = Waiting::new(py, timeout, None)?;
        let about = || "the new tensor".to_owned();
        let resolved = DTypes::default().resolve(dtype, &about)?;
        let spec = Specs::default().of_dims(py, resolved.dtype, &empty_dims(shape, &about)?, &about)?;
        let buffer = if spec.bytes() == 0 {
            None
        } else {
            Some(waiting.run(py, |patience| self.store.empty(spec.bytes(), patience))?)
        };
        deliver::tensor(py, resolved.dtype, &signed(spec.shape()), buffer, resolved.flavour)
    }

    /// Which keys exist.
    #[pyo3(signature = (keys, *, timeout, interrupt))]
    fn contains(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<Vec<bool>> {
        let keys = keys_in_order(keys)?;
        Waiting::new(py, timeout, interrupt)?.run(py, |patience| self.store.contains(&keys, patience))
    }

    /// Waits until all keys exist.
    #[pyo3(signature = (keys, *, timeout, interrupt))]
    fn wait(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<()> {
        let keys = keys_in_any_order(keys)?;
        Waiting::new(py, timeout, interrupt)?.run(py, |patience| self.store.wait(&keys, patience))
    }

    /// Checks the arguments of a wait without asking the engine. Returns the keys as a list, and the seconds to wait.
    #[pyo3(signature = (keys, *, timeout))]
    fn check_wait(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Vec<String>, f64)> {
        let wait = Waiting::new(py, timeout, None)?.timeout();
        let keys = keys_in_any_order(keys)?;
        let checked = self.store.check(&keys);
        checked.map_err(|error| error.into_python(py))?;
        let wait = wait.unwrap_or_else(|| self.store.options().call_timeout);
        Ok((keys, wait.as_secs_f64()))
    }

    /// The error of a wait for keys that are not there after so many seconds. `looked`: the engine has answered at
    /// least once.
    #[staticmethod]
    #[pyo3(signature = (missing, *, waited, looked))]
    fn not_there(
        py: Python<'_>,
        missing: &Bound<'_, PyList>,
        waited: f64,
        looked: bool,
    ) -> PyResult<Py<PyBaseException>> {
        let error = Store::not_there(&keys_of(missing)?, seconds(py, waited, "waited")?, looked);
        Ok(error.into_python(py).into_value(py))
    }

    /// Removes objects; returns how many there were.
    #[pyo3(signature = (keys, *, timeout, interrupt))]
    fn remove(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
        interrupt: Option<&Interrupt>,
    ) -> PyResult<u64> {
        let keys = keys_in_any_order(keys)?;
        Waiting::new(py, timeout, interrupt)?.run(py, |patience| self.store.remove(&keys, patience))
    }

    /// Removes the whole namespace; returns how many objects there were.
    #[pyo3(signature = (*, timeout))]
    fn clear(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        Waiting::new(py, timeout, None)?.run(py, |patience| self.store.clear(patience))
    }

    /// Counters: whole numbers as int, seconds and ratios as float.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_fork(py)?;
        let stats = py.detach(|| self.store.stats());
        let numbers = PyDict::new(py);
        for (name, value) in stats.values {
            // Counters stay below 2**53, where every whole number is exact.
            if value.fract() == 0.0 && !name.ends_with("_seconds") {
                #[allow(clippy::cast_possible_truncation)]
                numbers.set_item(name, value as i64)?;
            } else {
                numbers.set_item(name, value)?;
            }
        }
        logging::drain(py);
        Ok(numbers)
    }

    /// Gives empty slabs back to the system, and returns how many bytes.
    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        self.check_fork(py)?;
        if self.store.is_closed() {
            return Err(CallError::Closed.into_python(py));
        }
        let bytes = py.detach(|| self.store.trim());
        logging::drain(py);
        Ok(bytes)
    }

    /// Closes the store, waiting at most `timeout` seconds for running calls.
    #[pyo3(signature = (*, timeout))]
    fn close(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        Waiting::new(py, timeout, None)?.run(py, |patience| self.store.close(patience))
    }

    /// Is it closed?
    #[getter]
    fn is_closed(&self) -> bool {
        self.store.is_closed()
    }
    /// The URL it was opened with.
    #[getter]
    fn url(&self) -> &str {
        self.store.url()
    }
    /// The `MooncakeDistributedStore` that the engine calls, while it lives; None with other engines.
    #[pyo3(name = "_mooncake_client")]
    fn mooncake_client<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.mooncake_client
            .as_ref()
            .and_then(|client| client.bind(py).upgrade())
    }
    /// Does the engine know the shapes and dtypes of what it holds?
    #[getter]
    fn describes(&self) -> bool {
        self.store.describes()
    }
}

impl Drop for CoreStore {
    /// A store that was not closed closes now. It lets go of the GIL, which an engine in Python needs to close.
    fn drop(&mut self) {
        // There is no GIL to let go of while the interpreter ends.
        let _ended = Python::try_attach(|py| py.detach(|| self.store.close(Patience::default())));
    }
}

impl CoreStore {
    /// The client's handle.
    #[cfg(feature = "test-hooks")]
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    fn check_fork(&self, py: Python<'_>) -> PyResult<()> {
        match self.store.is_forked() {
            true => Err(CallError::Forked.into_python(py)),
            false => Ok(()),
        }
    }
}

/// How a put goes. None is the fast way.
fn put_mode(delivery: Option<&Bound<'_, PyAny>>) -> PyResult<PutMode> {
    let Some(delivery) = delivery else {
        return Ok(PutMode::Staged);
    };
    match delivery.extract::<String>().as_deref() {
        Ok("auto") => Ok(PutMode::Staged),
        Ok("register-per-call") => Ok(PutMode::RegisterPerCall),
        _ => {
            let (py, delivery) = (delivery.py(), shown(delivery));
            refuse!(
                py,
                "delivery of a put is {delivery:?}; allowed are \"auto\" and \"register-per-call\""
            )
        }
    }
}

/// Engines that live in Python are made here, and the client makes all others. Mooncake's own client object comes with
/// its store.
fn open_store(
    url: &str,
    options: &Options,
    patience: Patience<'_>,
) -> Result<(Store, Option<Py<PyWeakrefReference>>), OpenError> {
    if !mooncake::is_named_by(url) {
        return Store::open_within(url, options, patience).map(|store| (store, None));
    }
    let (engine, client) = mooncake::open_with_client(url, options)?;
    let opened = Store::with_engine_at(url, Arc::clone(&engine), options, patience);
    opened
        .map(|store| (store, client))
        .inspect_err(|_| mooncake::close_quietly(&*engine))
}

/// Refuses destinations that share memory, which would hold whatever came last. Sorts `taken`: address, bytes and
/// index.
fn refuse_overlaps(py: Python<'_>, taken: &mut Vec<(usize, usize, usize)>, items: &[ReadItem]) -> PyResult<()> {
    taken.retain(|(_, bytes, _)| *bytes > 0);
    taken.sort_unstable();
    for pair in taken.windows(2) {
        let ((first, bytes, first_index), (second, _, second_index)) = (pair[0], pair[1]);
        if second < first + bytes {
            let (a, b) = (named(&items[first_index].key), named(&items[second_index].key));
            return refuse!(
                py,
                "the destinations of {a} and {b} overlap; give each key memory of its own"
            );
        }
    }
    Ok(())
}
