"""Reads whose bytes land tightly packed at odd addresses of registered memory (requirement A11), and nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Open
from mooncake.store import BufferPool  # type: ignore[import-untyped]
from watched_store import Transfer, WatchedStore, changed, local_buffer_start

import tensorlease as tl

LOCAL_BUFFER = 4 << 20
BOUNCE = 2 << 20
#: Where the second and later values of a ragged batch begin when they lie back to back.
OFFSETS = [1, 3, 13, 255, 257, 4097]
ENDS = [*OFFSETS, 9100, 74_637, 140_000]
LENGTHS = [end - begin for begin, end in itertools.pairwise([0, *ENDS])]
#: Small leases that move the next one to each of the offsets. Mooncake rounds lengths to steps; these are steps.
PADS = {0: [], 1: [1], 3: [3], 13: [13], 255: [240, 15], 257: [256, 1], 4097: [4096, 1]}
DTYPES: list[Any] = [np.uint8, np.int8, np.bool_]

Arrays = list[np.ndarray[Any, Any]]


class Watched(NamedTuple):
    store: tl.Store
    mooncake: WatchedStore


def values(dtype: Any, seed: int, lengths: list[int] = LENGTHS) -> Arrays:
    random = np.random.default_rng(seed)
    drawn = [random.integers(0, 2 if dtype is np.bool_ else 128, length) for length in lengths]
    return [one.astype(dtype) for one in drawn]


@pytest.fixture(scope="module")
def own(open_watched: Open) -> Watched:
    """Reads land in the arena. One reader: whatever changes beside a read is that read's fault."""
    return Watched(*open_watched(max_bytes="16MiB", bounce_bytes=BOUNCE, readers=1))


@pytest.fixture(scope="module")
def lent(open_watched: Open) -> Watched:
    """Copied reads land in leases of Mooncake's real BufferPool."""
    url: dict[str, object] = {"pool": "store", "local_buffer": LOCAL_BUFFER}
    return Watched(*open_watched(url=url, max_bytes="16MiB", readers=1))


@contextmanager
def put(watched: Watched, prefix: str, arrays: Arrays) -> Iterator[list[str]]:
    """Stores the arrays, and removes them at the end."""
    keys = [f"{prefix}/{at}" for at in range(len(arrays))]
    # An array of bools would go by the codec; Mooncake keeps bytes and knows no dtype.
    watched.store.put(keys, [array.view(np.uint8) for array in arrays])
    yield keys
    watched.store.remove(keys)


@contextmanager
def guarded(watched: Watched) -> Iterator[list[Transfer]]:
    """Yields the transfers of the reads inside; no registered byte but theirs changes, and each lies in one registration."""
    done = len(watched.mooncake.reads)
    transfers: list[Transfer] = []
    watched.mooncake.guarding = True
    try:
        yield transfers
    finally:
        watched.mooncake.guarding = False
    transfers += watched.mooncake.reads[done:]
    assert transfers
    assert all(one.result == one.len for one in transfers)
    assert watched.mooncake.changed_outside == []


def offsets(transfers: list[Transfer]) -> list[int]:
    """Where each begins, from the first."""
    return [one.addr - transfers[0].addr for one in transfers]


def assert_same(found: Arrays, expected: Arrays) -> None:
    for one, wanted in zip(found, expected, strict=True):
        assert one.dtype == wanted.dtype
        np.testing.assert_array_equal(one, wanted)


def test_the_comparison_sees_one_byte_beside_a_target() -> None:
    memory = np.zeros(100, np.uint8)
    before = memory.copy()
    memory[20:31] = 1
    addr = memory.ctypes.data
    assert changed(addr, before, [Transfer("key", addr + 20, 10, 10)]) == [addr + 30]


@pytest.mark.parametrize("dtype", DTYPES)
def test_copied_values_land_back_to_back_at_odd_addresses_of_the_arena(own: Watched, dtype: Any) -> None:
    expected = values(dtype, 1)
    with put(own, f"copied/{dtype.__name__}", expected) as keys, guarded(own) as transfers:
        found = own.store.get(keys, [one.shape for one in expected], dtype, delivery="copied")
    assert_same(found, expected)
    assert offsets(transfers) == [0, *ENDS[:-1]]
    assert transfers[0].addr % 2 == 0
    assert own.mooncake.outside_one_registration(transfers) == []


@pytest.mark.parametrize("length", OFFSETS)
def test_rows_of_a_leased_batch_lie_back_to_back(own: Watched, length: int) -> None:
    expected = values(np.uint8, length, [length] * 9)
    with put(own, f"rows/{length}", expected) as keys, guarded(own) as transfers:
        batch = own.store.get_batch(keys, (length,), np.uint8, delivery="leased")
    np.testing.assert_array_equal(batch, np.stack(expected))
    assert offsets(transfers) == [length * at for at in range(9)]
    assert batch.ctypes.data == transfers[0].addr, "it is the memory that the bytes landed in"
    assert own.mooncake.outside_one_registration(transfers) == []


