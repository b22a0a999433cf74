"""What was put comes back, whatever its dtype, shape and delivery."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from tensorlease._core._tests import import_as_capsules
from tensors import DTYPES, SHAPES, assert_same, filled

import tensorlease as tl

DELIVERIES = ["auto", "leased", "copied", "register-per-call"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape_comes_back(store: tl.Store, dtype: torch.dtype) -> None:
    values = [filled(shape, dtype) for shape in SHAPES]
    keys = [f"{dtype}/{shape}" for shape in SHAPES]
    assert store.put(keys, values) == [None] * len(keys)
    for delivery in DELIVERIES:
        for found, expected in zip(
            store.get(keys, SHAPES, [dtype] * len(keys), delivery=delivery), values, strict=True
        ):
            assert_same(found, expected)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2], ids=str
)
def test_tensors_come_back_the_same_through_capsules(store: tl.Store, dtype: torch.dtype) -> None:
    values = [filled(shape, dtype) for shape in SHAPES]
    keys = [str(shape) for shape in SHAPES]
    store.put(keys, values)
    import_as_capsules(True)
    try:
        out = store.get(keys, SHAPES, dtype, delivery="leased")
    finally:
        import_as_capsules(False)
    for found, expected in zip(out, values, strict=True):
        assert_same(found, expected)
    assert store.stats()["leased_bytes"] > 0


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_large_and_small_ragged_tensors_come_back_in_order(store: tl.Store, delivery: str) -> None:
    lengths = [0, 1, 5000, 17, 300_000, 4096, 0, 70_001]
    values = [filled((length, 2), torch.int16) for length in lengths]
    keys = [f"row/{index}" for index in range(len(lengths))]
    store.put(keys, values)
    out = store.get(keys, [value.shape for value in values], torch.int16, delivery=delivery)
    for found, expected in zip(out, values, strict=True):
        assert_same(found, expected)


def test_an_engine_that_describes_needs_keys_alone(store: tl.Store) -> None:
    values = [filled((3, 2), torch.bfloat16), {"a": (1, 2)}, filled((), torch.complex64), torch.zeros(0, 4)]
    store.put(list("abcd"), values)
    tensor, packed, scalar, empty = store.get(list("abcd"))
    assert_same(tensor, values[0])
    assert packed == values[1]
    assert_same(scalar, values[2])
    assert_same(empty, values[3])


def test_shapes_may_be_tuples_sizes_lists_and_ints(store: tl.Store) -> None:
    values = [filled((3,)), filled((2, 2)), filled((4,)), filled((1, 5))]
    store.put(list("abcd"), values)
    shapes = [(3,), torch.Size([2, 2]), 4, [1, 5]]
    for found, expected in zip(store.get(list("abcd"), shapes, "float32"), values, strict=True):
        assert_same(found, expected)


def test_a_list_used_as_shape_twice_is_read_twice(store: tl.Store) -> None:
    store.put(["a", "b"], [filled((2, 3)), filled((3, 2))])

    shape = [2, 3]
    out = store.get(["a"], [shape], "float32")
    shape.reverse()
    assert store.get(["b"], [shape], "float32")[0].shape == (3, 2)
    assert out[0].shape == (2, 3)


@pytest.mark.parametrize("name", ["float32", "torch.float32"])
def test_dtypes_may_be_names(store: tl.Store, name: str) -> None:
    value = filled((4,))
    store.put(["a"], [value])
    assert_same(store.get(["a"], [(4,)], [name])[0], value)


def test_a_numpy_dtype_brings_a_numpy_array(store: tl.Store) -> None:
    value = torch.arange(6, dtype=torch.int64).reshape(2, 3)
    store.put(["a", "b"], [value, value])
    for dtype in [np.int64, np.dtype("int64"), np.dtypes.Int64DType()]:
        array, tensor = store.get(["a", "b"], [(2, 3)] * 2, [dtype, torch.int64])
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.int64
        assert array.flags.writeable
        np.testing.assert_array_equal(array, value.numpy())
        assert_same(tensor, value)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_dtypes_of_ml_dtypes_go_in_and_out(store: tl.Store, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    tensor = filled((3, 4), getattr(torch, name))
    array = np.frombuffer(tensor.view(torch.uint8).numpy().tobytes(), dtype).reshape(3, 4)
    store.put(["a", "b"], [tensor, array])
    for found in store.get(["a", "b"], [(3, 4)] * 2, [dtype, getattr(ml_dtypes, name)]):
        assert found.dtype == dtype
        assert found.tobytes() == array.tobytes()
    assert_same(store.get(["b"], [(3, 4)], name)[0], tensor)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "int32", "uint64", "float16", "float64", "complex64", "complex128"]
)
def test_numeric_arrays_are_stored_as_tensors(store: tl.Store, dtype: str) -> None:
    arrays = [np.arange(math.prod(shape)).reshape(shape).astype(dtype) for shape in [(), (0,), (4,), (2, 3)]]
    keys = [str(array.shape) for array in arrays]
    assert store.put(keys, arrays) == [None] * len(keys)
    shapes = [array.shape for array in arrays]
    for found, expected in zip(store.get(keys, shapes, np.dtype(dtype)), arrays, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.shape == expected.shape
    for found, expected in zip(store.get(keys), arrays, strict=True):
        assert_same(found, torch.from_numpy(expected.copy()))


def test_arrays_in_other_orders_are_stored_by_value(store: tl.Store) -> None:
    plain = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = [
        np.asfortranarray(plain),
        plain[:, ::2],
        plain[::-1],
        plain.astype(">f4"),
        np.broadcast_to(np.float32(3), (2, 2)),
    ]
    keys = [str(index) for index in range(len(arrays))]
    store.put(keys, arrays)
    for found, expected in zip(store.get(keys), arrays, strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)


def test_tensors_that_need_work_are_stored_by_value(store: tl.Store) -> None:
    plain = torch.arange(12.0).reshape(3, 4)
    complex_ = torch.view_as_complex(torch.randn(3, 2))
    values = [
        plain.t(),
        plain[:, ::2],
        plain.expand(2, 3, 4),
        plain.clone().requires_grad_() * 2,
        torch.nn.Parameter(plain.clone()),
        complex_.conj(),
        complex_.conj().imag,
        plain.as_subclass(type("Mine", (torch.Tensor,), {})),
    ]
    keys = [str(index) for index in range(len(values))]
    store.put(keys, values)
    for found, value in zip(store.get(keys), values, strict=True):
        expected = value.detach().as_subclass(torch.Tensor)
        assert torch.equal(found, expected)
        assert not found.requires_grad


def test_a_key_put_again_holds_the_new_value(store: tl.Store) -> None:
    store.put(["a"], [filled((3,))])
    value = {"now": "another kind"}
    meta = store.put(["a"], [value])
    assert store.get(["a"], None, [None], meta) == [value]


def test_no_keys_are_no_values(store: tl.Store) -> None:
    assert store.put([], []) == []
    assert store.get([]) == []
    assert store.get([], [], []) == []
    assert store.contains([]) == []
    assert store.remove([]) == 0
    store.wait([], timeout=1)
    store.get_into([], [])


def test_keys_may_come_from_any_iterable(store: tl.Store) -> None:
    value = filled((2,))
    store.put((key for key in "ab"), iter([value, value]))
    assert store.contains({"a": 1}.keys()) == [True]
    assert store.contains(("a", "c")) == [True, False]
    assert store.remove({"a"}) == 1
