//! A buffer as a DLPack tensor: one allocation holds the C structs, shape, strides and the owner of the bytes.
#![allow(unsafe_code)]
use crate::shape::Dims;
use pyo3::{
    ffi,
    prelude::*,
    types::{PyCapsule, PyCapsuleMethods},
};
use smallvec::SmallVec;
use std::{
    ffi::CStr,
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering},
};
use tensorlease::{Buffer, DType};

/// Version of the ABI that the structs below follow.
pub(crate) const MAJOR_VERSION: u32 = 1;
/// Device type of ordinary memory.
pub(crate) const DEVICE_CPU: i32 = 1;
const CAPSULE_NAME: &CStr = c"dltensor_versioned";

/// Version of an ABI.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DLPackVersion {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// Where memory lies.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DLDevice {
    pub(crate) device_type: i32,
    pub(crate) device_id: i32,
}

/// Element type.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DLDataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

impl From<DType> for DLDataType {
    fn from(dtype: DType) -> Self {
        let (code, bits, lanes) = dtype.dlpack();
        Self { code, bits, lanes }
    }
}

/// A tensor over memory of somebody else.
#[repr(C)]
pub(crate) struct DLTensor {
    pub(crate) data: *mut u8,
    pub(crate) device: DLDevice,
    pub(crate) ndim: i32,
    pub(crate) dtype: DLDataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

/// A tensor with the means to give its memory back.
#[repr(C)]
pub(crate) struct DLManagedTensorVersioned {
    version: DLPackVersion,
    manager: *mut u8,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DLTensor,
}

const _: () = assert!(size_of::<DLTensor>() == 48);
const _: () = assert!(size_of::<DLManagedTensorVersioned>() == 80);

/// Who keeps the bytes of an exported tensor.
pub(crate) enum Owner {
    /// A block of the arena or a copy.
    Buffer(Buffer),
    /// Ordinary memory: the offsets of a jagged batch, which must not keep the batch's block alive.
    Words(Box<[i64]>),
}

impl Owner {
    fn data(&mut self) -> *mut u8 {
        match self {
            Self::Buffer(buffer) => buffer.as_mut_ptr(),
            Self::Words(words) => words.as_mut_ptr().cast(),
        }
    }
    fn bytes(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Words(words) => size_of_val::<[i64]>(words),
        }
    }
}

/// The C struct comes first, so that its address is the address of the allocation.
#[repr(C)]
struct Managed {
    managed: DLManagedTensorVersioned,
    /// Shape, then strides; inline up to four dimensions.
    dims: SmallVec<[i64; 8]>,
    owner: Owner,
    /// Who still needs it: a framework until it has run the deleter, and whoever hands it to one until the outcome is
    /// known.
    holders: AtomicUsize,
}

/// A tensor on its way to a framework. Dropped without `into_raw`, it gives its memory back.
pub(crate) struct Export(NonNull<DLManagedTensorVersioned>);

