"""Values that are not tensors as bytes, without pickle.

An object is a fixed head, the lengths of its segments, a msgpack tree, then the segments, each aligned to 64 bytes::

    b"TLV" + version byte | u32 number of segments | u64 bytes of the tree | u64 bytes of each segment | tree | segments

The tree holds everything small. Arrays, tensors and long bytes are segments: they go to the engine from where they lie, and are never
put together in Python. Numbers are little-endian.

On the way back, segments of 1 MiB and more are views into the memory that was read (writable, and each keeps that memory alive), smaller ones
are copies. bytearray and memoryview come back as bytes.
"""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import msgpack

from tensorlease.errors import CodecError, ConfigError

MAGIC = b"TLV"
VERSION = 1
ALIGN_BYTES = 64
#: Long text and bytes get a segment of their own.
SEGMENT_BYTES_MIN = 4096
#: From here on a decoded array is a view.
VIEW_BYTES_MIN = 1 << 20

_HEAD = struct.Struct("<3sBIQ")
_LENGTH = struct.Struct("<Q")

# Codes of msgpack's extension types. They are part of the format: never change or reuse one.
_TUPLE = 1
_BIG_INT = 2
_SET = 3
_FROZENSET = 4
_ARRAY = 5
_OBJECT_ARRAY = 6
_SCALAR = 7
_TENSOR = 8
_PICKLE = 9
_COMPLEX = 10
_LONG_BYTES = 11
_LONG_TEXT = 12


def encode(value: Any, name: str, allow_pickle: bool) -> list[Any]:
    """`value` as parts (bytes, plain arrays, plain tensors) to store one after the other; `name` says in errors which key it is of."""
    writer = _Writer(name, allow_pickle)
    tree = writer.tree(value)
    lengths = [length for length, _ in writer.segments]
    head = _HEAD.pack(MAGIC, VERSION, len(lengths), len(tree)) + b"".join(map(_LENGTH.pack, lengths)) + tree
    parts: list[Any] = [head]
    end = len(head)
    for length, segment in writer.segments:
        if length == 0:
            continue
        padding = -end % ALIGN_BYTES
        if padding:
            parts.append(bytes(padding))
        parts.append(segment)
        end += padding + length
    return parts


def decode(buffer: Any, key: str, allow_pickle: bool) -> Any:
    """The value in `buffer`, the bytes of an object."""
    reader = _Reader(buffer, key, allow_pickle)
    try:
        return reader.value()
    except (ConfigError, CodecError):
        raise
    # Bytes from elsewhere can go wrong in every way that msgpack, numpy and struct know.
    except Exception as error:
        raise CodecError(f"key {key!r}: the stored bytes are damaged ({error})") from error


def _view_class() -> Any:
    """The class of arrays that lie in the host's store, where there has been one."""
    views = sys.modules.get("tensorlease.numpy_views")
    return views.View if views is not None else None


