//! The DLPack C exchange interface of a framework: tensors in and out by plain C calls, without an attribute look-up or
//! a capsule.
#![allow(unsafe_code)]
use crate::{
    dlpack::{self, DLDataType, DLManagedTensorVersioned, DLPackVersion, DLTensor, Export},
    shape::Dims,
};
use pyo3::{
    ffi,
    prelude::*,
    types::{PyCapsule, PyCapsuleMethods},
};
use std::{ffi::CStr, mem::MaybeUninit, ptr::NonNull};

const CAPSULE_NAME: &CStr = c"dlpack_exchange_api";

#[repr(C)]
struct Header {
    version: DLPackVersion,
    older: *mut Self,
}

type ToPython = unsafe extern "C" fn(*mut DLManagedTensorVersioned, *mut *mut ffi::PyObject) -> i32;
type ViewOf = unsafe extern "C" fn(*mut ffi::PyObject, *mut DLTensor) -> i32;

#[repr(C)]
struct Table {
    header: Header,
    allocate: *const u8,
    from_python: *const u8,
    to_python: Option<ToPython>,
    view_of: Option<ViewOf>,
    work_stream: *const u8,
}

/// The functions of one framework that are used here.
#[derive(Clone, Copy)]
pub(crate) struct Exchange {
    to_python: ToPython,
    view_of: ViewOf,
}

/// Where a framework's tensor lies, read without owning it.
pub(crate) struct View {
    pub(crate) data: *mut u8,
    pub(crate) device_type: i32,
    pub(crate) dtype: DLDataType,
    pub(crate) shape: Dims,
    pub(crate) contiguous: bool,
}

impl Exchange {
    /// The interface behind `type(tensor).__dlpack_c_exchange_api__`. None: no capsule of the version this was written
    /// for.
    pub(crate) fn load(attribute: &Bound<'_, PyAny>) -> Option<Self> {
        let capsule = attribute.cast::<PyCapsule>().ok()?;
        let header: NonNull<Header> = capsule.pointer_checked(Some(CAPSULE_NAME)).ok()?.cast();
        // SAFETY: a capsule of this name holds a table whose header is stable across versions and which lives as long
        // as the process.
        let version = unsafe { &(*header.as_ptr()).version };
        if version.major != dlpack::MAJOR_VERSION {
            return None;
        }
        // SAFETY: as above; the rest of the table has this layout in every minor version of this major version.
        let table = unsafe { header.cast::<Table>().as_ref() };
        Some(Self {
            to_python: table.to_python?,
            view_of: table.view_of?,
        })
    }

    /// Makes the framework's tensor. On failure the tensor's memory has been given back.
    ///
    /// The cycle collector is off meanwhile: a full collection, which 16,384 new tensors set off every few reads, costs
    /// more than making them. The call runs no Python and keeps the GIL, so nobody else can find the collector off;
    /// what is due runs once, after the last of them.
    pub(crate) fn import<'py>(&self, py: Python<'py>, export: Export) -> PyResult<Bound<'py, PyAny>> {
        let mut object = std::ptr::null_mut();
        let taken = export.hand_over(|raw| {
            // SAFETY: attached, as `py` shows.
            let was_on = unsafe { ffi::PyGC_Disable() } == 1;
            // SAFETY: `raw` is a complete managed tensor that the call takes over where it returns 0; attached, see
            // above.
            let status = unsafe { (self.to_python)(raw, &raw mut object) };
            if was_on {
                // SAFETY: attached, see above.
                unsafe { ffi::PyGC_Enable() };
            }
            status == 0
        });
        if !taken {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: on success the call returns a new reference.
        Ok(unsafe { Bound::from_owned_ptr(py, object) })
    }

    /// Reads where `tensor` lies. The caller checked that it is a tensor of this framework. Err: it has no plain
    /// memory.
    pub(crate) fn view(&self, tensor: &Bound<'_, PyAny>) -> PyResult<View> {
        let mut raw = MaybeUninit::<DLTensor>::uninit();
        // SAFETY: `tensor` is alive and attached through its Bound; the call fills `raw` when it returns 0.
        let status = unsafe { (self.view_of)(tensor.as_ptr(), raw.as_mut_ptr()) };
        if status != 0 {
            return Err(PyErr::fetch(tensor.py()));
        }
        // SAFETY: filled, see above.
        let raw = unsafe { raw.assume_init() };
        let rank = usize::try_from(raw.ndim).unwrap_or(0);
        let (mut shape, mut strides) = (Dims::new(), Dims::new());
        if rank > 0 {
            // SAFETY: shape holds `ndim` values for as long as the tensor is not changed, and this thread holds the
            // GIL.
            shape.extend_from_slice(unsafe { std::slice::from_raw_parts(raw.shape, rank) });
            // SAFETY: as for the shape; strides are never null from version 1.2 on, which the exchange interface
            // requires.
            strides.extend_from_slice(unsafe { std::slice::from_raw_parts(raw.strides, rank) });
        }
        Ok(View {
            data: raw.data.wrapping_add(usize::try_from(raw.byte_offset).unwrap_or(0)),
            device_type: raw.device.device_type,
            dtype: raw.dtype,
            contiguous: is_contiguous(&shape, &strides),
            shape,
        })
    }
}

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    for (&dim, &stride) in shape.iter().zip(strides).rev() {
        if dim == 0 {
            return true;
        }
        if dim != 1 && stride != expected {
            return false;
        }
        expected *= dim;
    }
    // A dimension of 0 further left makes the tensor empty whatever the strides say; the loop above saw it.
    true
}