impl Export {
    /// The whole of `owner` as a contiguous tensor.
    pub(crate) fn new(owner: Owner, dtype: DLDataType, item_bytes: usize, shape: &Dims) -> Self {
        let bytes = shape
            .iter()
            .fold(item_bytes, |bytes, &dim| bytes * usize::try_from(dim).unwrap_or(0));
        assert_eq!(owner.bytes(), bytes, "a tensor covers exactly the bytes of its owner");
        let managed = DLManagedTensorVersioned {
            version: DLPackVersion {
                major: MAJOR_VERSION,
                minor: 0,
            },
            manager: std::ptr::null_mut(),
            deleter: Some(delete),
            flags: 0,
            tensor: DLTensor {
                data: std::ptr::null_mut(),
                device: DLDevice {
                    device_type: DEVICE_CPU,
                    device_id: 0,
                },
                ndim: i32::try_from(shape.len()).expect("the dimensions of a spec are few"),
                dtype,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
        };
        let mut dims: SmallVec<[i64; 8]> = SmallVec::with_capacity(2 * shape.len());
        dims.extend_from_slice(shape);
        dims.resize(2 * shape.len(), 1);
        for axis in (1..shape.len()).rev() {
            dims[shape.len() + axis - 1] = dims[shape.len() + axis] * shape[axis].max(1);
        }
        let raw = Box::into_raw(Box::new(Managed {
            managed,
            dims,
            owner,
            holders: AtomicUsize::new(1),
        }));
        // SAFETY: `raw` was just made from a Box and nothing else refers to it yet.
        let inside = unsafe { &mut *raw };
        // Only now is the place of the owner and of inline dimensions final: each pointer is taken once, and what it
        // leads to is not moved after that.
        inside.managed.tensor.data = inside.owner.data();
        inside.managed.tensor.shape = inside.dims.as_mut_ptr();
        inside.managed.tensor.strides = inside.managed.tensor.shape.wrapping_add(shape.len());
        Self(NonNull::new(raw.cast()).expect("a Box is never null"))
    }

    /// Gives the tensor away: whoever takes it calls the deleter.
    pub(crate) fn into_raw(self) -> *mut DLManagedTensorVersioned {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }

    /// Hands the tensor to `take`, which says whether it has it now. Of frameworks that refuse a tensor some have run
    /// its deleter, others have not: the memory is given back once either way.
    pub(crate) fn hand_over(self, take: impl FnOnce(*mut DLManagedTensorVersioned) -> bool) -> bool {
        let raw = self.0.as_ptr();
        self.holders().fetch_add(1, Ordering::Relaxed);
        let taken = take(raw);
        // The holder that is left besides this one would be the framework, which has refused and will not come back to
        // it.
        if !taken && self.holders().load(Ordering::Acquire) == 2 {
            drop(Self(self.0));
        }
        taken
    }

    fn holders(&self) -> &AtomicUsize {
        let managed = self.0.as_ptr().cast::<Managed>();
        // SAFETY: `self` is one of the holders, so the `Managed` that `new` boxed lives; of it only this field is
        // borrowed.
        unsafe { &(*managed).holders }
    }

    /// As the capsule that `from_dlpack` functions take.
    pub(crate) fn into_capsule(self, py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
        let raw = self.into_raw();
        let pointer = NonNull::new(raw.cast()).expect("never null");
        let destructor = Some(drop_unused_capsule as _);
        // SAFETY: the pointer is a managed tensor that stays valid until its deleter runs, and the destructor runs it
        // exactly when nobody has taken the tensor out.
        let capsule = unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, CAPSULE_NAME, destructor) };
        capsule.inspect_err(|_| drop(Self(NonNull::new(raw).expect("never null"))))
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // SAFETY: `self` is a holder of the tensor, and no longer after this; `into_raw` forgets it.
        unsafe { delete(self.0.as_ptr()) }
    }
}

/// Ends what one holder has of it; the last one's end gives the memory back. No Python, no log, no lock: it runs in any
/// thread, without the GIL, and after the interpreter has gone.
///
/// # Safety
/// `raw` came from `Export::new`, and this is the only call for the holder that makes it.
unsafe extern "C" fn delete(raw: *mut DLManagedTensorVersioned) {
    let managed = raw.cast::<Managed>();
    // SAFETY: the C struct is the first field of the Managed that `Export::new` boxed, which lives while it has a
    // holder.
    let before = unsafe { &(*managed).holders }.fetch_sub(1, Ordering::AcqRel);
    if before == 1 {
        // SAFETY: it came from a Box, and its last holder has just let go.
        drop(unsafe { Box::from_raw(managed) });
    }
}

/// Destructor of a capsule: the name tells whether the tensor was taken out.
unsafe extern "C" fn drop_unused_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls a destructor with its capsule, attached.
    let unused = unsafe { ffi::PyCapsule_IsValid(capsule, CAPSULE_NAME.as_ptr()) } == 1;
    if unused {
        // SAFETY: as above, and the capsule has this name.
        let raw = unsafe { ffi::PyCapsule_GetPointer(capsule, CAPSULE_NAME.as_ptr()) };
        // SAFETY: `into_capsule` put an unreleased managed tensor there, and nobody took it.
        unsafe { delete(raw.cast()) };
    }
}

/// Is this capsule one that still holds a tensor?
pub(crate) fn is_unused(capsule: &Bound<'_, PyCapsule>) -> bool {
    capsule.is_valid_checked(Some(CAPSULE_NAME))
}
