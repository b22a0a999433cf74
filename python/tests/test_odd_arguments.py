"""Every call with arguments of every odd kind: what comes is an error of tensorlease, or the caller's own exception from his own object."""

from __future__ import annotations

import asyncio
import decimal
import itertools
import math
import os
import random
import types
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RunPython

import tensorlease as tl

MESSAGE_CHARACTERS_MAX = 3000


class Own(Exception):
    """What an object of the caller raises."""


class Raises:
    """Raises from everything that a callee might ask of it."""

    def _raise(self, *_: Any) -> Any:
        raise Own

    __len__ = __iter__ = __getitem__ = __array__ = __index__ = __float__ = __int__ = __bool__ = _raise
    __repr__ = __str__ = __eq__ = __hash__ = __dlpack__ = __fspath__ = _raise  # type: ignore[assignment]


class RaisesAtEach:
    """An iterable whose first item is good."""

    def __iter__(self) -> Iterator[str]:
        yield "a"
        raise Own


class LiesAboutItsLength(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 7


class TextSubclass(str):
    __slots__ = ()


def released() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


#: By name, so that a failure says which; made anew for each call.
ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "2**70": lambda: 2**70,
    "10**5000": lambda: 10**5000,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1j": lambda: 1j,
    "decimal": lambda: decimal.Decimal("NaN"),
    "empty text": lambda: "",
    "text": lambda: "abc",
    "lone surrogate": lambda: "\ud800",
    "long text": lambda: "x" * 100_000,
    "nul": lambda: "a\0b",
    "text subclass": lambda: TextSubclass("abc"),
    "bytes": lambda: b"abc",
    "bytearray": lambda: bytearray(b"abc"),
    "memoryview": lambda: memoryview(b"abcdef")[::2],
    "released memoryview": released,
    "float32 scalar": lambda: np.float32(1.5),
    "int64 scalar": lambda: np.int64(1),
    "bool scalar": lambda: np.bool_(True),
    "text scalar": lambda: np.str_("abc"),
    "array": lambda: np.arange(3),
    "array of objects": lambda: np.array([None, "a"], object),
    "array of text": lambda: np.array(["a", "b"]),
    "read-only array": lambda: _read_only(),
    "numpy.floating": lambda: np.floating,
    "numpy.dtype": lambda: np.dtype("i4"),
    "numpy.dtype of text": lambda: np.dtype("U3"),
    "foreign order": lambda: np.dtype(">f4"),
    "tensor": lambda: torch.arange(3.0),
    "scalar tensor": lambda: torch.tensor(1.0),
    "meta tensor": lambda: torch.zeros(2, device="meta"),
    "sparse tensor": lambda: torch.eye(2).to_sparse(),
    "torch.dtype": lambda: torch.float32,
    "torch.qint8": lambda: torch.qint8,
    "torch.Size": lambda: torch.Size([2]),
    "torch.device": lambda: torch.device("cpu"),
    "type": lambda: int,
    "function": lambda: len,
    "list of None": lambda: [None],
    "list of text": lambda: ["a"],
    "list of lone surrogates": lambda: ["\ud800"],
    "list of lists": lambda: [["a"], ["b"]],
    "list that lies": lambda: LiesAboutItsLength(["a"]),
    "tuple": lambda: ("a", "b"),
    "tuple of ints": lambda: (1, 2),
    "tuple of a huge int": lambda: (10**5000,),
    "long tuple": lambda: (1,) * 100_000,
    "set": lambda: {"a", "b"},
    "frozenset": lambda: frozenset({"a", "b"}),
    "dict": lambda: {"a": 1},
    "OrderedDict": lambda: OrderedDict(a=1),
    "UserDict": lambda: UserDict(a=1),
    "mapping proxy": lambda: types.MappingProxyType({"a": 1}),
    "keys": lambda: {"a": 1}.keys(),
    "items": lambda: {"a": 1}.items(),
    "UserList": lambda: UserList(["a"]),
    "deque": lambda: deque(["a"]),
    "range": lambda: range(2),
    "generator": lambda: (key for key in ("a", "b")),
    "map": lambda: map(str, range(2)),
    "field": lambda: {"x": (["a"], (3,), torch.float32)},
    "field that is a set": lambda: {"x": {("a",), (3,), "float32"}},
    "field without shape": lambda: {"x": (["a"], None, None)},
    "field of odd name": lambda: {2: (["a"], [(3,)], np.float32)},
    "ellipsis": lambda: ...,
    "object": object,
    "raises": Raises,
    "list that raises": lambda: [Raises()],
    "tuple that raises": lambda: (Raises(),),
    "raises at each": RaisesAtEach,
    "module": lambda: math,
}


