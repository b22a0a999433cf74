//! Delivered bytes as Python objects with a buffer, writable or read-only. numpy arrays stand on them.
#![allow(unsafe_code)]
use crate::numpy_api::Memory;
use pyo3::{exceptions::PyBufferError, ffi, prelude::*};
use std::{
    ffi::c_int,
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering},
};
use tensorlease::{Buffer, View};

/// Owns a block of the arena, or a copy, until the last view of it is gone.
#[pyclass(frozen, module = "tensorlease._core")]
pub struct Lease {
    data: NonNull<u8>,
    buffer: Buffer,
}

// SAFETY: `data` points into `buffer`, which may move between threads; the bytes are reached through the buffer
// protocol only, whose users order their accesses themselves, as with every writable buffer of Python.
unsafe impl Send for Lease {}
// SAFETY: as above; `&Lease` gives out nothing but the address and the length.
unsafe impl Sync for Lease {}

impl Lease {
    /// Takes the bytes over.
    pub(crate) fn new(mut buffer: Buffer) -> Self {
        let data = NonNull::new(buffer.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { data, buffer }
    }

    /// The bytes as a Python object, and where they lie. None: there are no bytes.
    pub(crate) fn memory(py: Python<'_>, buffer: Option<Buffer>) -> PyResult<Option<Memory<'_>>> {
        let Some(buffer) = buffer else { return Ok(None) };
        let lease = Bound::new(py, Self::new(buffer))?;
        let (data, len) = (lease.get().data, lease.get().buffer.len());
        // SAFETY: the lease owns the bytes, to which nothing else refers, for as long as it lives, and never moves or
        // shrinks them.
        Ok(Some(unsafe { Memory::new(lease.into_any(), data, len, true) }))
    }

    /// Does it lie in the arena?
    #[cfg(feature = "test-hooks")]
    pub(crate) fn is_leased(&self) -> bool {
        self.buffer.is_leased()
    }
}

#[pymethods]
impl Lease {
    /// Size, bytes.
    fn __len__(&self) -> usize {
        self.buffer.len()
    }

    // SAFETY: only Python's buffer protocol calls it, attached, with a view that is this call's to fill. Its signature
    // takes `slf` by value.
    #[allow(clippy::needless_pass_by_value)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        // SAFETY: `view` is the protocol's; `slf` owns the bytes for as long as it lives and never moves or shrinks
        // them.
        unsafe { fill(view, slf.as_any(), this.data.as_ptr(), this.buffer.len(), true, flags) }
    }
}

/// Fills a view with `len` bytes at `data`, which then holds a reference to `owner`.
///
/// # Safety
/// `view` is null or a view that Python's buffer protocol gave to be filled; the bytes stay where they are for as long as `owner` lives, and may
/// be written where `writable`.
unsafe fn fill(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    data: *mut u8,
    len: usize,
    writable: bool,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err(
            "the buffer protocol asked for a view without giving one",
        ));
    }
    if !writable && flags & ffi::PyBUF_WRITABLE != 0 {
        // numpy asks for a writable view of every array first. CPython's own error would cost more than all the rest.
        return Err(PyBufferError::new_err("the value is read-only"));
    }
    let len = isize::try_from(len).expect("an allocation is never larger");
    let readonly = c_int::from(!writable);
    // SAFETY: by the contract above `view` may be written, and the bytes outlive the reference to `owner` that it then
    // holds.
    let status = unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), data.cast(), len, readonly, flags) };
    if status == 0 {
        Ok(())
    } else {
        Err(PyErr::fetch(owner.py()))
    }
}

/// Views of this process that are alive.
static LIVE_VIEWS: AtomicUsize = AtomicUsize::new(0);

/// How many objects of a host's store this process now reads in place.
#[pyfunction]
pub(crate) fn live_views() -> usize {
    LIVE_VIEWS.load(Ordering::Relaxed)
}

/// Keeps an object of the host's store as it is, until the last array over it is gone.
#[pyclass(frozen, module = "tensorlease._core")]
pub struct InPlace {
    view: View,
}

impl InPlace {
    /// The view as a Python object, and where its bytes lie.
    pub(crate) fn memory(py: Python<'_>, view: View) -> PyResult<Memory<'_>> {
        LIVE_VIEWS.fetch_add(1, Ordering::Relaxed);
        let place = Bound::new(py, Self { view })?;
        let view = &place.get().view;
        let data = NonNull::new(view.as_ptr().cast_mut()).unwrap_or(NonNull::dangling());
        let len = view.len();
        // SAFETY: the view keeps the bytes mapped and as they are for as long as the object lives. Nothing writes them
        // through it.
        Ok(unsafe { Memory::new(place.into_any(), data, len, false) })
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        LIVE_VIEWS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[pymethods]
impl InPlace {
    /// Size, bytes.
    fn __len__(&self) -> usize {
        self.view.len()
    }

    // SAFETY: only Python's buffer protocol calls it, attached, with a view that is this call's to fill. Its signature
    // takes `slf` by value.
    #[allow(clippy::needless_pass_by_value)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().view;
        // SAFETY: `view` is the protocol's, and is filled as read-only; `slf` keeps the bytes mapped and as they are
        // for as long as it lives.
        unsafe { fill(view, slf.as_any(), bytes.as_ptr().cast_mut(), bytes.len(), false, flags) }
    }
}
