"""Whole columns in one block: stacked, jagged, and into memory of the caller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensors import DTYPES, assert_same, filled

import tensorlease as tl

DELIVERIES = ["auto", "leased", "copied", "register-per-call"]


def put_rows(
    store: tl.Store, lengths: list[int], name: str = "row", dtype: torch.dtype = torch.float32
) -> tuple[list[str], list[Any]]:
    keys = [f"{name}/{index}" for index in range(len(lengths))]
    rows = [filled((length, 3), dtype) for length in lengths]
    store.put(keys, rows)
    return keys, rows


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("shape", [(), (3,), (64, 129), (0,)], ids=str)
def test_a_batch_is_the_stack_of_its_rows(store: tl.Store, shape: tuple[int, ...], delivery: str) -> None:
    keys = [str(index) for index in range(37)]
    rows = [filled(shape, torch.int16) for _ in keys]
    store.put(keys, rows)
    batch = store.get_batch(keys, shape, torch.int16, delivery=delivery)
    assert_same(batch, torch.stack(rows))
    assert batch.untyped_storage().nbytes() == batch.numel() * 2
    batch.zero_()
    assert_same(store.get_batch(keys, shape, torch.int16), torch.stack(rows))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches_of_every_dtype(store: tl.Store, dtype: torch.dtype) -> None:
    rows = [filled((2, 5), dtype) for _ in range(3)]
    store.put(list("abc"), rows)
    batch = store.get_batch(list("abc"), (2, 5), dtype)
    assert batch.shape == (3, 2, 5)
    for found, expected in zip(batch.view(torch.uint8), rows, strict=True):
        assert torch.equal(found, expected.view(torch.uint8))


def test_a_batch_keeps_one_block_until_its_last_row_goes(store: tl.Store) -> None:
    keys, rows = put_rows(store, [1000] * 20)
    batch = store.get_batch(keys, (1000, 3), torch.float32, delivery="leased")
    row = batch[7]
    del batch
    assert store.stats()["leased_bytes"] >= 20 * 12_000
    assert_same(row, rows[7])
    del row
    assert store.stats()["leased_bytes"] == 0


def test_an_empty_batch(store: tl.Store) -> None:
    assert_same(store.get_batch([], (3,), torch.float32), torch.empty(0, 3))
    jagged = store.get_batch([], [], torch.float32)
    assert jagged.is_nested
    assert jagged.size(0) == 0


def test_a_batch_of_a_key_twice_holds_it_twice(store: tl.Store) -> None:
    value = filled((4,))
    store.put(["a"], [value])
    assert_same(store.get_batch(["a", "a"], (4,), torch.float32), torch.stack([value, value]))


def test_a_numpy_dtype_makes_the_batch_an_array(store: tl.Store) -> None:
    keys, rows = put_rows(store, [5, 5])
    batch = store.get_batch(keys, (5, 3), np.float32)
    assert isinstance(batch, np.ndarray)
    np.testing.assert_array_equal(batch, torch.stack(rows).numpy())


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("lengths", [[3, 0, 5000, 1], [4, 4, 4], [0, 0], [7]], ids=str)
def test_ragged_rows_make_one_jagged_tensor(store: tl.Store, lengths: list[int], delivery: str) -> None:
    keys, rows = put_rows(store, lengths)
    batch = store.get_batch(keys, [row.shape for row in rows], torch.float32, delivery=delivery)
    assert batch.is_nested
    assert batch.layout is torch.jagged
    assert batch.size(0) == len(lengths)
    assert_same(batch.values(), torch.cat(rows))
    assert batch.offsets().tolist() == [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    for found, expected in zip(batch.unbind(), rows, strict=True):
        assert_same(found, expected)


def test_one_dimensional_rows_may_be_given_by_their_lengths(store: tl.Store) -> None:
    rows = [filled((length,), torch.int64) for length in [2, 5, 1]]
    store.put(list("abc"), rows)
    batch = store.get_batch(list("abc"), [2, 5, 1], torch.int64)
    assert_same(batch.values(), torch.cat(rows))


def test_padding_a_jagged_batch_pads_to_its_longest_row(store: tl.Store) -> None:
    keys, rows = put_rows(store, [3, 1, 2])
    batch = store.get_batch(keys, [row.shape for row in rows], torch.float32)
    assert batch._get_max_seqlen() == 3
    assert batch._get_min_seqlen() == 1
    assert batch.to_padded_tensor(0.0).shape == (3, 3, 3)


def test_offsets_do_not_keep_the_batch_and_the_values_do(store: tl.Store) -> None:
    keys, rows = put_rows(store, [1000, 2000])
    batch = store.get_batch(keys, [row.shape for row in rows], torch.float32, delivery="leased")
    offsets, values = batch.offsets(), batch.values()
    del batch
    assert store.stats()["leased_bytes"] >= 36_000
    del values
    assert store.stats()["leased_bytes"] == 0
    assert offsets.tolist() == [0, 1000, 3000]


def test_fields_with_equal_row_lengths_combine(store: tl.Store) -> None:
    lengths = [3, 1, 4]
    shapes = [(length, 3) for length in lengths]
    ids, id_rows = put_rows(store, lengths, "ids")
    mask, mask_rows = put_rows(store, lengths, "mask", torch.int32)
    other, other_rows = put_rows(store, [4, 1, 3], "other")
    dense = [f"dense/{index}" for index in range(3)]
    store.put(dense, [torch.tensor(float(index)) for index in range(3)])
    fields = {
        "ids": (ids, shapes, torch.float32),
        "mask": (mask, shapes, "int32"),
        "other": (other, [row.shape for row in other_rows], torch.float32),
        "reward": (dense, (), torch.float32),
    }
    columns = store.get_batches(fields)
    assert list(columns) == list(fields)
    assert columns["ids"].offsets() is columns["mask"].offsets()
    assert columns["other"].offsets() is not columns["ids"].offsets()
    product = columns["ids"] * columns["mask"]
    assert torch.equal(product.values().nan_to_num(), (torch.cat(id_rows) * torch.cat(mask_rows)).nan_to_num())
    assert columns["reward"].tolist() == [0.0, 1.0, 2.0]


def test_all_fields_are_one_read(store: tl.Store) -> None:
    keys, _ = put_rows(store, [1000] * 30)
    fields = {"first": (keys[:10], (1000, 3), "float32"), "second": (keys[10:], (1000, 3), "float32")}
    store.get_batches(fields)
    before = store.stats()
    store.get_batches(fields)
    after = store.stats()
    assert after["read_keys"] - before["read_keys"] == 30
    assert after["engine_read_calls"] - before["engine_read_calls"] <= 4


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([(3, 2), (4, 3)], "first only"),
        ([(3, 2)], "one entry per key"),
        ([(), ()], "at least one dimension"),
        ("abc", "tuple of ints"),
        ((2, -1), "each dimension"),
        ((2**62, 2**62), "more bytes than"),
        ([(2**62, 2**62), (1, 2**62)], "more bytes than"),
    ],
)
def test_shapes_that_make_no_batch_are_refused(store: tl.Store, shape: Any, message: str) -> None:
    with pytest.raises(tl.ConfigError, match=message):
        store.get_batch(["a", "b"], shape, torch.float32)


def test_fields_that_are_no_fields_are_refused(store: tl.Store) -> None:
    with pytest.raises(tl.ConfigError, match=r"field 'x' is .*; give \(keys, shape, dtype\)"):
        store.get_batches({"x": (["a"], (2,))})  # type: ignore[dict-item]
    with pytest.raises(tl.ConfigError, match="dtype of field 'x' is None"):
        store.get_batches({"x": (["a"], (2,), None)})
    with pytest.raises(tl.ConfigError, match="keys of field 'x'"):
        store.get_batches({"x": ("a", (2,), "float32")})


def test_a_missing_row_names_its_key(store: tl.Store) -> None:
    keys, _ = put_rows(store, [2, 2])
    with pytest.raises(tl.KeyNotFound, match="absent") as caught:
        store.get_batch([*keys, "absent"], (2, 3), torch.float32)
    assert [failure.key for failure in caught.value.failures] == ["absent"]


def test_get_into_fills_the_caller_s_tensors_and_arrays(store: tl.Store) -> None:
    keys, rows = put_rows(store, [4, 5000, 0])
    for direct in [False, True]:
        tensors = [torch.zeros(4, 3), np.zeros((5000, 3), np.float32), torch.zeros(0, 3)]
        store.get_into(keys, tensors, direct=direct)
        assert torch.equal(tensors[0].nan_to_num(), rows[0].nan_to_num())
        assert tensors[1].tobytes() == rows[1].numpy().tobytes()


def test_get_into_parameters_marks_them_as_changed(store: tl.Store) -> None:
    keys, rows = put_rows(store, [4])
    weight = torch.nn.Parameter(torch.zeros(4, 3))
    product = weight * weight
    store.get_into(keys, [weight])
    assert torch.equal(weight.detach().nan_to_num(), rows[0].nan_to_num())
    assert weight.is_leaf
    with pytest.raises(RuntimeError, match="inplace"):
        product.sum().backward()


def read_only_array() -> Any:
    array = np.zeros((4, 3), np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: torch.zeros(3, 4).t(), tl.ConfigError, "not contiguous"),
        (lambda: np.zeros((3, 4), np.float32).T, tl.ConfigError, "not contiguous"),
        (read_only_array, tl.ConfigError, "read-only"),
        (lambda: [0.0] * 12, tl.ConfigError, "is a list"),
        (lambda: torch.zeros(4, 3, device="meta"), tl.ConfigError, "meta"),
        (lambda: torch.zeros(4, 3, dtype=torch.int32), tl.SizeMismatch, "row/0"),
        (lambda: torch.zeros(3, 4), tl.SizeMismatch, "row/0"),
        (lambda: torch.zeros(5, 3), tl.SizeMismatch, "row/0"),
    ],
)
def test_get_into_refuses_what_it_can_not_fill(
    store: tl.Store, make: Any, error: type[Exception], message: str
) -> None:
    keys, _ = put_rows(store, [4])
    with pytest.raises(error, match=message):
        store.get_into(keys, [make()])


def test_get_into_refuses_destinations_that_overlap(store: tl.Store) -> None:
    keys, _ = put_rows(store, [4, 4])
    memory = torch.zeros(7, 3)
    with pytest.raises(tl.ConfigError, match='"row/0" and key "row/1" overlap'):
        store.get_into(keys, [memory[:4], memory[3:]])


def test_a_put_from_the_arena_needs_no_staging(store: tl.Store) -> None:
    before = store.stats()
    tensor = store.empty((300, 7), torch.bfloat16)
    assert tensor.shape == (300, 7)
    assert tensor.dtype == torch.bfloat16
    assert store.stats()["leased_bytes"] >= 4200
    tensor.fill_(2)
    store.put(["a"], [tensor])
    tensor.zero_()
    assert_same(store.get(["a"])[0], torch.full((300, 7), 2, dtype=torch.bfloat16))
    assert store.stats()["register_calls"] == before["register_calls"]


def test_empty_takes_what_torch_empty_takes(store: tl.Store) -> None:
    assert store.empty(5, "int8").shape == (5,)
    assert store.empty([2, 3], np.int16).dtype == np.int16
    assert store.empty((), torch.float64).shape == ()
    assert store.empty((0, 4), torch.float64).shape == (0, 4)
    for shape in [(-1,), (2**62, 8), "x", (1.5,)]:
        with pytest.raises(tl.ConfigError, match="the new tensor"):
            store.empty(shape, torch.float32)
    with pytest.raises(tl.Error, match="max_bytes"):
        store.empty((1 << 40,), torch.uint8)
