"""Values that are not tensors as bytes, without pickle.

An object is a fixed head, the lengths of its segments, a msgpack tree, then the segments, each aligned to 64 bytes::

    b"TLV" + version byte | u32 number of segments | u64 bytes of the tree | u64 bytes of each segment | tree | segments

The tree holds everything small. Arrays, tensors and long bytes are segments: they go to the engine from where they lie, and are never
put together in Python. Numbers are little-endian.

On the way back, segments of 1 MiB and more are views into the memory that was read (writable, and each keeps that memory alive), smaller ones
are copies. bytearray and memoryview come back as bytes, numpy arrays as numpy arrays, torch tensors as torch tensors where torch is installed
(it is imported for them) and as numpy arrays elsewhere: as a `get` without dtypes delivers tensors.

Containers may lie inside each other up to `LEVELS_MAX` levels; an array of objects counts for ten. What is deeper is refused when it is put and
when it is read. Tuples, sets and arrays of objects are extension values whose content is a tree of its own; neither way enters them by recursion.
"""

import functools
import math
import pickle
import struct
import sys
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import msgpack

from tensorlease._core import count_extensions, dtype_names, levels_max
from tensorlease.dtypes import imported, numpy_dtype
from tensorlease.errors import CodecError, ConfigError, Error, OutOfMemory, OutOfStack, is_out_of_memory, with_article

MAGIC = b"TLV"
VERSION = 1
ALIGN_BYTES = 64
#: Long text and bytes get a segment of their own.
SEGMENT_BYTES_MIN = 4096
#: From here on a decoded array is a view.
VIEW_BYTES_MIN = 1 << 20
#: Containers inside each other.
LEVELS_MAX = levels_max()

HEAD = struct.Struct("<3sBIQ")
LENGTH = struct.Struct("<Q")

# Codes of msgpack's extension types. They are part of the format: never change or reuse one. A new one must be known to `tree.rs`.
TUPLE = 1
BIG_INT = 2
SET = 3
FROZENSET = 4
ARRAY = 5
OBJECT_ARRAY = 6
SCALAR = 7
TENSOR = 8
PICKLE = 9
COMPLEX = 10
LONG_BYTES = 11
LONG_TEXT = 12

#: Types that are packed without a look inside. Integers too large for msgpack are extension values that hold bytes.
_FLAT = {str, int, float, bool, type(None), bytes}
_DTYPES = frozenset(dtype_names())
_OPTIONS: dict[str, Any] = {"strict_types": True, "unicode_errors": "surrogatepass"}


def encode(value: Any, name: str, allow_pickle: bool) -> list[Any]:
    """`value` as parts (bytes, plain arrays, plain tensors) to store one after the other; `name` says in errors which key it is of."""
    writer = Writer(name, allow_pickle)
    try:
        tree = writer.tree(value)
    except Error:
        raise
    except RecursionError as error:
        raise OutOfStack(f"{name} can't be stored: {error}, called from so deep in the program") from error
    # msgpack, and objects that only look like containers, can fail in many ways.
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"{name} can't be stored: this process has no memory left to encode it") from error
        raise ConfigError(f"{name} can't be stored: {_said(error)}") from error
    lengths = [length for length, _ in writer.segments]
    head = HEAD.pack(MAGIC, VERSION, len(lengths), len(tree)) + b"".join(map(LENGTH.pack, lengths)) + tree
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
    reader = Reader(buffer, key, allow_pickle)
    try:
        return reader.value()
    except Error:
        raise
    except RecursionError as error:
        raise OutOfStack(f"key {key!r}: {error}, called from so deep in the program") from error
    # Bytes from elsewhere can go wrong in every way that msgpack, numpy and struct know.
    except Exception as error:
        if is_out_of_memory(error):
            full = f"key {key!r}: this process has no memory left to make the value"
            raise OutOfMemory(f"{full}; the stored bytes are as they were") from error
        raise CodecError(f"key {key!r}: the stored bytes are damaged ({_said(error)})") from error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def inside_out(work: Callable[[Any], Generator[Any, Any, Any]], outermost: Any) -> Any:
    """The result of `work`, which yields what it needs done the same way first: levels take their place in a list and not on the stack."""
    open_works = [work(outermost)]
    result = None
    while open_works:
        try:
            inner = open_works[-1].send(result)
        except StopIteration as done:
            open_works.pop()
            result = done.value
            continue
        if len(open_works) > LEVELS_MAX:
            raise ValueError(f"more than {LEVELS_MAX} levels of containers inside each other")
        open_works.append(work(inner))
        result = None
    return result


