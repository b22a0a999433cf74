//! numpy's C interface: an array over memory by one C call, without the arguments, and the refused writable buffer, of a call in Python; and where an
//! array lies, without a call at all.
#![allow(unsafe_code)]
use crate::shape::Dims;
use pyo3::{
    ffi,
    prelude::*,
    types::{PyCapsule, PyCapsuleMethods, PyType},
};
use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr::{NonNull, null_mut},
};

/// Places in the table of functions, which no version of numpy has moved.
const VERSION: usize = 0;
const ARRAY_TYPE: usize = 2;
const NEW_FROM_DESCR: usize = 94;
const SET_BASE_OBJECT: usize = 282;
/// ABI versions of numpy 1 and numpy 2, for which the places above and the types below hold.
const VERSIONS: [c_uint; 2] = [0x0100_0009, 0x0200_0000];

const C_CONTIGUOUS: c_int = 0x1;
const ALIGNED: c_int = 0x100;
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

/// The beginning of a numpy object. Only what follows the head is ever borrowed: the head's count of references changes meanwhile.
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

/// What an array says of itself.
pub(crate) struct Looked<'py> {
    pub(crate) dtype: Bound<'py, PyAny>,
    pub(crate) data: *mut u8,
    pub(crate) shape: Dims,
    pub(crate) contiguous: bool,
    pub(crate) native: bool,
    pub(crate) writeable: bool,
}

/// The functions of numpy that are used here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumpyApi {
    array: NonNull<ffi::PyTypeObject>,
    new_from_descr: NewFromDescr,
    set_base_object: SetBaseObject,
}

// SAFETY: the pointers lead to code and to a type of the numpy module, which are never unloaded or moved; they are used attached only.
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
    /// They stay where they are for as long as `owner` lives; where `writable` they may be written, by whoever has the array, until then.
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

    /// Where an array lies and what it is of, without a call of Python. None: it is no array.
    pub(crate) fn look<'py>(&self, array: &Bound<'py, PyAny>) -> Option<Looked<'py>> {
        // SAFETY: attached; both are alive.
        if unsafe { ffi::PyObject_TypeCheck(array.as_ptr(), self.array.as_ptr()) } == 0 {
            return None;
        }
        // SAFETY: an object of numpy's array type, or of one made from it, begins with these fields; it is changed attached only, as we are here.
        let fields = unsafe { &(*array.as_ptr().cast::<Object<ArrayFields>>()).fields };
        let rank = usize::try_from(fields.nd).unwrap_or(0);
        let dims = if rank == 0 {
            &[][..]
        } else {
            // SAFETY: as many as the array has dimensions, which live as long as it.
            unsafe { std::slice::from_raw_parts(fields.dimensions, rank) }
        };
        // SAFETY: every array has a dtype, which it keeps alive, and which begins with these fields and never changes them.
        let descr = unsafe { &(*fields.descr.cast::<Object<DescrFields>>()).fields };
        // SAFETY: the same dtype, attached; the array's reference is borrowed and a new one made.
        let dtype = unsafe { Bound::from_borrowed_ptr(array.py(), fields.descr) };
        let has = |flag| fields.flags & flag != 0;
        Some(Looked {
            dtype,
            data: fields.data.cast(),
            shape: dims.iter().map(|dim| i64::try_from(*dim).unwrap_or(0)).collect(),
            contiguous: has(C_CONTIGUOUS),
            native: descr.byteorder.cast_unsigned() != SWAPPED,
            writeable: has(WRITEABLE),
        })
    }

    /// An array of `dims` over all of `memory`, in C order, of numpy's class or one made from it. The caller checked that `dtype` is a numpy dtype of `item_bytes`. `Err` gives the memory back:
    /// its size or its alignment is not that of such an array.
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
        // SAFETY: attached; `class` is numpy's array type or made from it, as the caller says; `descr` is a reference of a dtype that the call takes over; `dims` has `rank` values; the bytes at `data` are as many as the
        // array has (checked above), and the array keeps their owner from the next call on, before anybody else has it.
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
        // SAFETY: attached; `array` is the array made above, which has no base yet; the call takes the reference of the owner over, also where it fails.
        let status = unsafe { (self.set_base_object)(array.as_ptr(), memory.owner.into_ptr()) };
        Ok(if status == 0 { Ok(array) } else { Err(PyErr::fetch(py)) })
    }
}
