"""A value that is no tensor as a tree and its segments; `codec` says what these are."""

import functools
import pickle
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import msgpack

from tensorlease import codec_format as form
from tensorlease import numpy_dtypes
from tensorlease._core import count_extensions, dtype_names
from tensorlease.codec_format import inside_out
from tensorlease.dtypes import imported
from tensorlease.errors import ConfigError, Error, with_article

#: Types that are packed without a look inside. Integers too large for msgpack are extension values that hold bytes.
_FLAT = {str, int, float, bool, type(None), bytes}
_DTYPES = frozenset(dtype_names())
_OPTIONS: dict[str, Any] = {"strict_types": True, "unicode_errors": "surrogatepass"}


class Writer:
    """Of one value. `name` says in errors which key it is of."""

    def __init__(self, name: str, allow_pickle: bool) -> None:
        self._name = name
        self._allow_pickle = allow_pickle
        self._extensions = 0
        #: (bytes, memory)
        self.segments: list[tuple[int, Any]] = []

    def tree(self, value: Any) -> bytes:
        if type(value) is bytes and len(value) >= form.SEGMENT_BYTES_MIN:
            value = self._long(form.LONG_BYTES, value)
        elif type(value) is str and len(value) >= form.SEGMENT_BYTES_MIN:
            value = self._long(form.LONG_TEXT, value.encode("utf-8", "surrogatepass"))
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
            if code == form.PICKLE:
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
        return self._extension(form.BIG_INT, self._pack(_SIMPLE[int][1](value), self._refuse))

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
                return form.OBJECT_ARRAY, [list(value.shape), list(value.ravel())]
            if plain or isinstance(value, numpy.generic):
                why = numpy_dtypes.refusal(value.dtype)
                if why is None and plain:
                    return self._array(value)
                if why is None:
                    return form.SCALAR, [numpy_dtypes.written(value.dtype), value.tobytes()]
                if not self._allow_pickle:
                    refused = f"an array whose dtype {value.dtype!s:.80} {why}"
                    raise ConfigError(f"{self._name} is, or holds, {refused}; or pass allow_pickle=True")
        if self._allow_pickle:
            try:
                return form.PICKLE, pickle.dumps(value, protocol=5)
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
        return form.TENSOR, [index, dtype, list(plain.shape)]

    def _array(self, value: Any) -> tuple[int, Any]:
        from tensorlease import numpy_values

        plain = numpy_values.bytes_of(value)
        descr = numpy_dtypes.written(value.dtype)
        return form.ARRAY, [self._segment(plain.nbytes, plain), descr, list(value.shape)]

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
    tuple: (form.TUPLE, list),
    # msgpack itself stores those of up to 64 bits.
    int: (form.BIG_INT, lambda value: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)),
    set: (form.SET, list),
    frozenset: (form.FROZENSET, list),
    complex: (form.COMPLEX, lambda value: [value.real, value.imag]),
}


def _type_name(value: Any) -> str:
    kind = type(value)
    return with_article(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
