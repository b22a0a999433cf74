//! Batched calls on Mooncake's Python object: lists in, a code per key out.
use super::{
    codes::{MAY_STILL_RUN_FROM, asked},
    connect::Connected,
    turns::TurnsOverTcp,
};
use pyo3::{
    call::PyCallArgs,
    intern,
    prelude::*,
    types::{PyDict, PyList, PyString},
};
use std::time::{Duration, Instant};
use tensorlease_engine::{Fault, FaultKind, Turn};
use tensorlease_memory::Region;

/// One key and where its bytes are.
pub(super) struct Transfer<'a> {
    pub(super) key: &'a str,
    pub(super) region: Region,
}

/// Mooncake's client object. Every call may come from any thread, takes the GIL for its arguments and lets go of it
/// inside Mooncake.
pub(super) struct Calls {
    pub(super) connected: Connected,
    turns: Option<TurnsOverTcp>,
}

impl Calls {
    /// `turns`: few calls over TCP at a time.
    pub(super) fn new(connected: Connected, turns: Option<TurnsOverTcp>) -> Self {
        Self { connected, turns }
    }

    /// Waits for the turn of a call that reads.
    pub(super) fn turn_of_read(&self, objects: usize, bytes: usize) -> Option<Turn<'_>> {
        self.turns.as_ref().map(|turns| turns.read(objects, bytes))
    }

    /// Waits for the turn of a call that writes.
    pub(super) fn turn_of_write(&self, objects: usize, bytes: usize) -> Option<Turn<'_>> {
        self.turns.as_ref().map(|turns| turns.write(objects, bytes))
    }

    /// Bytes per key, or a negative code; and how long the call took.
    pub(super) fn get_into(&self, transfers: &[Transfer<'_>]) -> Result<(Vec<i64>, Duration), Fault> {
        let [addresses, lens] = numbers(transfers);
        let arguments = (keys(transfers), addresses, lens);
        timed(|| self.codes("batch_get_into", transfers.len(), arguments))
    }

    /// One code per key; 0: stored, in place of what was there. And how long the call took.
    pub(super) fn upsert_from(&self, transfers: &[Transfer<'_>]) -> Result<(Vec<i64>, Duration), Fault> {
        let [addresses, lens] = numbers(transfers);
        let arguments = (keys(transfers), addresses, lens, &self.connected.replication);
        timed(|| self.codes("batch_upsert_from", transfers.len(), arguments))
    }

    /// One object out of several pieces of memory: its code, and how long the call took. An object of this key must not
    /// exist.
    pub(super) fn put_from_pieces(&self, key: &str, pieces: &[Region]) -> Result<(i64, Duration), Fault> {
        let addresses: Vec<usize> = pieces.iter().map(|piece| piece.addr).collect();
        let lens: Vec<usize> = pieces.iter().map(|piece| piece.len).collect();
        let arguments = (vec![key], vec![addresses], vec![lens], &self.connected.replication);
        timed(|| Ok(self.codes("batch_put_from_multi_buffers", 1, arguments)?[0]))
    }

    /// The bytes of an object from `offset` on, and how long the call took. The memory must be registered also where
    /// Mooncake's other reads don't ask for it.
    pub(super) fn get_range(&self, transfer: &Transfer<'_>, offset: u64) -> Result<(i64, Duration), Fault> {
        let arguments = (
            vec![transfer.region.addr],
            vec![vec![transfer.key]],
            vec![vec![vec![0_u64]]],
            vec![vec![vec![offset]]],
            vec![vec![vec![transfer.region.len]]],
        );
        timed(|| {
            let nested: Vec<Vec<Vec<i64>>> = self.call("get_into_ranges", arguments)?;
            let code = nested.into_iter().flatten().flatten().next();
            code.ok_or_else(|| broken("get_into_ranges", 0, 1))
        })
    }

    /// Where the object lies, and its size. `None`: there is none. A read of ranges compares it before and after,
    /// because Mooncake checks its read lease only where whole objects are read.
    pub(super) fn placement(&self, key: &str) -> Result<Option<Placement>, Fault> {
        Ok(self.replicas(&[key], placement_of)?.pop().flatten())
    }

    /// What `what` makes of the replicas of each object. `None`: there is no such object.
    fn replicas<T>(
        &self,
        keys: &[&str],
        what: impl Fn(&Bound<'_, PyAny>) -> PyResult<Option<T>>,
    ) -> Result<Vec<Option<T>>, Fault> {
        attached(|py| {
            let keys = PyList::new(py, keys)?;
            let store = self.connected.store.bind(py);
            let found = store.call_method1(intern!(py, "batch_get_replica_desc"), (&keys,))?;
            let found = found.cast::<PyDict>()?;
            let of_key = |key: Bound<'_, PyAny>| match found.get_item(key)? {
                Some(replicas) => what(&replicas),
                None => Ok(None),
            };
            keys.iter().map(of_key).collect()
        })
    }

    /// Size of the object that each key has now, 0 where only its owner knows it. Mooncake writes a line to stderr for
    /// each missing key that it is asked to find, so it is asked first which of them are there.
    pub(super) fn sizes(&self, keys: &[&str]) -> Result<Vec<Option<u64>>, Fault> {
        let codes = self.exist(keys)?;
        if let Some(code) = codes.iter().find(|code| **code < 0) {
            return Err(asked(*code));
        }
        let there: Vec<usize> = (0..keys.len()).filter(|at| codes[*at] != 0).collect();
        let mut sizes = vec![None; keys.len()];
        if there.is_empty() {
            return Ok(sizes);
        }
        let asked: Vec<&str> = there.iter().map(|at| keys[*at]).collect();
        for (at, size) in there.into_iter().zip(self.replicas(&asked, size_of)?) {
            sizes[at] = size;
        }
        Ok(sizes)
    }

    /// Where each object lies in the segment that `endpoint` names. Asking takes a read lease on all of them.
    pub(super) fn lying_at(&self, keys: &[&str], endpoint: &str) -> Result<Vec<Found>, Fault> {
        let found = self.replicas(keys, |replicas| in_segment(replicas, endpoint).map(Some))?;
        Ok(found.into_iter().map(|found| found.unwrap_or(Found::Nowhere)).collect())
    }

    /// Size of the object, or a negative code.
    pub(super) fn size(&self, key: &str) -> Result<i64, Fault> {
        self.call("get_size", (key,))
    }

    /// 0 where the object was removed, -704 where there was none. Readers don't hold it back.
    pub(super) fn remove(&self, keys: &[&str]) -> Result<Vec<i64>, Fault> {
        self.codes("batch_remove", keys.len(), (keys, true))
    }

    /// How many objects were removed, or a negative code.
    pub(super) fn remove_matching(&self, pattern: &str) -> Result<i64, Fault> {
        self.call("remove_by_regex", (pattern, true))
    }

    /// 1 where the object is there, 0 where it is not.
    pub(super) fn exist(&self, keys: &[&str]) -> Result<Vec<i64>, Fault> {
        self.codes("batch_is_exist", keys.len(), (keys,))
    }

    /// 0, or a negative code.
    pub(super) fn register(&self, region: Region) -> Result<i64, Fault> {
        self.call("register_buffer", (region.addr, region.len))
    }

    /// 0, or a negative code.
    pub(super) fn unregister(&self, region: Region) -> Result<i64, Fault> {
        self.call("unregister_buffer", (region.addr,))
    }

    /// 0, or what went wrong.
    pub(super) fn close(&self) -> Result<i64, Fault> {
        self.call("close", ())
    }

    /// Which of the keys have a replica that its owner has offloaded to an SSD. A failed read of those may still write.
    /// No process could send a key that the master no longer knows. Every key counts where the master does not answer.
    pub(super) fn offloaded(&self, keys: &[&str]) -> Vec<bool> {
        let asked = self.replicas(keys, |replicas| {
            for replica in replicas.try_iter()? {
                if replica?.call_method0("is_local_disk_replica")?.is_truthy()? {
                    return Ok(Some(()));
                }
            }
            Ok(None)
        });
        match asked {
            Ok(found) => found.iter().map(Option::is_some).collect(),
            Err(_) => vec![true; keys.len()],
        }
    }

    fn codes(
        &self,
        method: &'static str,
        asked: usize,
        arguments: impl for<'py> PyCallArgs<'py>,
    ) -> Result<Vec<i64>, Fault> {
        let codes: Vec<i64> = self.call(method, arguments)?;
        if codes.len() == asked {
            Ok(codes)
        } else {
            Err(broken(method, codes.len(), asked))
        }
    }

    fn call<T: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>>(
        &self,
        method: &'static str,
        arguments: impl for<'py> PyCallArgs<'py>,
    ) -> Result<T, Fault> {
        attached(|py| self.connected.store.bind(py).call_method1(method, arguments)?.extract())
    }
}

/// Where an object lies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placement {
    replicas: Vec<Replica>,
}