def _read_only() -> Any:
    array = np.arange(3.0)
    array.flags.writeable = False
    return array


def _run(awaitable: Any) -> Any:
    async def work() -> Any:
        return await awaitable

    return asyncio.run(work())


KEYS = ["a"]
SHAPE, DTYPE = (3,), torch.float32

#: Each with the argument in one place and good ones in the others.
CALLS: dict[str, Callable[[tl.Store, Any], object]] = {
    "put keys": lambda s, x: s.put(x, [1]),
    "put values": lambda s, x: s.put(KEYS, x),
    "put a value": lambda s, x: s.put(["odd"], [x]),
    "put a value inside": lambda s, x: s.put(["odd"], [{"x": (x,)}]),
    "put delivery": lambda s, x: s.put(["odd"], [1], delivery=x),
    "put allow_pickle": lambda s, x: s.put(["odd"], [1], allow_pickle=x),
    "put timeout": lambda s, x: s.put(["odd"], [1], timeout=x),
    "get keys": lambda s, x: s.get(x),
    "get shapes": lambda s, x: s.get(KEYS, x, [DTYPE]),
    "get a shape": lambda s, x: s.get(KEYS, [x], [DTYPE]),
    "get dtypes": lambda s, x: s.get(KEYS, [SHAPE], x),
    "get a dtype": lambda s, x: s.get(KEYS, [SHAPE], [x]),
    "get metas": lambda s, x: s.get(KEYS, None, [None], x),
    "get a meta": lambda s, x: s.get(KEYS, None, [None], [x]),
    "get a size": lambda s, x: s.get(KEYS, None, [None], [{"packed_size": x}]),
    "get delivery": lambda s, x: s.get(KEYS, delivery=x),
    "get timeout": lambda s, x: s.get(KEYS, timeout=x),
    "get allow_pickle": lambda s, x: s.get(KEYS, allow_pickle=x),
    "get view": lambda s, x: s.get(KEYS, view=x),
    "get_batch keys": lambda s, x: s.get_batch(x, SHAPE, DTYPE),
    "get_batch shape": lambda s, x: s.get_batch(KEYS, x, DTYPE),
    "get_batch shapes": lambda s, x: s.get_batch(KEYS, [x], DTYPE),
    "get_batch dtype": lambda s, x: s.get_batch(KEYS, SHAPE, x),
    "get_batch dtype of rows": lambda s, x: s.get_batch(KEYS, [SHAPE], x),
    "get_batch delivery": lambda s, x: s.get_batch(KEYS, SHAPE, DTYPE, delivery=x),
    "get_batch timeout": lambda s, x: s.get_batch(KEYS, SHAPE, DTYPE, timeout=x),
    "get_batches": lambda s, x: s.get_batches(x),
    "get_batches field": lambda s, x: s.get_batches({"x": x}),
    "get_batches name": lambda s, x: s.get_batches({x: (KEYS, SHAPE, DTYPE)} if _is_hashable(x) else None),
    "get_into keys": lambda s, x: s.get_into(x, [torch.zeros(3)]),
    "get_into tensors": lambda s, x: s.get_into(KEYS, x),
    "get_into a tensor": lambda s, x: s.get_into(KEYS, [x]),
    "get_into direct": lambda s, x: s.get_into(KEYS, [torch.zeros(3)], direct=x),
    "get_into timeout": lambda s, x: s.get_into(KEYS, [torch.zeros(3)], timeout=x),
    "empty shape": lambda s, x: s.empty(x, DTYPE),
    "empty dtype": lambda s, x: s.empty(SHAPE, x),
    "contains": lambda s, x: s.contains(x),
    "contains a key": lambda s, x: s.contains([x]),
    "wait": lambda s, x: s.wait(x, 0),
    "wait timeout": lambda s, x: s.wait(KEYS, x),
    "remove": lambda s, x: s.remove(x),
    "clear timeout": lambda s, x: s.clear(timeout=x) if _is_no_time(x) else None,
    "aput": lambda s, x: _run(s.aput(x, [1])),
    "aput values": lambda s, x: _run(s.aput(KEYS, x)),
    "aget": lambda s, x: _run(s.aget(x)),
    "aget dtypes": lambda s, x: _run(s.aget(KEYS, [SHAPE], x)),
    "aget_batches": lambda s, x: _run(s.aget_batches(x)),
    "aget_into": lambda s, x: _run(s.aget_into(KEYS, x)),
    "await_keys": lambda s, x: _run(s.await_keys(x, 0)),
    "await_keys timeout": lambda s, x: _run(s.await_keys(KEYS, x)),
    "aremove": lambda s, x: _run(s.aremove(x)),
}

