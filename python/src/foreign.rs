//! Memory of Python objects (tensors, arrays, bytes) as sources and destinations of transfers, each kept alive by its
//! object; and memory that Mooncake has lent.
#![allow(unsafe_code)]
use crate::{exchange::View, numpy_api::ArrayView};
use pyo3::{prelude::*, types::PyBytes};
use tensorlease::CallerMemory;

/// Memory of a torch tensor that `view` was read from and that is contiguous, `bytes` in all.
pub(crate) fn of_tensor(tensor: Bound<'_, PyAny>, view: &View, bytes: usize) -> CallerMemory {
    debug_assert!(view.contiguous);
    // SAFETY: the reference to the tensor keeps its storage alive; its size was computed from its own shape and dtype.
    // Like every library that reads tensors without the GIL, this one relies on nobody resizing the storage during the
    // call.
    unsafe { CallerMemory::new(view.data, bytes, Box::new(tensor.unbind())) }
}

/// Memory of a numpy array that `view` was read from and that is contiguous.
pub(crate) fn of_array(array: Bound<'_, PyAny>, view: &ArrayView) -> CallerMemory {
    debug_assert!(view.contiguous);
    // SAFETY: the reference keeps the array's memory alive, and numpy refuses to resize an array that others refer to.
    unsafe { CallerMemory::new(view.data, view.bytes(), Box::new(array.unbind())) }
}

/// Memory of a bytes object: a source only, bytes never change.
pub(crate) fn of_bytes(bytes: Bound<'_, PyBytes>) -> CallerMemory {
    let slice = bytes.as_bytes();
    let (data, len) = (slice.as_ptr().cast_mut(), slice.len());
    // SAFETY: the reference keeps the object alive and bytes objects never move or change; nobody uses it as a target.
    unsafe { CallerMemory::new(data, len, Box::new(bytes.unbind())) }
}

/// `len` bytes at `addr` that Mooncake has lent until `lease` is dropped.
pub(crate) fn of_lease(lease: Box<dyn Send + Sync>, addr: usize, len: usize) -> CallerMemory {
    // SAFETY: Mooncake keeps the lease's `size`, at least `len`, bytes at `ptr` for it until it is released, which the
    // owner does when it is dropped; nothing else refers to them, since no view of the lease is ever exported.
    unsafe { CallerMemory::new(std::ptr::with_exposed_provenance_mut(addr), len, lease) }
}

/// `len` bytes at `addr`, the segment that Mooncake's client `store` contributes: a source only.
pub(crate) fn of_segment(store: Box<dyn Send + Sync>, addr: usize, len: usize) -> CallerMemory {
    // SAFETY: Mooncake maps its segment until its client is closed. The engine copies from it only while it holds its
    // lock that closing waits for (`Mooncake::enter`), and Rust has no reference to these bytes: Mooncake writes them
    // as it likes, like a file's.
    unsafe { CallerMemory::new(std::ptr::with_exposed_provenance_mut(addr), len, store) }
}