#[derive(Debug, PartialEq, Eq)]
enum Replica {
    /// The endpoint of the segment that holds it, and where it lies there.
    Memory(String, Lying),
    Disk {
        path: String,
        len: u64,
    },
    /// On its owner's SSD. Mooncake tells no more of it.
    Elsewhere,
}

impl Placement {
    /// Size of the object, where the replicas tell.
    pub(super) fn len(&self) -> Option<u64> {
        self.replicas.iter().find_map(|replica| match replica {
            Replica::Memory(_, Lying { len, .. }) | Replica::Disk { len, .. } => Some(*len),
            Replica::Elsewhere => None,
        })
    }

    /// The endpoint of the segment that holds it in memory, and where it lies there.
    pub(super) fn into_memory(self) -> Option<(String, Lying)> {
        self.replicas.into_iter().find_map(|replica| match replica {
            Replica::Memory(endpoint, lying) => Some((endpoint, lying)),
            Replica::Disk { .. } | Replica::Elsewhere => None,
        })
    }
}

/// Where an object lies in the memory of the process that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lying {
    pub(super) addr: u64,
    pub(super) len: u64,
}

impl Lying {
    fn of(buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = buffer.py();
        Ok(Self {
            addr: buffer.getattr(intern!(py, "buffer_address"))?.extract()?,
            len: buffer.getattr(intern!(py, "size"))?.extract()?,
        })
    }
}

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// In the segment asked for.
    Here(Lying),
    Elsewhere,
    /// There is no such object, or it is being written.
    Nowhere,
}

