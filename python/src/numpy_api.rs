//! numpy's C interface. It makes an array over memory by one C call, which saves the arguments of a call in Python and
//! the writable buffer that numpy asks for first. It tells where an array lies without a call at all.
#![allow(unsafe_code)]
use crate::{dtype::item_bytes, shape::Dims};
use pyo3::{
    ffi,
    prelude::*,
    types::{PyCapsule, PyCapsuleMethods, PyType},
};
use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr::{NonNull, null_mut},
};
use tensorlease::DType;

/// Places in the table of functions, which no version of numpy has moved.
const VERSION: usize = 0;
const ARRAY_TYPE: usize = 2;
const NEW_FROM_DESCR: usize = 94;
const SET_BASE_OBJECT: usize = 282;
/// ABI versions of numpy 1 and numpy 2, for which the places above and the types below hold.
const VERSIONS: [c_uint; 2] = [0x0100_0009, 0x0200_0000];

const C_CONTIGUOUS: c_int = 0x1;
const ALIGNED: c_int = 0x100;
const NATIVE_ORDER: c_int = 0x200;
const WRITEABLE: c_int = 0x400;

type Version = unsafe extern "C" fn() -> c_uint;
type NewFromDescr = unsafe extern "C" fn(
    *mut ffi::PyTypeObject,
    *mut ffi::PyObject,
    c_int,
    *const isize,
    *const isize,
    *mut c_void,
    c_int,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBaseObject = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;

/// The beginning of a numpy object. Only what follows the head is ever borrowed: the head's count of references changes
/// meanwhile.
#[repr(C)]
struct Object<T> {
    head: ffi::PyObject,
    fields: T,
}

/// The beginning of numpy's `PyArrayObject` behind its head, the same in the versions above.
#[repr(C)]
struct ArrayFields {
    data: *mut c_void,
    nd: c_int,
    dimensions: *const isize,
    strides: *const isize,
    base: *mut ffi::PyObject,
    descr: *mut ffi::PyObject,
    flags: c_int,
}

/// The beginning of numpy's `PyArray_Descr` behind its head, the same in the versions above.
#[repr(C)]
struct DescrFields {
    typeobj: *mut ffi::PyTypeObject,
    kind: c_char,
    letter: c_char,
    byteorder: c_char,
}

/// `byteorder` of a dtype whose elements are not in this machine's order.
const SWAPPED: u8 = if cfg!(target_endian = "little") { b'>' } else { b'<' };

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

/// Where an array lies.
pub(crate) struct ArrayView {
    pub(crate) data: *mut u8,
    item_bytes: usize,
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
    /// Asks the array itself, by a call of Python. The caller checked that it is a numpy array.
    pub(crate) fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let attribute = array.getattr(pyo3::intern!(array.py(), "__array_struct__"))?;
        let capsule = attribute.cast::<PyCapsule>()?;
        let pointer = capsule.pointer_checked(None)?.cast::<ArrayInterface>();
        // SAFETY: numpy puts this struct into the capsule, which is alive here.
        let interface = unsafe { pointer.as_ref() };
        let has = |flag| interface.flags & flag != 0;
        Ok(Self {
            data: interface.data.cast(),
            item_bytes: usize::try_from(interface.itemsize).unwrap_or(0),
            // SAFETY: the struct's shape holds `nd` values, and the struct is alive here.
            shape: unsafe { dims(interface.shape, interface.nd) },
            contiguous: has(C_CONTIGUOUS),
            native: has(NATIVE_ORDER),
            writeable: has(WRITEABLE),
        })
    }

    /// Bytes of all elements.
    pub(crate) fn bytes(&self) -> usize {
        let sizes = self.shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0));
        sizes.product::<usize>() * self.item_bytes
    }
}

/// # Safety
/// `rank` values lie at `sizes`, which may be null where `rank` is 0.
unsafe fn dims(sizes: *const isize, rank: c_int) -> Dims {
    let rank = usize::try_from(rank).unwrap_or(0);
    if rank == 0 {
        return Dims::new();
    }
    // SAFETY: by the contract above.
    let sizes = unsafe { std::slice::from_raw_parts(sizes, rank) };
    sizes.iter().map(|size| i64::try_from(*size).unwrap_or(0)).collect()
}

/// The functions of numpy that are used here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumpyApi {
    array: NonNull<ffi::PyTypeObject>,
    new_from_descr: NewFromDescr,
    set_base_object: SetBaseObject,
}

// SAFETY: the pointers lead to code and to a type of the numpy module, which are never unloaded or moved; they are used
// attached only.
unsafe impl Send for NumpyApi {}
// SAFETY: as for Send.
unsafe impl Sync for NumpyApi {}

/// Bytes that an object keeps alive and in place.
pub(crate) struct Memory<'py> {
    owner: Bound<'py, PyAny>,
    data: NonNull<u8>,
    len: usize,
    writable: bool,
}

impl<'py> Memory<'py> {
    /// The `len` bytes at `data`.
    ///
    /// # Safety
    /// They stay where they are for as long as `owner` lives; where `writable` they may be written, by whoever has the
    /// array, until then.
    pub(crate) unsafe fn new(owner: Bound<'py, PyAny>, data: NonNull<u8>, len: usize, writable: bool) -> Self {
        Self {
            owner,
            data,
            len,
            writable,
        }
    }

    /// May it be written?
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// For those who take it through the buffer protocol.
    pub(crate) fn into_owner(self) -> Bound<'py, PyAny> {
        self.owner
    }
}