class Writer:
    """Of one value. `name` says in errors which key it is of."""

    def __init__(self, name: str, allow_pickle: bool) -> None:
        self._name = name
        self._allow_pickle = allow_pickle
        self._extensions = 0
        #: (bytes, memory)
        self.segments: list[tuple[int, Any]] = []

    def tree(self, value: Any) -> bytes:
        if type(value) is bytes and len(value) >= SEGMENT_BYTES_MIN:
            value = self._long(LONG_BYTES, value)
        elif type(value) is str and len(value) >= SEGMENT_BYTES_MIN:
            value = self._long(LONG_TEXT, value.encode("utf-8", "surrogatepass"))
        packed: bytes = inside_out(self._packed, value)
        self._check(packed)
        return packed

    def _check(self, packed: bytes) -> None:
        """Refuses what could not be read, and extension values that are not ours: read back, they would be taken for ours."""
        try:
            found = count_extensions(packed)
        except ValueError as error:
            found, why = -1, str(error)
            if "levels" in why:
                raise ConfigError(f"{self._name} can't be stored: {why} (an array of objects counts for ten)") from None
        if found != self._extensions:
            raise ConfigError(
                f"{self._name} holds a msgpack.ExtType or msgpack.Timestamp, which would be read as something else; "
                "put what it stands for, or a tuple of its parts"
            )

    @functools.cached_property
    def _flat(self) -> Any:
        """One packer for all small contents: it has a large buffer, and making it costs more than using it."""
        return msgpack.Packer(default=self._big_int, **_OPTIONS)

    def _packed(self, value: Any) -> Generator[Any, bytes, bytes]:
        """`value` by msgpack. What has levels of its own is yielded, and comes back packed; msgpack then goes over `value` once more."""
        made: list[tuple[Any, Any]] = []
        inside: list[tuple[int, int, Any]] = []

        def unknown(item: Any) -> Any:
            code, content = self._opened(item)
            if code == PICKLE:
                extension = self._extension(code, content)
            elif _is_flat(content):
                extension = self._extension(code, self._flat.pack(content))
            else:
                inside.append((len(made), code, content))
                extension = None
            made.append((item, extension))
            return extension

        packed = self._pack(value, unknown)
        if not inside:
            return packed
        for index, code, content in inside:
            made[index] = (made[index][0], self._extension(code, (yield content)))
        again = iter(made)

        def known(item: Any) -> Any:
            before, extension = next(again, (None, None))
            if before is not item:
                raise ConfigError(f"{self._name} was changed while it was put; put it when it is complete")
            return extension

        return self._pack(value, known)

    def _pack(self, value: Any, default: Callable[[Any], Any]) -> bytes:
        try:
            packed: bytes = msgpack.packb(value, default=default, **_OPTIONS)
            return packed
        except Error:
            raise
        except (ValueError, OverflowError) as error:
            what = f"{self._name} can't be stored: {error}"
            raise ConfigError(f"{what} (too deep, too large, or containing itself)") from error
        except BufferError as error:
            raise ConfigError(f"{self._name} holds a memoryview with gaps; put bytes(view)") from error

    def _extension(self, code: int, packed: bytes) -> Any:
        self._extensions += 1
        return msgpack.ExtType(code, packed)

    def _big_int(self, value: int) -> Any:
        return self._extension(BIG_INT, self._pack(_SIMPLE[int][1](value), self._refuse))

    def _opened(self, value: Any) -> tuple[int, Any]:
        """What msgpack does not know by itself, as an extension type's code and content."""
        simple = _SIMPLE.get(type(value))
        if simple is not None:
            code, convert = simple
            return code, convert(value)
        torch = imported("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(value)
        numpy = imported("numpy")
        if numpy is not None:
            # The class of arrays that lie in the host's store, where there has been one.
            view = getattr(imported("tensorlease.numpy_views"), "View", None)
            plain = type(value) in (numpy.ndarray, numpy.memmap, view)
            if plain and value.dtype == numpy.dtype(object):
                return OBJECT_ARRAY, [list(value.shape), list(value.ravel())]
            if plain or isinstance(value, numpy.generic):
                why = _refusal(value.dtype)
                if why is None and plain:
                    return self._array(value)
                if why is None:
                    return SCALAR, [_written(value.dtype), value.tobytes()]
                if not self._allow_pickle:
                    refused = f"an array whose dtype {value.dtype!s:.80} {why}"
                    raise ConfigError(f"{self._name} is, or holds, {refused}; or pass allow_pickle=True")
        if self._allow_pickle:
            try:
                return PICKLE, pickle.dumps(value, protocol=5)
            except MemoryError:
                raise
            # Whatever an object's __reduce__ raises.
            except Exception as error:
                raise ConfigError(f"{self._name} holds {_type_name(value)} that can't be pickled: {error}") from error
        self._refuse(value)

    def _refuse(self, value: Any) -> NoReturn:
        numpy = imported("numpy")
        instead = ""
        if numpy is not None and isinstance(value, numpy.ndarray):
            instead = " (numpy.asarray(value) is plain; a masked array loses its mask by it)"
        raise ConfigError(
            f"{self._name} holds {_type_name(value)}, which is stored only with allow_pickle=True (reading it back then runs code "
            f"from whoever wrote it); without it: str, bytes, numbers, None, list, tuple, dict, set, numpy arrays and torch tensors{instead}"
        )

    def _tensor(self, value: Any) -> tuple[int, Any]:
        from tensorlease import torch_values

        plain = torch_values.prepare(value, self._name)
        dtype = str(plain.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            what = f"{self._name} is a tensor of dtype {dtype}"
            raise ConfigError(f"{what}, which is not stored; put tensor.view(torch.uint8)")
        index = self._segment(plain.numel() * plain.element_size(), plain)
        return TENSOR, [index, dtype, list(plain.shape)]

    def _array(self, value: Any) -> tuple[int, Any]:
        from tensorlease import numpy_values

        plain = numpy_values.bytes_of(value)
        descr = _written(value.dtype)
        return ARRAY, [self._segment(plain.nbytes, plain), descr, list(value.shape)]

    def _long(self, code: int, data: bytes) -> Any:
        return self._extension(code, self._pack([self._segment(len(data), data)], self._refuse))

    def _segment(self, length: int, memory: Any) -> int:
        self.segments.append((length, memory))
        return len(self.segments) - 1


def _is_flat(content: Any) -> bool:
    """Has it no levels but its own, and those of flat lists in it?"""
    if type(content) is bytes or _FLAT.issuperset(map(type, content)):
        return True
    return all(type(part) in _FLAT or (type(part) is list and _FLAT.issuperset(map(type, part))) for part in content)


#: Types of Python: how each becomes something that msgpack knows.
_SIMPLE: dict[type, tuple[int, Callable[[Any], Any]]] = {
    tuple: (TUPLE, list),
    # msgpack itself stores those of up to 64 bits.
    int: (BIG_INT, lambda value: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)),
    set: (SET, list),
    frozenset: (FROZENSET, list),
    complex: (COMPLEX, lambda value: [value.real, value.imag]),
}


def _type_name(value: Any) -> str:
    kind = type(value)
    return with_article(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))


