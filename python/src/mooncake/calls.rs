//! Batched calls on Mooncake's Python object: lists in, a code per key out.
use super::{
    codes::{Way, fault},
    connect::Connected,
};
use pyo3::{
    intern,
    prelude::*,
    types::{PyDict, PyList, PyString, PyTuple},
};
use std::time::Duration;
use tensorlease::engine::{Fault, FaultKind};

/// One key and where its bytes are: an address and a length.
pub(super) struct Transfer<'a> {
    pub(super) key: &'a str,
    pub(super) addr: usize,
    pub(super) len: usize,
}

/// A range of an object and where it lands.
pub(super) struct RangeTransfer<'a> {
    pub(super) key: &'a str,
    pub(super) addr: usize,
    pub(super) offset: u64,
    pub(super) len: usize,
}

/// Mooncake's client object. Every call may come from any thread, takes the GIL for its arguments and lets go of it inside Mooncake.
pub(super) struct Calls {
    pub(super) connected: Connected,
}

impl Calls {
    pub(super) fn new(connected: Connected) -> Self {
        Self { connected }
    }

    /// Bytes per key, or a negative code.
    pub(super) fn get_into(&self, transfers: &[Transfer<'_>]) -> Result<Vec<i64>, Fault> {
        self.codes("batch_get_into", transfers.len(), |py| {
            PyTuple::new(py, lists(py, transfers)?)
        })
    }

    /// One code per key; 0: stored, in place of what was there.
    pub(super) fn upsert_from(&self, transfers: &[Transfer<'_>]) -> Result<Vec<i64>, Fault> {
        self.codes("batch_upsert_from", transfers.len(), |py| {
            let [keys, addresses, lens] = lists(py, transfers)?;
            (keys, addresses, lens, self.connected.replication.bind(py)).into_pyobject(py)
        })
    }

    /// One object out of several pieces of memory. An object of this key must not exist.
    pub(super) fn put_from_pieces(&self, key: &str, pieces: &[(usize, usize)]) -> Result<Vec<i64>, Fault> {
        self.codes("batch_put_from_multi_buffers", 1, |py| {
            let addresses: Vec<usize> = pieces.iter().map(|(addr, _)| *addr).collect();
            let lens: Vec<usize> = pieces.iter().map(|(_, len)| *len).collect();
            let arguments = (
                vec![key],
                vec![addresses],
                vec![lens],
                self.connected.replication.bind(py),
            );
            arguments.into_pyobject(py)
        })
    }

    /// One range each; the memory must be registered also where Mooncake's other reads don't ask for it.
    pub(super) fn get_range(&self, range: &RangeTransfer<'_>) -> Result<i64, Fault> {
        let nested: Vec<Vec<Vec<i64>>> = self.call("get_into_ranges", |py| {
            let arguments = (
                vec![range.addr],
                vec![vec![range.key]],
                vec![vec![vec![0_u64]]],
                vec![vec![vec![range.offset]]],
                vec![vec![vec![range.len]]],
            );
            arguments.into_pyobject(py)
        })?;
        nested
            .into_iter()
            .flatten()
            .flatten()
            .next()
            .ok_or_else(|| broken("get_into_ranges", 0, 1))
    }

    /// Where the object lies, and its size; `None`: there is none. A read of ranges compares it before and after: Mooncake checks its read
    /// lease only where whole objects are read.
    pub(super) fn placement(&self, key: &str) -> Result<Option<Placement>, Fault> {
        Ok(self.replicas(&[key], placement_of)?.pop().flatten())
    }

    /// What `what` makes of the replicas of each object; `None`: there is no such object.
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

    /// Size of the object that each key has now, 0 where only its owner knows it. Mooncake writes a line to stderr for each missing key whose place it
    /// is asked for, so it is asked first which of them are there.
    pub(super) fn sizes(&self, keys: &[&str]) -> Result<Vec<Option<u64>>, Fault> {
        let codes = self.exist(keys)?;
        if let Some(code) = codes.iter().find(|code| **code < 0) {
            return Err(fault(*code, Way::Asked, Duration::ZERO));
        }
        let there = |at: &usize| codes[*at] != 0;
        let there: Vec<usize> = (0..keys.len()).filter(there).collect();
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

    /// The endpoint of the segment that holds an object, and where it lies there.
    pub(super) fn memory_of(&self, key: &str) -> Result<Option<(String, Lying)>, Fault> {
        let replicas = self
            .placement(key)?
            .map_or_else(Vec::new, |placement| placement.replicas);
        let memory = replicas.into_iter().find_map(|replica| match replica {
            Replica::Memory { owner, addr, len } => Some((owner, Lying { addr, len })),
            Replica::Disk { .. } | Replica::Elsewhere => None,
        });
        Ok(memory)
    }

    /// Size of the object, or a negative code.
    pub(super) fn size(&self, key: &str) -> Result<i64, Fault> {
        self.call("get_size", |py| (key,).into_pyobject(py))
    }

    /// 0: removed; -704: there was none. Readers don't hold it back.
    pub(super) fn remove(&self, keys: &[&str]) -> Result<Vec<i64>, Fault> {
        self.codes("batch_remove", keys.len(), |py| (keys.to_vec(), true).into_pyobject(py))
    }

    /// How many objects were removed, or a negative code.
    pub(super) fn remove_matching(&self, pattern: &str) -> Result<i64, Fault> {
        self.call("remove_by_regex", |py| (pattern, true).into_pyobject(py))
    }

    /// 1: there, 0: not.
    pub(super) fn exist(&self, keys: &[&str]) -> Result<Vec<i64>, Fault> {
        self.codes("batch_is_exist", keys.len(), |py| (keys.to_vec(),).into_pyobject(py))
    }

    /// 0, or a negative code.
    pub(super) fn register(&self, addr: usize, len: usize) -> Result<i64, Fault> {
        self.call("register_buffer", |py| (addr, len).into_pyobject(py))
    }

    /// 0, or a negative code.
    pub(super) fn unregister(&self, addr: usize) -> Result<i64, Fault> {
        self.call("unregister_buffer", |py| (addr,).into_pyobject(py))
    }

    /// 0, or what went wrong.
    pub(super) fn close(&self) -> Result<i64, Fault> {
        self.call("close", |py| Ok(PyTuple::empty(py)))
    }

    /// Which of the keys have a replica on somebody's SSD that is offloaded there: failed reads of those may still write. A key that the master
    /// no longer knows has nobody who could send it; where the master does not answer, every key counts.
    pub(super) fn offloaded(&self, keys: &[&str]) -> Vec<bool> {
        let asked = attached(|py| {
            let found = self
                .connected
                .store
                .bind(py)
                .call_method1("batch_get_replica_desc", (keys.to_vec(),))?;
            let offloaded = |key: &&str| -> PyResult<bool> {
                let Ok(replicas) = found.get_item(*key) else {
                    return Ok(false);
                };
                for replica in replicas.try_iter()? {
                    if replica?.call_method0("is_local_disk_replica")?.is_truthy()? {
                        return Ok(true);
                    }
                }
                Ok(false)
            };
            keys.iter().map(offloaded).collect::<PyResult<Vec<bool>>>()
        });
        asked.unwrap_or_else(|_| vec![true; keys.len()])
    }

    fn codes<'a>(
        &self,
        method: &'static str,
        asked: usize,
        arguments: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>> + 'a,
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
        arguments: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>>,
    ) -> Result<T, Fault> {
        attached(|py| {
            let arguments = arguments(py)?;
            self.connected.store.bind(py).call_method1(method, arguments)?.extract()
        })
    }
}

/// Where an object lies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placement {
    replicas: Vec<Replica>,
}

#[derive(Debug, PartialEq, Eq)]
enum Replica {
    Memory {
        owner: String,
        addr: u64,
        len: u64,
    },
    Disk {
        path: String,
        len: u64,
    },
    /// On its owner's SSD; Mooncake tells no more of it.
    Elsewhere,
}

impl Placement {
    /// Size of the object, where the replicas tell.
    pub(super) fn len(&self) -> Option<u64> {
        self.replicas.iter().find_map(|replica| match replica {
            Replica::Memory { len, .. } | Replica::Disk { len, .. } => Some(*len),
            Replica::Elsewhere => None,
        })
    }
}

/// Where an object lies in the memory of the process that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lying {
    pub(super) addr: u64,
    pub(super) len: u64,
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

/// The first replica there; the master names complete ones only. On the path of every read: only what is needed is looked at.
fn in_segment(replicas: &Bound<'_, PyAny>, endpoint: &str) -> PyResult<Found> {
    let py = replicas.py();
    let mut found = Found::Nowhere;
    for replica in replicas.try_iter()? {
        found = Found::Elsewhere;
        // Raises for a replica that is not in memory, which is seldom.
        let Ok(memory) = replica?.call_method0(intern!(py, "get_memory_descriptor")) else {
            continue;
        };
        let buffer = memory.getattr(intern!(py, "buffer_descriptor"))?;
        let owner = buffer.getattr(intern!(py, "transport_endpoint"))?;
        if owner.cast::<PyString>()?.to_str()? == endpoint {
            return Ok(Found::Here(Lying {
                addr: buffer.getattr(intern!(py, "buffer_address"))?.extract()?,
                len: buffer.getattr(intern!(py, "size"))?.extract()?,
            }));
        }
    }
    Ok(found)
}

fn placement_of(replicas: &Bound<'_, PyAny>) -> PyResult<Option<Placement>> {
    let replicas = replicas.try_iter()?.map(|replica| replica_of(&replica?));
    let replicas: Vec<Replica> = replicas.collect::<PyResult<_>>()?;
    Ok((!replicas.is_empty()).then_some(Placement { replicas }))
}

/// Size of the object, 0 where only its owner knows it. On the path of every write in place of another.
fn size_of(replicas: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    let py = replicas.py();
    let Some(first) = replicas.try_iter()?.next() else {
        return Ok(None);
    };
    if let Ok(memory) = first?.call_method0(intern!(py, "get_memory_descriptor")) {
        let buffer = memory.getattr(intern!(py, "buffer_descriptor"))?;
        return buffer.getattr(intern!(py, "size"))?.extract().map(Some);
    }
    Ok(placement_of(replicas)?.map(|placement| placement.len().unwrap_or(0)))
}

fn replica_of(replica: &Bound<'_, PyAny>) -> PyResult<Replica> {
    if replica.call_method0("is_memory_replica")?.is_truthy()? {
        let buffer = replica
            .call_method0("get_memory_descriptor")?
            .getattr("buffer_descriptor")?;
        return Ok(Replica::Memory {
            owner: buffer.getattr("transport_endpoint")?.extract()?,
            addr: buffer.getattr("buffer_address")?.extract()?,
            len: buffer.getattr("size")?.extract()?,
        });
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

/// With the GIL; a Python error becomes the fault of every key.
pub(super) fn attached<T>(work: impl for<'py> FnOnce(Python<'py>) -> PyResult<T>) -> Result<T, Fault> {
    match Python::try_attach(work) {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(Fault::new(
            FaultKind::Refused,
            0,
            format!("Mooncake's Python module failed: {error}"),
        )),
        None => Err(Fault::new(FaultKind::Unavailable, 0, "Python is ending")),
    }
}

fn lists<'py>(py: Python<'py>, transfers: &[Transfer<'_>]) -> PyResult<[Bound<'py, PyList>; 3]> {
    let keys = PyList::new(py, transfers.iter().map(|transfer| transfer.key))?;
    let addresses = PyList::new(py, transfers.iter().map(|transfer| transfer.addr))?;
    let lens = PyList::new(py, transfers.iter().map(|transfer| transfer.len))?;
    Ok([keys, addresses, lens])
}

fn broken(method: &str, found: usize, asked: usize) -> Fault {
    let message =
        format!("Mooncake's {method} gave {found} results for {asked} keys; its version does not fit this one");
    Fault::new(FaultKind::Refused, 0, message)
}
