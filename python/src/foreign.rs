//! Memory of Python objects (tensors, arrays, bytes) as sources and destinations of transfers, each kept alive by its object;
//! and memory that Mooncake has lent.
#![allow(unsafe_code)]
use crate::{exchange::View, numpy_api::Looked, shape::Dims};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyCapsule, PyCapsuleMethods},
};
use std::ffi::{c_char, c_int, c_void};
use tensorlease::Foreign;

const C_CONTIGUOUS: c_int = 0x1;
const NATIVE_ORDER: c_int = 0x200;
const WRITEABLE: c_int = 0x400;

/// numpy's `PyArrayInterface`, behind `__array_struct__`.
#[repr(C)]
struct ArrayInterface {
    two: c_int,
    nd: c_int,
    typekind: c_char,
    itemsize: c_int,
    flags: c_int,
    shape: *mut isize,
    strides: *mut isize,
    data: *mut c_void,
    descr: *mut c_void,
}

/// Where a numpy array lies.
pub(crate) struct ArrayView {
    data: *mut u8,
    bytes: usize,
    /// Sizes of its dimensions.
    pub(crate) shape: Dims,
    /// In C order without gaps.
    pub(crate) contiguous: bool,
    /// In this machine's byte order.
    pub(crate) native: bool,
    /// May be written.
    pub(crate) writeable: bool,
}

impl ArrayView {
    /// Reads where `array` lies. The caller checked that it is a numpy array.
    pub(crate) fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let attribute = array.getattr(pyo3::intern!(array.py(), "__array_struct__"))?;
        let capsule = attribute.cast::<PyCapsule>()?;
        let pointer = capsule.pointer_checked(None)?.cast::<ArrayInterface>();
        // SAFETY: numpy puts this struct into the capsule, which is alive here.
        let interface = unsafe { pointer.as_ref() };
        let rank = usize::try_from(interface.nd).unwrap_or(0);
        let mut shape = Dims::new();
        let mut bytes = usize::try_from(interface.itemsize).unwrap_or(0);
        if rank > 0 {
            // SAFETY: the struct's shape holds `nd` values.
            let dims = unsafe { std::slice::from_raw_parts(interface.shape, rank) };
            for &dim in dims {
                shape.push(i64::try_from(dim).unwrap_or(0));
                bytes *= usize::try_from(dim).unwrap_or(0);
            }
        }
        let has = |flag| interface.flags & flag != 0;
        Ok(Self {
            data: interface.data.cast(),
            bytes,
            shape,
            contiguous: has(C_CONTIGUOUS),
            native: has(NATIVE_ORDER),
            writeable: has(WRITEABLE),
        })
    }
}

impl From<(Looked<'_>, usize)> for ArrayView {
    /// With the bytes of one element.
    fn from((looked, item_bytes): (Looked<'_>, usize)) -> Self {
        let sizes = looked.shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0));
        Self {
            data: looked.data,
            bytes: sizes.product::<usize>() * item_bytes,
            shape: looked.shape,
            contiguous: looked.contiguous,
            native: looked.native,
            writeable: looked.writeable,
        }
    }
}

/// Memory of a torch tensor that `view` was read from and that is contiguous, `bytes` in all.
pub(crate) fn of_tensor(tensor: Bound<'_, PyAny>, view: &View, bytes: usize) -> Foreign {
    debug_assert!(view.contiguous);
    // SAFETY: the reference to the tensor keeps its storage alive; its size was computed from its own shape and dtype. Like every library that
    // reads tensors without the GIL, this one relies on nobody resizing the storage during the call.
    unsafe { Foreign::new(view.data, bytes, Box::new(tensor.unbind())) }
}

/// Memory of a numpy array that `view` was read from and that is contiguous.
pub(crate) fn of_array(array: Bound<'_, PyAny>, view: &ArrayView) -> Foreign {
    debug_assert!(view.contiguous);
    // SAFETY: the reference keeps the array's memory alive, and numpy refuses to resize an array that others refer to.
    unsafe { Foreign::new(view.data, view.bytes, Box::new(array.unbind())) }
}

/// Memory of a bytes object: a source only, bytes never change.
pub(crate) fn of_bytes(bytes: Bound<'_, PyBytes>) -> Foreign {
    let slice = bytes.as_bytes();
    let (data, len) = (slice.as_ptr().cast_mut(), slice.len());
    // SAFETY: the reference keeps the object alive and bytes objects never move or change; nobody uses it as a target.
    unsafe { Foreign::new(data, len, Box::new(bytes.unbind())) }
}

/// `len` bytes at `addr` that Mooncake has lent until `lease` is dropped.
pub(crate) fn of_lease(lease: Box<dyn Send + Sync>, addr: usize, len: usize) -> Foreign {
    // SAFETY: Mooncake keeps the lease's `size`, at least `len`, bytes at `ptr` for it until it is released, which the owner does when it is
    // dropped; nothing else refers to them, since no view of the lease is ever exported.
    unsafe { Foreign::new(std::ptr::with_exposed_provenance_mut(addr), len, lease) }
}

/// `len` bytes at `addr`, the segment that Mooncake's client `store` contributes: a source only.
pub(crate) fn of_segment(store: Box<dyn Send + Sync>, addr: usize, len: usize) -> Foreign {
    // SAFETY: Mooncake maps its segment until its client is closed. The engine copies from it only while it holds its lock that closing waits for
    // (`Mooncake::enter`), and Rust has no reference to these bytes: Mooncake writes them as it likes, like a file's.
    unsafe { Foreign::new(std::ptr::with_exposed_provenance_mut(addr), len, store) }
}