class Reader:
    """Of one object. `key` is named in errors."""

    def __init__(self, buffer: Any, key: str, allow_pickle: bool) -> None:
        self._owner = buffer
        self._bytes = memoryview(buffer)
        self._key = key
        self._allow_pickle = allow_pickle
        #: (offset, bytes)
        self._segments: list[tuple[int, int]] = []

    def value(self) -> Any:
        total = len(self._bytes)
        if total < HEAD.size:
            self._damaged("too short")
        magic, version, count, tree_bytes = HEAD.unpack_from(self._bytes)
        if magic != MAGIC:
            self._damaged("it was not written by put()")
        if version != VERSION:
            other = f"written in version {version} of the format"
            self._damaged(f"{other}, and this release reads {VERSION}; upgrade tensorlease")
        tree_start = HEAD.size + LENGTH.size * count
        end = tree_start + tree_bytes
        if end > total:
            self._damaged("cut short")
        for index in range(count):
            (length,) = LENGTH.unpack_from(self._bytes, HEAD.size + LENGTH.size * index)
            start = end + (-end % ALIGN_BYTES if length else 0)
            end = start + length
            self._segments.append((start, length))
        if end != total:
            self._damaged(f"{total} bytes where {end} are announced")
        tree = bytes(self._bytes[tree_start : tree_start + tree_bytes])
        try:
            count_extensions(tree)
        except ValueError as error:
            self._damaged(str(error))
        return inside_out(self._unpacked, tree)

    def _damaged(self, why: str) -> NoReturn:
        raise CodecError(f"key {self._key!r}: the stored bytes are no value: {why}")

    def _unpacked(self, packed: bytes) -> Generator[bytes, Any, Any]:
        """The value of a tree. The content of an extension value that holds others is yielded, and comes back as a value; msgpack then goes over
        the tree once more."""
        made: list[Any] = []
        inside: list[tuple[int, int, bytes]] = []

        def known(code: int, data: bytes) -> Any:
            if code == PICKLE:
                value = self._unpickled(data)
            else:
                if code not in _READ:
                    self._damaged(f"unknown type {code}; upgrade tensorlease")
                deeper: list[int] = []
                content = _unpack(data, lambda code, _: deeper.append(code))
                if deeper:
                    inside.append((len(made), code, data))
                    value = None
                else:
                    value = _READ[code](self, content)
            made.append(value)
            return value

        value = _unpack(packed, known)
        if not inside:
            return value
        for index, code, data in inside:
            made[index] = _READ[code](self, (yield data))
        again = iter(made)
        return _unpack(packed, lambda *_: next(again))

    def _unpickled(self, data: bytes) -> Any:
        if not self._allow_pickle:
            raise ConfigError(
                f"key {self._key!r} holds a pickled object, and unpickling runs code from whoever wrote it; "
                "pass allow_pickle=True if you trust them"
            )
        try:
            return pickle.loads(data)
        except (MemoryError, RecursionError):
            raise
        # A class that this process lacks, or whatever its own code raises.
        except Exception as error:
            raise CodecError(f"key {self._key!r} holds a pickled object that can't be made here: {error!r}") from error

    def segment(self, index: int) -> memoryview:
        start, length = self._segments[index]
        return self._bytes[start : start + length]

    def array(self, details: Any) -> Any:
        index, descr, shape = details
        numpy = self._numpy()
        dtype = _read(descr)
        start, length = self._segments[index]
        self._check(length, dtype.itemsize, shape)
        if length >= VIEW_BYTES_MIN and not self._bytes.readonly:
            return numpy.ndarray(shape, dtype, self._owner, start)
        return self._copied(index, dtype, shape)

    def _copied(self, index: int, dtype: Any, shape: list[int]) -> Any:
        numpy = self._numpy()
        array = numpy.empty(shape, dtype)
        if array.nbytes:
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
        return self._numpy().frombuffer(data, _read(descr))[0]

    def tensor(self, details: Any) -> Any:
        index, name, shape = details
        torch = self._torch()
        _, length = self._segments[index]
        if torch is None:
            self._numpy()
            as_numpy = numpy_dtype(name)
            self._check(length, as_numpy.itemsize, shape)
            return self._copied(index, as_numpy, shape)
        if name not in _DTYPES:
            self._damaged(f"a tensor of an unknown dtype {name!r:.40}; upgrade tensorlease")
        dtype = getattr(torch, name, None)
        if dtype is None:
            what = f"key {self._key!r} holds a tensor of {name}"
            raise ConfigError(f"{what}, which this torch lacks; install a newer one")
        self._check(length, dtype.itemsize, shape)
        if length == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        memory = self.segment(index)
        is_view = length >= VIEW_BYTES_MIN and not memory.readonly
        if memory.readonly:
            memory = memoryview(bytearray(memory))
        tensor = torch.frombuffer(memory, dtype=torch.uint8).view(dtype).reshape(shape)
        return tensor if is_view else tensor.clone()

    def _check(self, length: int, item_bytes: int, shape: list[int]) -> None:
        if any(dim < 0 for dim in shape):
            self._damaged(f"a shape of {shape}")
        if item_bytes * math.prod(shape) != length:
            self._damaged(f"{length} bytes for a shape of {shape}")

    def _torch(self) -> Any:
        """torch where it is installed, whoever has imported it before: what comes back is the same in every process of a machine."""
        try:
            import torch
        except ImportError:
            return None
        except Exception as error:
            raise ConfigError(f"key {self._key!r} holds a torch tensor, and importing torch fails ({error})") from error
        return torch

    def _numpy(self) -> Any:
        try:
            import numpy
        except ImportError:
            raise ConfigError(f"key {self._key!r} holds a numpy array; install numpy") from None
        return numpy


