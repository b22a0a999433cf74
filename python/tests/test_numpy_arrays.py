"""numpy arrays over delivered memory, made by numpy's C interface and by calls of Python."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import assert_all_given_back

import tensorlease as tl
from tensorlease._core import Lease, arrays_by_call

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