#: Options of `open`, where what is right would open a store or reach for one.
OPTIONS = [
    "max_bytes",
    "readers",
    "delivery",
    "strict",
    "namespace",
    "prewarm",
    "bounce_bytes",
    "copy_cache_bytes",
    "quarantine_bytes",
    "batch_keys",
    "retries",
    "fork",
    "call_timeout",
]


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except Exception:
        return False
    return True


def _is_no_time(value: Any) -> bool:
    """So that `clear` is not done."""
    return not isinstance(value, bool | int | float | np.generic | torch.Tensor | type(None))


def said(call: Callable[..., object], what: str, *makes: Callable[[], Any]) -> str | None:
    """Runs the call with what these make; a complaint about what it raised, if there is one."""
    try:
        call(*(make() for make in makes))
    except tl.Error as error:
        message = str(error)
        if not 0 < len(message) < MESSAGE_CHARACTERS_MAX:
            return f"{what}: a message of {len(message)} characters: {message[:300]}"
        return None
    except Own:
        return None
    except BaseException as error:
        return f"{what}: {type(error).__name__}: {str(error)[:200]}"
    return None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CALLS)
def test_whatever_is_passed_is_a_typed_error_or_works(store: tl.Store, name: str) -> None:
    store.put(KEYS, [torch.arange(3.0)])
    complaints = [said(CALLS[name], f"{name} with {odd}", lambda: store, make) for odd, make in ODD.items()]
    assert not [complaint for complaint in complaints if complaint]
    # No lease hangs on an error.
    store.put(KEYS, [torch.arange(3.0)])
    assert store.get(KEYS, [SHAPE], [DTYPE])[0].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("option", OPTIONS)
def test_whatever_is_passed_to_open_is_a_typed_error_or_works(option: str) -> None:
    def opened(value: Any) -> None:
        settings = {"max_bytes": "16MiB", option: value}
        tl.open("embedded://?capacity=16MiB", **settings).close()

    complaints = [said(opened, f"{option}={odd}", make) for odd, make in ODD.items()]
    assert not [complaint for complaint in complaints if complaint]


def test_whatever_is_passed_as_a_url_is_a_typed_error() -> None:
    texts = [
        "embedded",
        "://",
        "embedded://?",
        "embedded://?capacity",
        "embedded://?capacity=\0",
        "host:///\0",
        "x" * 999,
    ]
    odd = {**ODD, **{text: lambda text=text: text for text in texts}}
    complaints = [
        said(lambda url: tl.open(url, max_bytes="16MiB").close(), f"url {name}", make)
        for name, make in odd.items()
        # The first two name the user's own daemon; a long URL is shown whole.
        if name not in ("None", "empty text", "long text")
    ]
    assert not [complaint for complaint in complaints if complaint]


@pytest.mark.timeout(300)
def test_pairs_of_odd_arguments_are_typed_errors_or_work(store: tl.Store) -> None:
    generator = random.Random(17)
    pairs = list(itertools.product(ODD.items(), ODD.items()))
    complaints = []
    for (first, make_first), (second, make_second) in generator.sample(pairs, 400):
        store.put(KEYS, [torch.arange(3.0)])
        for what, call in {
            "put": lambda a, b: store.put(a, b),
            "get": lambda a, b: store.get(KEYS, a, b),
            "get one": lambda a, b: store.get(KEYS, [a], [b]),
            "get_batch": lambda a, b: store.get_batch(KEYS, a, b),
            "empty": lambda a, b: store.empty(a, b),
            "get_into": lambda a, b: store.get_into(a, b),
        }.items():
            complaints.append(said(call, f"{what} with {first} and {second}", make_first, make_second))
    assert not [complaint for complaint in complaints if complaint]