_READ: dict[int, Callable[[Reader, Any], Any]] = {
    TUPLE: lambda _, items: tuple(items),
    BIG_INT: lambda _, data: int.from_bytes(data, "little", signed=True),
    SET: lambda _, items: set(items),
    FROZENSET: lambda _, items: frozenset(items),
    ARRAY: Reader.array,
    OBJECT_ARRAY: Reader.object_array,
    SCALAR: Reader.scalar,
    TENSOR: Reader.tensor,
    COMPLEX: lambda _, parts: complex(*parts),
    LONG_BYTES: lambda reader, details: bytes(reader.segment(details[0])),
    LONG_TEXT: lambda reader, details: str(reader.segment(details[0]), "utf-8", "surrogatepass"),
}


def _unpack(packed: bytes, extension: Callable[[int, bytes], Any]) -> Any:
    return msgpack.unpackb(packed, ext_hook=extension, strict_map_key=False, unicode_errors="surrogatepass")


#: Of fields that can't be stored together.
_APART = "put each field under a name of its own"


def _refusal(dtype: Any) -> str | None:
    """Why arrays of this dtype can't be stored by value, and what to put instead. None: they can."""
    if dtype.hasobject:
        if dtype.names is not None:
            return f"has fields of Python objects; {_APART}, as a dict of arrays"
        return "keeps its elements elsewhere; put array.astype('U') for text, or array.tolist()"
    if dtype.names is None:
        return None
    try:
        same = bool(_read(_written(dtype)) == dtype)
    except ValueError:
        return f"has fields that overlap or lie out of order; {_APART}, as a dict of arrays"
    # Those of ml_dtypes would come back as raw bytes.
    return None if same else f"has fields of types that numpy can't write down; {_APART}"


def _written(dtype: Any) -> Any:
    """What makes the dtype again: a name of ml_dtypes, or what numpy's own file format writes. A ValueError where that can't."""
    if dtype.names is None and dtype.type.__module__ == "ml_dtypes":
        return {"ml_dtypes": dtype.name}
    return sys.modules["numpy"].lib.format.dtype_to_descr(dtype)


def _read(descr: Any) -> Any:
    """The dtype of what `_written` returned. numpy must be imported."""
    numpy = sys.modules["numpy"]
    if isinstance(descr, dict):
        name = descr["ml_dtypes"]
        try:
            import ml_dtypes
        except ImportError:
            raise ConfigError(f"numpy alone has no dtype {name}; install ml_dtypes") from None
        return numpy.dtype(getattr(ml_dtypes, name))
    dtype = numpy.lib.format.descr_to_dtype(descr)
    if dtype.hasobject:
        # Raw bytes as pointers to objects would crash the process.
        raise ValueError("a dtype with objects")
    return dtype