def test_a_ragged_request_of_all_three_dtypes(own: Watched) -> None:
    fields = [values(dtype, 7, [length] * 5) for dtype, length in zip(DTYPES, [13, 255, 4097], strict=True)]
    with ExitStack() as stack:
        keys = [stack.enter_context(put(own, f"field/{at}", rows)) for at, rows in enumerate(fields)]
        with guarded(own) as transfers:
            wanted = {str(at): (keys[at], rows[0].shape, rows[0].dtype) for at, rows in enumerate(fields)}
            batches = own.store.get_batches(wanted)
    for at, rows in enumerate(fields):
        np.testing.assert_array_equal(batches[str(at)], np.stack(rows))
        assert batches[str(at)].dtype == rows[0].dtype
    assert sum(one.addr % 2 for one in transfers) >= 5


def test_an_object_larger_than_a_round_comes_in_ranges(own: Watched) -> None:
    (expected,) = values(np.uint8, 9, [BOUNCE + 4097])
    ranges = own.mooncake.range_reads
    with put(own, "large", [expected]) as keys, guarded(own) as transfers:
        (found,) = own.store.get(keys, [expected.shape], np.uint8, delivery="copied")
    np.testing.assert_array_equal(found, expected)
    assert own.mooncake.range_reads - ranges >= 2
    assert sum(one.len for one in transfers) == len(expected)
    assert own.mooncake.outside_one_registration(transfers) == []


@pytest.mark.parametrize("direct", [False, True])
def test_destinations_of_the_caller_at_odd_addresses(own: Watched, direct: bool) -> None:
    memory = np.full(ENDS[-1] + 64, 0xA5, np.uint8)
    ranges = list(itertools.pairwise(ENDS))
    expected = values(np.uint8, 3, [end - begin for begin, end in ranges])
    with put(own, f"into/{direct}", expected) as keys, guarded(own) as transfers:
        own.store.get_into(keys, [memory[begin:end] for begin, end in ranges], direct=direct)
    assert_same([memory[begin:end] for begin, end in ranges], expected)
    assert memory[0] == 0xA5
    assert (memory[ENDS[-1] :] == 0xA5).all()
    if direct:
        assert sorted(one.addr - memory.ctypes.data for one in transfers) == ENDS[:-1]
    else:
        assert own.mooncake.outside_one_registration(transfers) == []


@contextmanager
def small_leases(watched: Watched, sizes: list[int]) -> Iterator[None]:
    """Holds leases of these sizes of Mooncake's pool, with a byte pattern that nobody may change."""
    pool = BufferPool(watched.mooncake)
    leases = [pool.acquire(size) for size in sizes]
    for lease in leases:
        lease.buffer[:] = b"\xa5" * lease.size
    yield
    assert all(bytes(lease.buffer) == b"\xa5" * lease.size for lease in leases)
    for lease in leases:
        lease.release()
    pool.close()


@pytest.mark.parametrize("base", [0, *OFFSETS])
def test_leases_of_mooncakes_pool_at_odd_addresses(lent: Watched, base: int) -> None:
    start = local_buffer_start(lent.mooncake)
    lent.mooncake.regions[start] = LOCAL_BUFFER
    loans = lent.store.stats()["loans"]
    dtype = DTYPES[base % 3]
    expected = values(dtype, base)
    with put(lent, f"lent/{base}", expected) as keys, small_leases(lent, PADS[base]), guarded(lent) as transfers:
        found = lent.store.get(keys, [one.shape for one in expected], dtype)
    assert_same(found, expected)
    assert lent.store.stats()["loans"] == loans + 1
    assert [one.addr - start for one in transfers] == [base, *(base + end for end in ENDS[:-1])]
    assert lent.mooncake.outside_one_registration(transfers) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_through_leases_of_mooncakes_pool(lent: Watched, dtype: Any) -> None:
    start = local_buffer_start(lent.mooncake)
    lent.mooncake.regions[start] = LOCAL_BUFFER
    expected = values(dtype, 11, [257] * 33)
    with put(lent, f"rows/{dtype.__name__}", expected) as keys, small_leases(lent, [13]), guarded(lent) as transfers:
        batch = lent.store.get_batch(keys, (257,), dtype)
    np.testing.assert_array_equal(batch, np.stack(expected))
    assert [one.addr - start for one in transfers] == [13 + 257 * at for at in range(33)]


def test_what_finds_no_room_in_mooncakes_buffer_is_still_read_right_and_counted(lent: Watched) -> None:
    before = lent.store.stats()
    large = values(np.uint8, 5, [LOCAL_BUFFER // 2 + 1, 4097])
    with put(lent, "large", large) as keys, guarded(lent):
        found = lent.store.get(keys, [one.shape for one in large], np.uint8)
    assert_same(found, large)
    small = values(np.uint8, 6, LENGTHS)
    with put(lent, "no room", small) as keys, small_leases(lent, [LOCAL_BUFFER]), guarded(lent) as transfers:
        found = lent.store.get(keys, [one.shape for one in small], np.uint8)
    assert_same(found, small)
    assert offsets(transfers) == [0, *ENDS[:-1]]
    now = lent.store.stats()
    assert now["fallback_loan_too_large"] == before["fallback_loan_too_large"] + 1
    assert now["overflow_loans"] == before["overflow_loans"] + 1
