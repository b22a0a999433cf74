"""numpy arrays over delivered memory, and as values, by numpy's C interface and by calls of Python."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_all_given_back
from tensorlease._core._tests import arrays_by_call

import tensorlease as tl
from tensorlease._core import Lease

SHAPES = [(), (3,), (2, 3, 4), (1000, 17), (0, 3)]
DTYPES = [np.int8, np.float16, np.uint32, np.float64, np.complex64, np.complex128]


@pytest.fixture(params=["C interface", "calls"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    arrays_by_call(request.param == "calls")
    yield request.param
    arrays_by_call(False)


@pytest.mark.parametrize("delivery", ["leased", "copied", "register-per-call"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_an_array_is_what_was_stored_and_owns_its_memory(store: tl.Store, dtype: type, delivery: str) -> None:
    values = [np.arange(np.prod(shape), dtype=np.float64).reshape(shape).astype(dtype) for shape in SHAPES]
    keys = [str(at) for at in range(len(values))]
    store.put(keys, values)
    for value, array in zip(
        values, store.get(keys, SHAPES, [np.dtype(dtype)] * len(keys), delivery=delivery), strict=True
    ):
        assert type(array) is np.ndarray
        assert (array.shape, array.dtype) == (value.shape, value.dtype)
        assert np.array_equal(array, value)
        assert array.flags.writeable
        assert array.flags.c_contiguous
        if array.size:
            assert array.flags.aligned == (array.ctypes.data % np.dtype(dtype).alignment == 0)
            assert type(array.base) is Lease
            array[...] = 1
    assert np.array_equal(store.get(keys[:1], SHAPES[:1], [np.dtype(dtype)])[0], values[0]), (
        "a write is the caller's own"
    )


def test_the_memory_goes_back_with_the_last_array_over_it(store: tl.Store) -> None:
    store.put(["a"], [np.arange(1000, dtype=np.float32).reshape(10, 100)])
    (array,) = store.get(["a"], [(10, 100)], [np.dtype(np.float32)], delivery="leased")
    part = array[3:5, 7:].T
    del array
    gc.collect()
    assert store.stats()["leased_bytes"] > 0
    assert part[0].tolist() == [307.0, 407.0]
    del part
    assert_all_given_back(store)


def arrays_of_all_kinds(folder: Path) -> dict[str, np.ndarray]:
    """What an array can be, beside its elements in C order in this machine's byte order."""
    plain = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    mapped = np.memmap(folder / "mapped", dtype=np.float32, mode="w+", shape=(2, 3))
    mapped[...] = plain[0, :2, :3]
    frozen = plain.copy()
    frozen.flags.writeable = False
    return {
        "plain": plain,
        "scalar": np.array(7.0, np.float32),
        "no elements": np.zeros((0, 3), np.float32),
        "one element of many": plain[1:2, 2:3, 3:4],
        "strided": plain[:, ::2, 1:],
        "transposed": plain.T,
        "Fortran": np.asfortranarray(plain[0]),
        "backwards": plain[0, 0, ::-1],
        "repeated": np.broadcast_to(plain[0, 0], (3, 4)),
        "swapped": plain.astype(plain.dtype.newbyteorder("S")),
        "frozen": frozen,
        "mapped": mapped,
        "unaligned": np.frombuffer(b"\x00" + plain.tobytes(), np.uint8)[1:].view(np.float32),
        "bool": plain > 11,
        "text": np.array(["a", "bc"]),
        "record": np.zeros(2, [("a", np.int32), ("b", np.float64)]),
        "bfloat16": plain.astype(ml_dtypes.bfloat16),
    }


def test_arrays_of_all_kinds_come_back_equal_also_when_all_dtypes_were_seen(store: tl.Store, tmp_path: Path) -> None:
    arrays = arrays_of_all_kinds(tmp_path)
    for _ in range(2):
        metas = store.put(list(arrays), list(arrays.values()))
        packed = [name for name, meta in zip(arrays, metas, strict=True) if meta]
        assert packed == ["bool", "text", "record"], "all others are tensors"
        for name, value in arrays.items():
            native = value.dtype.newbyteorder("=")
            if name in packed:
                meta = metas[list(arrays).index(name)]
                (got,) = store.get([name], [None], [None], custom_backend_meta=[meta])
            else:
                (got,) = store.get([name], [value.shape], [native])
            assert (got.shape, got.dtype) == (value.shape, native), name
            assert np.array_equal(got, value), name