class _Writer:
    def __init__(self, name: str, allow_pickle: bool) -> None:
        self._name = name
        self._allow_pickle = allow_pickle
        #: (bytes, memory)
        self.segments: list[tuple[int, Any]] = []

    def tree(self, value: Any) -> bytes:
        if type(value) is bytes and len(value) >= SEGMENT_BYTES_MIN:
            value = self._segment_type(_LONG_BYTES, len(value), value)
        elif type(value) is str and len(value) >= SEGMENT_BYTES_MIN:
            text = value.encode("utf-8", "surrogatepass")
            value = self._segment_type(_LONG_TEXT, len(text), text)
        return self._pack(value)

    def _pack(self, value: Any) -> bytes:
        try:
            packed = msgpack.packb(value, default=self._unknown, strict_types=True, unicode_errors="surrogatepass")
        except ConfigError:
            raise
        except (ValueError, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"{self._name} can't be stored: {error} (too deep, too large, or containing itself)"
            ) from error
        return bytes(packed)

    def _unknown(self, value: Any) -> Any:
        """What msgpack does not know by itself, as an extension type."""
        simple = _SIMPLE.get(type(value))
        if simple is not None:
            code, convert = simple
            return msgpack.ExtType(code, self._pack(convert(value)))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(value)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if type(value) is numpy.ndarray or type(value) is numpy.memmap or type(value) is _view_class():
                return self._array(numpy, value)
            if isinstance(value, numpy.generic) and not value.dtype.hasobject:
                return msgpack.ExtType(_SCALAR, self._pack([_descr_of(numpy, value.dtype), value.tobytes()]))
        if self._allow_pickle:
            try:
                return msgpack.ExtType(_PICKLE, pickle.dumps(value, protocol=5))
            # Whatever an object's __reduce__ raises.
            except Exception as error:
                raise ConfigError(f"{self._name} holds a {_type_name(value)} that can't be pickled: {error}") from error
        self._refuse(value)

    def _refuse(self, value: Any) -> NoReturn:
        raise ConfigError(
            f"{self._name} holds a {_type_name(value)}, which is stored only with allow_pickle=True (reading it back then runs code "
            "from whoever wrote it); without it: str, bytes, numbers, None, list, tuple, dict, set, numpy arrays and torch tensors"
        )

    def _tensor(self, value: Any) -> Any:
        from tensorlease import torch_values

        plain = torch_values.prepare(value, self._name)
        dtype = str(plain.dtype).removeprefix("torch.")
        return self._segment_type(_TENSOR, plain.numel() * plain.element_size(), plain, dtype, list(plain.shape))

    def _array(self, numpy: Any, value: Any) -> Any:
        dtype = value.dtype
        if dtype == numpy.dtype(object):
            return msgpack.ExtType(_OBJECT_ARRAY, self._pack([list(value.shape), list(value.ravel())]))
        if dtype.hasobject:
            self._refuse(value)
        from tensorlease import numpy_values

        plain = numpy_values.bytes_of(value)
        return self._segment_type(_ARRAY, plain.nbytes, plain, _descr_of(numpy, dtype), list(value.shape))

    def _segment_type(self, code: int, length: int, segment: Any, *details: Any) -> Any:
        self.segments.append((length, segment))
        return msgpack.ExtType(code, self._pack([len(self.segments) - 1, *details]))


#: Types of Python: how each becomes something that msgpack knows.
_SIMPLE: dict[type, tuple[int, Callable[[Any], Any]]] = {
    tuple: (_TUPLE, list),
    # msgpack itself stores those of up to 64 bits.
    int: (_BIG_INT, lambda value: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)),
    set: (_SET, list),
    frozenset: (_FROZENSET, list),
    complex: (_COMPLEX, lambda value: [value.real, value.imag]),
}


