"""Containers inside each other: how deep they may be, and that no depth, of ours or of foreign bytes, ends a process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from conftest import RunPython

import tensorlease as tl
from tensorlease import codec

WRAPS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda value: (value,),
    "list": lambda value: [value],
    "dict": lambda value: {"k": value},
    "key": lambda value: {(value,): 1} if isinstance(value, tuple | int) else (1,),
    "frozenset": lambda value: frozenset([value]),
    "set": lambda value: {value} if isinstance(value, tuple | frozenset | int) else {1},
    "objects": lambda value: objects([value, None]),
}


def objects(values: list[Any]) -> Any:
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def wrapped(kind: str, levels: int) -> Any:
    value: Any = 7
    for _ in range(levels):
        value = WRAPS[kind](value)
    return value


def depth(value: Any) -> int:
    """Levels of a value that holds one thing at each."""
    levels = 0
    while not isinstance(value, int):
        value = next(iter(value.values() if isinstance(value, dict) else value))
        levels += 1
    return levels


def bytes_of(value: Any) -> bytes:
    return b"".join(
        part if isinstance(part, bytes) else part.tobytes() for part in codec.encode(value, "key", allow_pickle=False)
    )


def object_of(tree: bytes) -> bytes:
    """The bytes of an object with this tree and no segments."""
    return codec.HEAD.pack(codec.MAGIC, codec.VERSION, 0, len(tree)) + tree


@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "frozenset"])
def test_a_value_as_deep_as_the_limit_comes_back_and_a_deeper_one_is_refused(store: tl.Store, kind: str) -> None:
    store.put(["a"], [wrapped(kind, codec.LEVELS_MAX)])
    assert depth(store.get(["a"])[0]) == codec.LEVELS_MAX
    store.put(["a"], ["before"])
    for levels in (codec.LEVELS_MAX + 1, 20 * codec.LEVELS_MAX):
        with pytest.raises(tl.ConfigError, match='"a".*(levels|too deep)'):
            store.put(["a"], [wrapped(kind, levels)])
    assert store.get(["a"]) == ["before"]


def test_arrays_of_objects_inside_each_other_count_for_ten_levels(store: tl.Store) -> None:
    most = codec.LEVELS_MAX // 10
    store.put(["a"], [wrapped("objects", most)])
    assert depth(store.get(["a"])[0]) == most
    with pytest.raises(tl.ConfigError, match="levels"):
        store.put(["a"], [wrapped("objects", most + 1)])


def test_a_tuple_that_contains_itself_is_refused(store: tl.Store) -> None:
    inner: list[Any] = []
    inner.append((inner,))
    with pytest.raises(tl.ConfigError, match="levels"):
        store.put(["a"], [inner])


def test_a_value_that_changes_while_it_is_put_is_refused(store: tl.Store) -> None:
    class Growing(dict):  # type: ignore[type-arg]
        def __reduce__(self) -> Any:
            value[0] = (("new",),)
            return dict, ()

    value: list[Any] = [((1,),), Growing()]
    with pytest.raises(tl.ConfigError, match="changed while it was put"):
        store.put(["a"], [value], allow_pickle=True)
    assert store.contains(["a"]) == [False]


def made(generator: random.Random, levels: int, hashable: bool = False) -> Any:
    """A random value of all kinds of containers."""
    if levels == 0 or generator.random() < 0.2:
        return generator.choice([0, -5, 2**64 + 1, 1.5, "text", b"bytes", None, True, "x" * 50, 3 + 4j])
    count = generator.randrange(4)
    kind = generator.choice(
        ["tuple", "frozenset"] if hashable else ["tuple", "frozenset", "list", "dict", "set", "objects"]
    )
    if kind in ("set", "frozenset"):
        return (set if kind == "set" else frozenset)(made(generator, levels - 1, True) for _ in range(count))
    if kind == "dict":
        return {made(generator, levels - 1, True): made(generator, levels - 1) for _ in range(count)}
    parts = [made(generator, levels - 1, hashable) for _ in range(count)]
    return {"tuple": tuple, "list": list, "objects": objects}[kind](parts)


def same(found: Any, expected: Any) -> bool:
    if type(found) is not type(expected):
        return False
    if isinstance(expected, np.ndarray):
        return bool(found.shape == expected.shape) and all(map(same, found.tolist(), expected.tolist()))
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(map(same, found.values(), expected.values()))
    return bool(found == expected)


def test_random_containers_inside_each_other_come_back() -> None:
    generator = random.Random(11)
    for _ in range(600):
        value = made(generator, generator.randrange(1, 9))
        found = codec.decode(bytes_of(value), "key", False)
        assert same(found, value), value


#: What an earlier release wrote, by value.
WRITTEN_BEFORE: list[tuple[str, Any]] = [
    ("0e00000000000000c70b019201c706019202d5019103", (1, (2, (3,)))),
    (
        "1f0000000000000082a161d70192019202d5039103c70b02c409000000000000000040d5049104",
        {"a": (1, [2, {3}]), 2**70: frozenset({4})},
    ),
    ("1600000000000000c7130a92cb4008000000000000cb4010000000000000", 3 + 4j),
    ("1200000000000000c70f02c40d000000000000000000000000f0", -(2**100)),
    ("0f00000000000000c70c069291039301d6019202a178c0", objects([1, (2, "x"), None])),
    (
        "220000000000000093d40190c70a0191cb3ff0000000000000c70e0191c70a0191c7060191a464656570",
        [(), (1.0,), ((("deep",),),)],
    ),
    (
        "240000000000000092c70b0792a33c6634c4040000c03fc7120792a63c4d385b445dc4085647000000000000",
        [np.float32(1.5), np.datetime64("2020-01-01")],
    ),
]


@pytest.mark.parametrize(("data", "value"), WRITTEN_BEFORE, ids=lambda part: str(part)[:20])
def test_what_an_earlier_release_wrote_is_read_and_written_alike(data: str, value: Any) -> None:
    stored = bytes.fromhex("544c560100000000" + data)
    assert same(codec.decode(stored, "key", False), value)
    assert bytes_of(value) == stored


FOREIGN = {
    "extensions": lambda levels: nested_extensions(1, levels),
    "tuples": lambda levels: nested_tuples(1, levels),
    "frozensets": lambda levels: nested_tuples(4, levels),
    "objects": lambda levels: nested_objects(levels),
    "lists": lambda levels: b"\x91" * levels + b"\x00",
    "maps": lambda levels: b"\x81\x00" * levels + b"\x00",
}


def nested_extensions(code: int, levels: int) -> bytes:
    data = b"\x00"
    for _ in range(levels):
        data = b"\xc9" + len(data).to_bytes(4, "big") + bytes([code]) + data
    return data


def nested_tuples(code: int, levels: int) -> bytes:
    data = b"\x00"
    for _ in range(levels):
        data = b"\xc9" + (1 + len(data)).to_bytes(4, "big") + bytes([code]) + b"\x91" + data
    return data


def nested_objects(levels: int) -> bytes:
    data = b"\x00"
    for _ in range(levels):
        data = b"\xc9" + (4 + len(data)).to_bytes(4, "big") + b"\x06\x92\x91\x01\x91" + data
    return data


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_bytes_of_any_depth_are_a_typed_error(kind: str) -> None:
    # Extension values that hold nothing but each other are wrong in another way first.
    said = "not iterable|levels" if kind == "extensions" else "levels"
    for levels in (codec.LEVELS_MAX + 1, 5000, 20_000):
        with pytest.raises(tl.CodecError, match=f"'key'.*({said})"):
            codec.decode(object_of(FOREIGN[kind](levels)), "key", False)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (b"\xdd\xff\xff\xff\xff", "cut short"),
        (b"\xdf\x7f\xff\xff\xff\x00", "cut short"),
        (b"\xc9\xff\xff\xff\xff\x01", "cut short"),
        (b"\x00\x00", "more bytes"),
        (b"", "cut short"),
        (b"\xc1", "0xc1"),
        (b"\xd5\x01\x00\x00", "another length"),
        (b"\xd4\x01\x92", "cut short"),
        (b"\xd4\x7f\x00", "unknown type 127"),
    ],
)
def test_a_tree_that_is_none_is_a_typed_error_before_anything_is_made_of_it(tree: bytes, said: str) -> None:
    with pytest.raises(tl.CodecError, match=said):
        codec.decode(object_of(tree), "key", False)


def test_the_count_of_extension_values_is_that_of_msgpack() -> None:
    from tensorlease._core import count_extensions

    generator = random.Random(3)
    for _ in range(300):
        tree = bytes_of(made(generator, 5))[codec.HEAD.size :]
        found = 0

        def count(code: int, data: bytes) -> Any:
            nonlocal found
            found += 1
            # Enters what the format enters.
            msgpack.unpackb(data, ext_hook=count, strict_map_key=False)
            return found

        msgpack.unpackb(tree, ext_hook=count, strict_map_key=False)
        assert count_extensions(tree) == found


ON_A_SMALL_STACK = """
import sys, threading
sys.path.insert(0, "tests")
import test_deep_values as deep, tensorlease as tl
from tensorlease import codec
import random
failed = []
def work():
    try:
        for kind, foreign in deep.FOREIGN.items():
            for levels in (20, 100, 1000, 5000, 20000):
                try:
                    codec.decode(deep.object_of(foreign(levels)), "key", False)
                except tl.CodecError:
                    pass
        for kind in ("tuple", "frozenset", "objects", "key", "set"):
            levels = 100 if kind == "objects" else 500
            assert deep.depth(codec.decode(deep.bytes_of(deep.wrapped(kind, levels)), "key", False)) in (levels, 1, 2)
        generator = random.Random(5)
        good = [deep.bytes_of(deep.made(generator, 8)) for _ in range(20)]
        for _ in range(4000):
            data = bytearray(generator.choice(good))
            for _ in range(generator.randint(1, 6)):
                data[generator.randrange(16, len(data))] = generator.randrange(256)
            try:
                codec.decode(bytes(data), "key", False)
            except tl.Error:
                pass
            try:
                codec.decode(deep.object_of(generator.randbytes(generator.randrange(200))), "key", False)
            except tl.Error:
                pass
        print("done")
    except BaseException as error:
        failed.append(error)
        raise
threading.stack_size(int(sys.argv[1]) << 10)
thread = threading.Thread(target=work)
thread.start(); thread.join()
assert not failed
"""


@pytest.mark.parametrize("stack_kib", [256, 1024, 8192])
def test_no_depth_and_no_damage_ends_a_process_with_a_small_stack(run_python: RunPython, stack_kib: int) -> None:
    code = f"import sys; sys.argv.append('{stack_kib}')\n" + ON_A_SMALL_STACK
    assert run_python(code, torch=True).stdout == "done\n"


def test_deep_values_are_read_in_the_threads_of_asyncio(store: tl.Store) -> None:
    async def work() -> Any:
        await store.aput(["a"], [wrapped("tuple", 1000)])
        return await store.aget(["a"])

    assert depth(asyncio.run(work())[0]) == 1000