/// The first replica there. The master names complete ones only. Every read comes here, so that only what is needed is
/// looked at.
fn in_segment(replicas: &Bound<'_, PyAny>, endpoint: &str) -> PyResult<Found> {
    let mut found = Found::Nowhere;
    for replica in replicas.try_iter()? {
        found = Found::Elsewhere;
        let Some(buffer) = buffer_of(&replica?)? else {
            continue;
        };
        if endpoint_of(&buffer)?.to_str()? == endpoint {
            return Lying::of(&buffer).map(Found::Here);
        }
    }
    Ok(found)
}

fn placement_of(replicas: &Bound<'_, PyAny>) -> PyResult<Option<Placement>> {
    let replicas = replicas.try_iter()?.map(|replica| replica_of(&replica?));
    let replicas: Vec<Replica> = replicas.collect::<PyResult<_>>()?;
    Ok((!replicas.is_empty()).then_some(Placement { replicas }))
}

/// Size of the object, 0 where only its owner knows it. Every write in place of another object comes here.
fn size_of(replicas: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    let Some(first) = replicas.try_iter()?.next() else {
        return Ok(None);
    };
    match buffer_of(&first?)? {
        Some(buffer) => buffer.getattr(intern!(replicas.py(), "size"))?.extract().map(Some),
        None => Ok(placement_of(replicas)?.map(|placement| placement.len().unwrap_or(0))),
    }
}

fn replica_of(replica: &Bound<'_, PyAny>) -> PyResult<Replica> {
    if let Some(buffer) = buffer_of(replica)? {
        return Ok(Replica::Memory(endpoint_of(&buffer)?.extract()?, Lying::of(&buffer)?));
    }
    if replica.call_method0("is_disk_replica")?.is_truthy()? {
        let file = replica.call_method0("get_disk_descriptor")?;
        return Ok(Replica::Disk {
            path: file.getattr("file_path")?.extract()?,
            len: file.getattr("object_size")?.extract()?,
        });
    }
    Ok(Replica::Elsewhere)
}

/// The buffer of a replica in memory. Mooncake raises for any other, which is seldom.
fn buffer_of<'py>(replica: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = replica.py();
    match replica.call_method0(intern!(py, "get_memory_descriptor")) {
        Ok(memory) => memory.getattr(intern!(py, "buffer_descriptor")).map(Some),
        Err(_) => Ok(None),
    }
}

/// The segment that holds a buffer.
fn endpoint_of<'py>(buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    let endpoint = buffer.getattr(intern!(buffer.py(), "transport_endpoint"))?;
    Ok(endpoint.cast_into()?)
}

/// Works with the GIL. A Python error becomes the fault of every key.
pub(super) fn attached<T>(work: impl for<'py> FnOnce(Python<'py>) -> PyResult<T>) -> Result<T, Fault> {
    match Python::try_attach(work) {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => {
            let message = format!("Mooncake's Python module failed: {error}");
            Err(Fault::new(FaultKind::Refused, 0, message))
        }
        None => Err(Fault::new(FaultKind::Unavailable, 0, "Python is ending")),
    }
}

/// A call that moves bytes, and how long it took. Where Python itself ended it late, Mooncake may still move them.
fn timed<T>(call: impl FnOnce() -> Result<T, Fault>) -> Result<(T, Duration), Fault> {
    let started = Instant::now();
    let result = call();
    let elapsed = started.elapsed();
    match result {
        Ok(value) => Ok((value, elapsed)),
        Err(mut fault) => {
            if MAY_STILL_RUN_FROM <= elapsed {
                fault.kind = FaultKind::MayStillWrite;
            }
            Err(fault)
        }
    }
}

fn keys<'a>(transfers: &[Transfer<'a>]) -> Vec<&'a str> {
    transfers.iter().map(|transfer| transfer.key).collect()
}

/// The addresses and the lengths.
fn numbers(transfers: &[Transfer<'_>]) -> [Vec<usize>; 2] {
    let regions = || transfers.iter().map(|transfer| transfer.region);
    [
        regions().map(|region| region.addr).collect(),
        regions().map(|region| region.len).collect(),
    ]
}

fn broken(method: &str, found: usize, asked: usize) -> Fault {
    let message =
        format!("Mooncake's {method} gave {found} results for {asked} keys; its version does not fit this one");
    Fault::new(FaultKind::Refused, 0, message)
}
