"""Values that are not tensors: what the codec keeps, and how it fails."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from tensors import assert_same, filled

import tensorlease as tl
from tensorlease import codec

PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**200) + 17,
    1.5,
    -0.0,
    math.inf,
    "",
    "text",
    "umläut \0 \U0001f600 \ud800",
    "x" * 100_000,
    b"",
    b"\0bytes",
    b"y" * 70_000,
    [],
    [1, "two", None, [3.0, (4, [5])]],
    (),
    (1, (2, ())),
    {},
    {"a": {"b": [1]}},
    {1: "int", (2, "x"): "tuple", None: 0, 1.5: "float", b"k": "bytes", 2**70: "big"},
    {1, 2, 3},
    frozenset({"a", "b"}),
    {"nested": {"sets": [{1}, frozenset({(1, 2)})]}},
    3 + 4j,
]


def same(found: Any, expected: Any) -> bool:
    """Equal, and of equal types all the way down."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return list(map(type, found)) == list(map(type, expected)) and all(
            same(found[k], v) for k, v in expected.items()
        )
    if isinstance(expected, float):
        return math.copysign(1, found) == math.copysign(1, expected) and found == expected
    return bool(found == expected)


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: f"{type(value).__name__}-{str(value)[:12]!a}")
def test_a_plain_value_comes_back_equal_and_of_its_type(store: tl.Store, value: Any) -> None:
    metas = store.put(["a"], [value])
    assert metas[0] is not None
    assert metas[0]["packed_size"] > 0
    for delivery in ["auto", "leased", "copied"]:
        (found,) = store.get(["a"], None, [None], metas, delivery=delivery)
        assert same(found, value), (found, value)
    assert same(store.get(["a"])[0], value)
    assert same(store.get(["a"], dtypes=[None])[0], value)


def test_other_bytes_come_back_as_bytes(store: tl.Store) -> None:
    store.put(["a"], [[bytearray(b"x"), memoryview(b"y")]])
    assert store.get(["a"]) == [[b"x", b"y"]]


def test_nan_comes_back(store: tl.Store) -> None:
    store.put(["a"], [[math.nan]])
    assert math.isnan(store.get(["a"])[0][0])


ARRAYS = [
    np.array([True, False]),
    np.array(["short", "longer text"]),
    np.array([b"x", b"yz"]),
    np.array(["2020-01-01", "NaT"], dtype="datetime64[s]"),
    np.array([1, 2], dtype="timedelta64[ms]"),
    np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i4"), ("b", ">f8")]),
    np.array([1, "two", None, (3, [4])], dtype=object),
    np.zeros((0, 3), dtype="U4"),
    np.array("scalar"),
    np.longdouble([1, 2]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype)[:20])
def test_arrays_that_are_no_tensors_come_back(store: tl.Store, array: Any) -> None:
    metas = store.put(["a"], [array])
    assert metas[0] is not None
    (found,) = store.get(["a"], None, [None], metas)
    assert isinstance(found, np.ndarray)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    "value", [np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("x"), np.datetime64("2020-01-01")], ids=repr
)
def test_numpy_scalars_come_back_as_scalars(store: tl.Store, value: Any) -> None:
    store.put(["a"], [[value]])
    (found,) = store.get(["a"])[0]
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize("elements", [7, 500_000])
def test_tensors_and_arrays_inside_containers_come_back(store: tl.Store, elements: int) -> None:
    value = {
        "tensors": [filled((elements, 3), torch.bfloat16), filled(()), torch.zeros(0, 2, dtype=torch.int8)],
        "array": np.arange(elements, dtype=">i8").reshape(-1, 1),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "view": filled((elements, 4))[:, ::2],
        "ids": (torch.arange(3), np.float64(2.5)),
    }
    metas = store.put(["a"], [value])
    (found,) = store.get(["a"], None, [None], metas)
    for tensor, expected in zip(found["tensors"], value["tensors"], strict=True):
        assert_same(tensor, expected)
    assert_same(found["view"], value["view"].contiguous())
    for name in ["array", "fortran"]:
        assert found[name].dtype == value[name].dtype
        np.testing.assert_array_equal(found[name], value[name])
    found["array"][...] = 0
    found["tensors"][0].zero_()
    assert_same(store.get(["a"])[0]["tensors"][0], value["tensors"][0])