impl NumpyApi {
    /// The interface of this numpy; `None`: it has none, or another than this was written for.
    pub(crate) fn load(numpy: &Bound<'_, PyAny>) -> Option<Self> {
        let module = ["numpy._core._multiarray_umath", "numpy.core._multiarray_umath"]
            .iter()
            .find_map(|name| numpy.py().import(*name).ok())?;
        let capsule = module.getattr("_ARRAY_API").ok()?.cast_into::<PyCapsule>().ok()?;
        let table = capsule.pointer_checked(None).ok()?.cast::<*mut c_void>();
        let entry = |place: usize| {
            // SAFETY: the capsule holds numpy's table, which is longer than any place that is asked for here.
            let entry = unsafe { table.add(place) };
            // SAFETY: inside the table, see above, which lives as long as the process and is never changed.
            NonNull::new(unsafe { entry.read() })
        };
        // SAFETY: this place of the table has held this function since numpy 1.0.
        let version: Version = unsafe { std::mem::transmute(entry(VERSION)?.as_ptr()) };
        // SAFETY: a function without arguments that returns a constant.
        if !VERSIONS.contains(&unsafe { version() }) {
            return None;
        }
        Some(Self {
            array: entry(ARRAY_TYPE)?.cast(),
            // SAFETY: in the versions checked above this place holds `PyArray_NewFromDescr`, which has this type.
            new_from_descr: unsafe {
                std::mem::transmute::<*mut c_void, NewFromDescr>(entry(NEW_FROM_DESCR)?.as_ptr())
            },
            // SAFETY: in the versions checked above this place holds `PyArray_SetBaseObject`, which has this type.
            set_base_object: unsafe {
                std::mem::transmute::<*mut c_void, SetBaseObject>(entry(SET_BASE_OBJECT)?.as_ptr())
            },
        })
    }

    /// What an array is of and where it lies, without a call of Python. `known` tells what a dtype is. `None`: it is no
    /// array, or not of a known dtype.
    pub(crate) fn look(
        &self,
        array: &Bound<'_, PyAny>,
        known: impl FnOnce(&Bound<'_, PyAny>) -> Option<DType>,
    ) -> Option<(DType, ArrayView)> {
        // SAFETY: attached; both are alive.
        if unsafe { ffi::PyObject_TypeCheck(array.as_ptr(), self.array.as_ptr()) } == 0 {
            return None;
        }
        // SAFETY: an object of numpy's array type, or of one made from it, begins with these fields; it is changed
        // attached only, as we are here.
        let fields = unsafe { &(*array.as_ptr().cast::<Object<ArrayFields>>()).fields };
        // SAFETY: every array has a dtype, which it keeps alive, and which begins with these fields and never changes
        // them.
        let descr = unsafe { &(*fields.descr.cast::<Object<DescrFields>>()).fields };
        // SAFETY: as many sizes as the array has dimensions, which live as long as it.
        let shape = unsafe { dims(fields.dimensions, fields.nd) };
        let (data, flags, native) = (
            fields.data.cast(),
            fields.flags,
            descr.byteorder.cast_unsigned() != SWAPPED,
        );
        // SAFETY: the same dtype, attached; the array's reference is borrowed and a new one made.
        let dtype = unsafe { Bound::from_borrowed_ptr(array.py(), fields.descr) };
        let dtype = known(&dtype)?;
        let view = ArrayView {
            data,
            item_bytes: item_bytes(dtype),
            shape,
            contiguous: flags & C_CONTIGUOUS != 0,
            native,
            writeable: flags & WRITEABLE != 0,
        };
        Some((dtype, view))
    }

    /// An array of `dims` over all of `memory`, in C order, of numpy's class or one made from it. The caller checked
    /// that `dtype` is a numpy dtype of `item_bytes`. `Err` gives the memory back: its size or its alignment is not
    /// that of such an array.
    pub(crate) fn array<'py>(
        &self,
        class: &Bound<'py, PyType>,
        dtype: &Bound<'py, PyAny>,
        item_bytes: usize,
        dims: &[isize],
        memory: Memory<'py>,
    ) -> Result<PyResult<Bound<'py, PyAny>>, Memory<'py>> {
        let py = dtype.py();
        let bytes = dims.iter().try_fold(item_bytes, |bytes, dim| {
            usize::try_from(*dim).ok().and_then(|dim| bytes.checked_mul(dim))
        });
        let aligned = item_bytes.is_power_of_two() && memory.data.as_ptr().addr().is_multiple_of(item_bytes);
        let (Some(true), true, Ok(rank)) = (
            bytes.map(|bytes| bytes == memory.len),
            aligned,
            c_int::try_from(dims.len()),
        ) else {
            return Err(memory);
        };
        let flags = C_CONTIGUOUS | ALIGNED | if memory.writable { WRITEABLE } else { 0 };
        let data = memory.data.as_ptr().cast();
        let descr = dtype.clone().into_ptr();
        let class = class.as_ptr().cast();
        // SAFETY: attached; `class` is numpy's array type or made from it, as the caller says; `descr` is a reference
        // of a dtype that the call takes over; `dims` has `rank` values; the bytes at `data` are as many as the array
        // has (checked above), and the array keeps their owner from the next call on, before anybody else has it.
        let array = unsafe {
            (self.new_from_descr)(
                class,
                descr,
                rank,
                dims.as_ptr(),
                std::ptr::null(),
                data,
                flags,
                null_mut(),
            )
        };
        // SAFETY: a new reference, or null with the error set.
        let array = match unsafe { Bound::from_owned_ptr_or_err(py, array) } {
            Ok(array) => array,
            Err(error) => return Ok(Err(error)),
        };
        // SAFETY: attached; `array` is the array made above, which has no base yet; the call takes the reference of the
        // owner over, also where it fails.
        let status = unsafe { (self.set_base_object)(array.as_ptr(), memory.owner.into_ptr()) };
        Ok(if status == 0 { Ok(array) } else { Err(PyErr::fetch(py)) })
    }
}