class _Reader:
    def __init__(self, buffer: Any, key: str, allow_pickle: bool) -> None:
        self._owner = buffer
        self._bytes = memoryview(buffer)
        self._key = key
        self._allow_pickle = allow_pickle
        #: (offset, bytes)
        self._segments: list[tuple[int, int]] = []

    def value(self) -> Any:
        total = len(self._bytes)
        if total < _HEAD.size:
            self._damaged("too short")
        magic, version, count, tree_bytes = _HEAD.unpack_from(self._bytes)
        if magic != MAGIC:
            self._damaged("it was not written by put()")
        if version != VERSION:
            self._damaged(
                f"written in version {version} of the format, and this release reads {VERSION}; upgrade tensorlease"
            )
        tree_start = _HEAD.size + _LENGTH.size * count
        end = tree_start + tree_bytes
        if end > total:
            self._damaged("cut short")
        for index in range(count):
            (length,) = _LENGTH.unpack_from(self._bytes, _HEAD.size + _LENGTH.size * index)
            start = end + (-end % ALIGN_BYTES if length else 0)
            end = start + length
            self._segments.append((start, length))
        if end != total:
            self._damaged(f"{total} bytes where {end} are announced")
        return self._unpack(self._bytes[tree_start : tree_start + tree_bytes])

    def _damaged(self, why: str) -> NoReturn:
        raise CodecError(f"key {self._key!r}: the stored bytes are no value: {why}")

    def _unpack(self, packed: Any) -> Any:
        return msgpack.unpackb(packed, ext_hook=self._known, strict_map_key=False, unicode_errors="surrogatepass")

    def _known(self, code: int, data: bytes) -> Any:
        if code == _PICKLE:
            if not self._allow_pickle:
                raise ConfigError(
                    f"key {self._key!r} holds a pickled object, and unpickling runs code from whoever wrote it; "
                    "pass allow_pickle=True if you trust them"
                )
            return pickle.loads(data)
        read = _READ.get(code)
        if read is None:
            self._damaged(f"unknown type {code}; upgrade tensorlease")
        return read(self, self._unpack(data))

    def segment(self, index: int) -> memoryview:
        start, length = self._segments[index]
        return self._bytes[start : start + length]

    def array(self, details: Any) -> Any:
        index, descr, shape = details
        numpy = self._numpy()
        dtype = _dtype_from(numpy, descr)
        start, length = self._segments[index]
        self._check(length, dtype.itemsize, shape)
        if length >= VIEW_BYTES_MIN and not self._bytes.readonly:
            return numpy.ndarray(shape, dtype, self._owner, start)
        array = numpy.empty(shape, dtype)
        if length:
            # Through bytes: not every dtype has a buffer format.
            array.reshape(-1).view(numpy.uint8)[:] = numpy.frombuffer(self.segment(index), numpy.uint8)
        return array

    def object_array(self, details: Any) -> Any:
        shape, values = details
        array = self._numpy().empty(len(values), object)
        for index, value in enumerate(values):
            array[index] = value
        return array.reshape(shape)

    def scalar(self, details: Any) -> Any:
        descr, data = details
        numpy = self._numpy()
        return numpy.frombuffer(data, _dtype_from(numpy, descr))[0]

    def tensor(self, details: Any) -> Any:
        index, name, shape = details
        torch = sys.modules.get("torch")
        if torch is None:
            return self._tensor_as_array(index, name, shape)
        dtype = getattr(torch, name)
        _, length = self._segments[index]
        self._check(length, dtype.itemsize, shape)
        if length == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        memory = self.segment(index)
        is_view = length >= VIEW_BYTES_MIN and not memory.readonly
        if memory.readonly:
            memory = memoryview(bytearray(memory))
        tensor = torch.frombuffer(memory, dtype=torch.uint8).view(dtype).reshape(shape)
        return tensor if is_view else tensor.clone()

    def _tensor_as_array(self, index: int, name: str, shape: list[int]) -> Any:
        from tensorlease.dtypes import numpy_dtype

        numpy = self._numpy()
        dtype = numpy_dtype(name)
        _, length = self._segments[index]
        self._check(length, dtype.itemsize, shape)
        array = numpy.empty(shape, dtype)
        if length:
            array.reshape(-1).view(numpy.uint8)[:] = numpy.frombuffer(self.segment(index), numpy.uint8)
        return array

    def _check(self, length: int, item_bytes: int, shape: list[int]) -> None:
        bytes_needed = item_bytes
        for dim in shape:
            if dim < 0:
                self._damaged(f"a shape of {shape}")
            bytes_needed *= dim
        if bytes_needed != length:
            self._damaged(f"{length} bytes for a shape of {shape}")

    def _numpy(self) -> Any:
        try:
            import numpy
        except ImportError:
            raise ConfigError(f"key {self._key!r} holds a numpy array; install numpy") from None
        return numpy


_READ: dict[int, Callable[[_Reader, Any], Any]] = {
    _TUPLE: lambda _, items: tuple(items),
    _BIG_INT: lambda _, data: int.from_bytes(data, "little", signed=True),
    _SET: lambda _, items: set(items),
    _FROZENSET: lambda _, items: frozenset(items),
    _ARRAY: _Reader.array,
    _OBJECT_ARRAY: _Reader.object_array,
    _SCALAR: _Reader.scalar,
    _TENSOR: _Reader.tensor,
    _COMPLEX: lambda _, parts: complex(*parts),
    _LONG_BYTES: lambda reader, details: bytes(reader.segment(details[0])),
    _LONG_TEXT: lambda reader, details: str(reader.segment(details[0]), "utf-8", "surrogatepass"),
}


def _descr_of(numpy: Any, dtype: Any) -> Any:
    """What makes the dtype again: a name of ml_dtypes, or what numpy's own file format writes."""
    if dtype.names is None and dtype.type.__module__ == "ml_dtypes":
        return {"ml_dtypes": dtype.name}
    return numpy.lib.format.dtype_to_descr(dtype)


def _dtype_from(numpy: Any, descr: Any) -> Any:
    if isinstance(descr, dict):
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, descr["ml_dtypes"]))
    dtype = numpy.lib.format.descr_to_dtype(descr)
    if dtype.hasobject:
        # Raw bytes as pointers to objects would crash the process.
        raise ValueError("a dtype with objects")
    return dtype


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
