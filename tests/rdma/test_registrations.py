"""Registrations, counted where Mooncake is called: none on the ways that reads and writes take all the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Open
from watched_store import WatchedStore, totals

import tensorlease as tl

ROUNDS = 3
ARRAYS = [np.arange(length, dtype=np.int32) for length in [1, 77, 4099, 70_001]]
KEYS = [f"hot/{at}" for at in range(len(ARRAYS))]
SHAPES = [array.shape for array in ARRAYS]
PACKED = [b"one", b"x" * 100_003, {"text": ["as", "it", "is"]}]
PACKED_KEYS = [f"hot/packed/{at}" for at in range(len(PACKED))]


class Watched(NamedTuple):
    store: tl.Store
    mooncake: WatchedStore


@pytest.fixture(scope="module", params=["own", "store"])
def watched(request: pytest.FixtureRequest, open_watched: Open) -> Watched:
    """With the product's own readers: several at a time."""
    return Watched(*open_watched(url={"pool": request.param, "local_buffer": "16MiB"}, max_bytes="32MiB"))


def put_tensors(store: tl.Store) -> None:
    store.put(KEYS, ARRAYS)


def put_tensors_of_the_arena(store: tl.Store) -> None:
    memory = [store.empty(array.shape, array.dtype) for array in ARRAYS]
    for one, array in zip(memory, ARRAYS, strict=True):
        one[:] = array
    store.put(KEYS, memory)


def get_tensors(delivery: str) -> Callable[[tl.Store], None]:
    def get(store: tl.Store) -> None:
        found = store.get(KEYS, SHAPES, np.int32, delivery=delivery)
        for one, array in zip(found, ARRAYS, strict=True):
            np.testing.assert_array_equal(one, array)

    return get


def put_bytes(store: tl.Store) -> None:
    store.put(PACKED_KEYS, PACKED)


def get_bytes(store: tl.Store) -> None:
    metas = store.put(PACKED_KEYS, PACKED)
    dtypes: list[Any] = [None] * len(PACKED)
    assert store.get(PACKED_KEYS, dtypes, dtypes, custom_backend_meta=metas) == PACKED


HOT_PATHS = {
    "put_tensors": put_tensors,
    "put_tensors_of_the_arena": put_tensors_of_the_arena,
    "get_tensors_leased": get_tensors("leased"),
    "get_tensors_copied": get_tensors("copied"),
    "get_tensors_auto": get_tensors("auto"),
    "put_bytes": put_bytes,
    "get_bytes": get_bytes,
}


@pytest.mark.parametrize("path", HOT_PATHS)
def test_a_hot_path_registers_nothing_after_the_first_time(watched: Watched, path: str) -> None:
    work = HOT_PATHS[path]
    put_tensors(watched.store)
    work(watched.store)
    calls = watched.mooncake.registering(lambda: [work(watched.store) for _ in range(ROUNDS)])
    totals.hot_path_register_calls += calls
    assert calls == 0


def test_the_count_sees_a_read_that_registers(watched: Watched) -> None:
    put_tensors(watched.store)
    before = watched.store.stats()["register_calls"]
    calls = watched.mooncake.registering(lambda: get_tensors("register-per-call")(watched.store))
    assert calls == 1
    assert watched.store.stats()["register_calls"] - before == calls, "and so does ours"


def test_no_transfer_crosses_from_one_slab_into_the_next(open_watched: Open) -> None:
    store, mooncake = open_watched(max_bytes="96MiB")
    expected = [np.full(900_001 + at, at, np.uint8) for at in range(8)]
    keys = [f"slabs/{at}" for at in range(len(expected))]
    store.put(keys, expected)
    # All but a few MiB of the first slab are taken, so that the values find room in two.
    taken = store.empty((60 << 20,), np.uint8)
    reads = len(mooncake.reads)
    found = store.get(keys, [one.shape for one in expected], np.uint8, delivery="leased")
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, wanted)
    holding = {addr for one in mooncake.reads[reads:] for addr in mooncake.regions if _holds(mooncake, addr, one.addr)}
    assert len(holding) == 2
    assert mooncake.outside_one_registration(mooncake.reads + mooncake.writes) == []
    del taken


def _holds(mooncake: WatchedStore, region: int, addr: int) -> bool:
    return region <= addr < region + mooncake.regions[region]
