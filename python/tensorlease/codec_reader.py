"""A value that is no tensor from the bytes of its object; `codec` says what these are."""

import math
import pickle
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import msgpack

from tensorlease import codec_format as form
from tensorlease import numpy_dtypes
from tensorlease._core import count_extensions, dtype_names
from tensorlease.codec_format import inside_out
from tensorlease.dtypes import numpy_dtype
from tensorlease.errors import CodecError, ConfigError

_DTYPES = frozenset(dtype_names())


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
        if total < form.HEAD.size:
            self._damaged("too short")
        magic, version, count, tree_bytes = form.HEAD.unpack_from(self._bytes)
        if magic != form.MAGIC:
            self._damaged("it was not written by put()")
        if version != form.VERSION:
            other = f"written in version {version} of the format"
            self._damaged(f"{other}, and this release reads {form.VERSION}; upgrade tensorlease")
        tree_start = form.HEAD.size + form.LENGTH.size * count
        end = tree_start + tree_bytes
        if end > total:
            self._damaged("cut short")
        for index in range(count):
            (length,) = form.LENGTH.unpack_from(self._bytes, form.HEAD.size + form.LENGTH.size * index)
            start = end + (-end % form.ALIGN_BYTES if length else 0)
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
            if code == form.PICKLE:
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
        dtype = numpy_dtypes.read(descr)
        start, length = self._segments[index]
        self._check(length, dtype.itemsize, shape)
        if length >= form.VIEW_BYTES_MIN and not self._bytes.readonly:
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
        return self._numpy().frombuffer(data, numpy_dtypes.read(descr))[0]

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
        is_view = length >= form.VIEW_BYTES_MIN and not memory.readonly
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
    form.TUPLE: lambda _, items: tuple(items),
    form.BIG_INT: lambda _, data: int.from_bytes(data, "little", signed=True),
    form.SET: lambda _, items: set(items),
    form.FROZENSET: lambda _, items: frozenset(items),
    form.ARRAY: Reader.array,
    form.OBJECT_ARRAY: Reader.object_array,
    form.SCALAR: Reader.scalar,
    form.TENSOR: Reader.tensor,
    form.COMPLEX: lambda _, parts: complex(*parts),
    form.LONG_BYTES: lambda reader, details: bytes(reader.segment(details[0])),
    form.LONG_TEXT: lambda reader, details: str(reader.segment(details[0]), "utf-8", "surrogatepass"),
}


def _unpack(packed: bytes, extension: Callable[[int, bytes], Any]) -> Any:
    return msgpack.unpackb(packed, ext_hook=extension, strict_map_key=False, unicode_errors="surrogatepass")