# ---- what has no order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [set, frozenset, type("Subclass", (set,), {})], ids=["set", "frozenset", "subclass"])
def test_a_set_is_no_list_of_keys_or_values(store: tl.Store, make: Callable[[Any], Any]) -> None:
    keys = ["prompt", "answer", "reward"]
    tensors = [torch.zeros(1), torch.ones(1), torch.ones(1)]
    calls: list[Callable[[], object]] = [
        lambda: store.put(make(keys), ["P", "A", "R"]),
        lambda: store.put(keys, make(["P", "A", "R"])),
        lambda: store.get(make(keys)),
        lambda: store.get(keys, make([(1,), (2,), (3,)]), DTYPE),
        lambda: store.get_into(keys, make(tensors)),
        lambda: store.get_into(make(keys), tensors),
        lambda: store.get_batch(make(keys), (1,), DTYPE),
        lambda: store.contains(make(keys)),
        lambda: _run(store.aput(make(keys), ["P", "A", "R"])),
        lambda: _run(store.aget_into(keys, make(tensors))),
    ]
    for call in calls:
        with pytest.raises(tl.ConfigError, match="no order"):
            call()
    assert store.contains(keys) == [False] * 3
    # Here the outcome is one for all keys.
    store.put(keys, ["P", "A", "R"])
    store.wait(make(keys), 0)
    _run(store.await_keys(make(keys), 5))
    assert store.remove(make(keys)) == 3


def test_what_has_an_order_is_taken_in_it(store: tl.Store) -> None:
    pairs = {"prompt": "P", "answer": "A", "reward": "R"}
    for keys, values in [
        (pairs.keys(), pairs.values()),
        (iter(pairs), (value for value in pairs.values())),
        (deque(pairs), UserList(pairs.values())),
    ]:
        store.clear()
        store.put(keys, values)
        assert {key: store.get([key])[0] for key in pairs} == pairs


@pytest.mark.parametrize("make", [dict, OrderedDict, UserDict, types.MappingProxyType], ids=lambda make: make.__name__)
def test_a_mapping_is_no_list_of_keys_or_values(store: tl.Store, make: Callable[[Any], Any]) -> None:
    for call in (lambda: store.put(make({"a": 1}), [1]), lambda: store.put(["a"], make({"b": 1}))):
        with pytest.raises(tl.ConfigError, match="give a list"):
            call()
    assert store.contains(["a", "b"]) == [False, False]


def test_rows_of_several_lengths_are_not_asked_for_as_numpy(store: tl.Store) -> None:
    store.put(["r0", "r1"], [np.arange(3), np.arange(4)])
    for dtype in (np.int64, np.dtype("int64")):
        with pytest.raises(tl.ConfigError, match="numpy's.*jagged"):
            store.get_batch(["r0", "r1"], [(3,), (4,)], dtype)
    assert [len(row) for row in store.get_batch(["r0", "r1"], [(3,), (4,)], "int64").unbind()] == [3, 4]


def test_a_url_of_the_environment_that_is_no_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TENSORLEASE_URL", "embedded://\udcff")
    with pytest.raises(tl.ConfigError, match="TENSORLEASE_URL"):
        tl.open()


def test_a_python_that_can_not_be_started_again_is_named(run_python: RunPython, tmp_path: Any) -> None:
    run_python(
        """
import sys
for executable in ("", "/nowhere/python"):
    sys.executable = executable
    import tensorlease as tl
    try:
        tl.open(max_bytes="16MiB")
    except tl.EngineUnavailable as error:
        assert "sys.executable" in str(error) and "tensorlease serve --socket" in str(error), error
        assert isinstance(error.__cause__, OSError)
    else:
        raise AssertionError
""",
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TENSORLEASE_URL": ""},
    )