def test_a_large_array_in_a_container_is_a_view_that_keeps_its_memory(store: tl.Store) -> None:
    store.put(["a"], [{"x": np.arange(1 << 18), "small": np.arange(4)}])
    found = store.get(["a"], delivery="leased")[0]
    array, small = found["x"], found["small"]
    del found
    held = store.stats()["leased_bytes"]
    assert held >= array.nbytes
    np.testing.assert_array_equal(array, np.arange(1 << 18))
    del array
    assert store.stats()["leased_bytes"] == 0
    np.testing.assert_array_equal(small, np.arange(4))


class Custom:
    """No value that the codec knows."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


def test_the_type_of_a_refused_value_is_spoken_as_english(store: tl.Store) -> None:
    for value, spoken in ((object(), "holds an object,"), (slice(1), "holds a slice,")):
        with pytest.raises(tl.ConfigError, match=spoken):
            store.put(["the key"], [value])


@pytest.mark.parametrize(
    "value",
    [Custom(1), [Custom(2)], {"x": (Custom(3),)}, print, np.ma.array([1], mask=[True])],
    ids=["object", "in a list", "in a dict", "function", "masked array"],
)
def test_other_objects_need_allow_pickle(store: tl.Store, value: Any) -> None:
    with pytest.raises(tl.ConfigError, match=r'"the key".* allow_pickle=True'):
        store.put(["the key"], [value])
    assert store.contains(["the key"]) == [False]
    store.put(["the key"], [value], allow_pickle=True)
    with pytest.raises(tl.ConfigError, match="allow_pickle=True if you trust"):
        store.get(["the key"])
    (found,) = store.get(["the key"], allow_pickle=True)
    assert type(found) is type(value)
    assert repr(found) == repr(value) or found == value


def test_what_can_not_be_pickled_says_so(store: tl.Store) -> None:
    with pytest.raises(tl.ConfigError, match="can't be pickled"):
        store.put(["a"], [lambda: 0], allow_pickle=True)


def test_a_list_that_contains_itself_is_refused(store: tl.Store) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(tl.ConfigError, match="containing itself"):
        store.put(["a"], [value])


def test_segments_are_aligned_and_gathered_from_where_they_lie() -> None:
    array, text = np.arange(1000), b"z" * 5000
    parts = codec.encode([array, np.arange(3.0)], "key", allow_pickle=False)
    assert any(isinstance(part, np.ndarray) and np.shares_memory(part, array) for part in parts)
    assert any(part is text for part in codec.encode(text, "key", allow_pickle=False))
    end = 0
    for part in parts:
        if isinstance(part, np.ndarray):
            assert end % 64 == 0
        end += memoryview(part).nbytes


def encoded(value: Any) -> bytes:
    """The bytes of a value as they are stored."""
    return b"".join(
        part if isinstance(part, bytes) else part.tobytes() for part in codec.encode(value, "key", allow_pickle=False)
    )


def test_damaged_bytes_are_a_typed_error_whatever_the_damage() -> None:
    good = encoded(
        {"a": np.arange(40), "s": "x" * 5000, "t": (1, {2}, 2**80), "d": np.array(["x"]), "f": np.float32(1)}
    )
    assert codec.decode(good, "key", False)["s"] == "x" * 5000
    for cut in list(range(64)) + [len(good) - 1]:
        with pytest.raises(tl.CodecError, match="key"):
            codec.decode(good[:cut], "key", False)
    generator = random.Random(7)
    failed = 0
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            bad[generator.randrange(min(len(bad), 300))] = generator.randrange(256)
        try:
            codec.decode(bytes(bad), "key", False)
        except (tl.CodecError, tl.ConfigError):
            failed += 1
    assert failed > 1000


@pytest.mark.parametrize("junk", [b"", b"TLV", b"x" * 100, b"TLV\x02" + bytes(40), b"TLV\x01" + b"\xff" * 40], ids=repr)
def test_foreign_bytes_are_a_typed_error(junk: bytes) -> None:
    with pytest.raises(tl.CodecError, match="'key'"):
        codec.decode(junk, "key", False)


def test_a_stored_dtype_with_objects_is_refused() -> None:
    import msgpack

    tree = msgpack.packb(msgpack.ExtType(5, msgpack.packb([0, "|O", [1]])))
    data = codec.HEAD.pack(b"TLV", 1, 1, len(tree)) + (8).to_bytes(8, "little") + tree
    data += bytes(-len(data) % 64) + b"\x41" * 8
    with pytest.raises(tl.CodecError, match="objects"):
        codec.decode(data, "key", False)
