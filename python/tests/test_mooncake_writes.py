"""Writes to a real Mooncake over TCP: how values leave, a full cluster, replacing a key, removing keys, pickling the store."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mooncake_rig import Running, allocated_bytes, cluster, counted, owned_cluster, paused, wait_until
from tensors import assert_same, filled

import tensorlease as tl
from bench.cluster import Master, SegmentOwner

MIB = 1 << 20
ROW = (32768,)
#: Within this a put has told the master of its keys.
REACHED_SECONDS = 1.0
#: Pauses of 50, 100 and 200 ms after the first try.
BACK_OFF_SECONDS = 0.35


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Master, SegmentOwner]]:
    with owned_cluster("64MiB") as found:
        yield found


@pytest.fixture(scope="module")
def plain(running: tuple[Master, SegmentOwner]) -> Iterator[tl.Store]:
    with tl.open(running[0].url(local_buffer="16MiB"), max_bytes="32MiB") as store:
        yield store


@pytest.fixture(scope="module")
def registering(running: tuple[Master, SegmentOwner]) -> Iterator[tl.Store]:
    """A store that registers its memory, as over RDMA."""
    url = running[0].url(local_buffer="16MiB", pool="store", force=1)
    with tl.open(url, max_bytes="32MiB") as store:
        yield store


# ---- how values leave ------------------------------------------------------------------------------------------------------------


def test_a_tensor_of_the_arena_leaves_as_it_lies_and_others_are_staged(registering: tl.Store) -> None:
    inside, outside = registering.empty(ROW, torch.float32), filled(ROW)
    inside.copy_(filled(ROW))
    with counted(registering) as gained:
        registering.put(["inside", "outside"], [inside, outside])
    assert gained["in_place_writes"] == gained["staged_writes"] == 1
    assert gained["copied_bytes"] == outside.numel() * 4
    # Slabs alone were registered.
    assert gained["register_calls"] == gained["slabs_made"]
    assert gained["register_calls_per_read"] == 0
    found = registering.get(["inside", "outside"], [ROW] * 2, torch.float32)
    assert_same(found[0], inside)
    assert_same(found[1], outside)


@pytest.mark.parametrize("value", [{"words": ["a", "b"], "number": 7}, b"\0" * 100_000, "text", None, [1.5, [], {}]])
@pytest.mark.parametrize("store", ["plain", "registering"])
def test_values_that_are_no_tensors_come_back_by_what_put_returned(
    store: str, value: object, request: pytest.FixtureRequest
) -> None:
    opened: tl.Store = request.getfixturevalue(store)
    meta = opened.put(["tensor", "packed"], [filled(ROW), value])
    assert meta[0] is None and meta[1] is not None
    with counted(opened) as gained:
        tensor, found = opened.get(["tensor", "packed"], [ROW, None], [torch.float32, None], meta)
    assert found == value and type(found) is type(value)
    assert tensor.shape == ROW
    assert gained["register_calls_per_read"] == 0


def test_a_value_replaces_the_one_before_also_where_it_has_another_size(plain: tl.Store) -> None:
    for shape in [(10,), ROW, (3, 5), ROW]:
        value = filled(shape)
        plain.put(["replaced"], [value])
        assert_same(plain.get(["replaced"], [shape], torch.float32)[0], value)


@pytest.mark.parametrize("registers", [False, True])
def test_replaces_by_another_size_do_not_fill_an_empty_cluster(registers: bool) -> None:
    # Over a pool in use memory is registered, and objects of several pieces go another way.
    options = {"pool": "store", "force": 1} if registers else {}
    with (
        cluster(segment="32MiB") as master,
        tl.open(master.url(local_buffer="16MiB", **options), max_bytes="32MiB") as store,
    ):
        for number in range(100):
            row = torch.full((MIB - 1000 * (number % 7),), number, dtype=torch.uint8)
            store.put(["same", f"new {number}"], [row, torch.ones(2)])
            store.put(["packed"], [{"row": row}])
        assert_same(store.get(["same"], [tuple(row.shape)], torch.uint8)[0], row)
        # Nothing else is there: all of it but the last values is free again.
        assert store.remove(["same", "packed", *(f"new {number}" for number in range(100))]) == 102
        assert allocated_bytes(master) == 0


@pytest.mark.freezes
def test_a_replace_by_the_same_size_removes_nothing(running: tuple[Master, SegmentOwner], plain: tl.Store) -> None:
    master, owner = running
    plain.put(["steady"], [filled(ROW)])
    with tl.open(master.url(local_buffer="16MiB"), max_bytes="32MiB") as writer:
        with paused(owner):
            writing = Running(lambda: writer.put(["steady"], [filled(ROW)]))
            assert not writing.ended_within(REACHED_SECONDS)
            # Being written, where a removed one would be missing.
            with pytest.raises(tl.TransferError, match="being written"):
                plain.get(["steady"], [ROW], torch.float32, timeout=10)
        writing.result()


def test_a_replace_that_finds_no_room_says_what_was_asked_and_what_is_gone() -> None:
    with cluster(segment="32MiB") as master, tl.open(master.url(local_buffer="16MiB"), max_bytes="64MiB") as store:
        store.put(["grows"], [torch.zeros(MIB)])
        asked = 40 * MIB
        with pytest.raises(tl.StoreFull, match=f"no room for {asked} bytes.*was removed first and is gone"):
            store.put(["grows"], [torch.zeros(asked, dtype=torch.uint8)])
        assert store.contains(["grows"]) == [False]
        with pytest.raises(tl.StoreFull, match=f"no room for {asked} bytes") as new:
            store.put(["new"], [torch.zeros(asked, dtype=torch.uint8)])
        assert "gone" not in str(new.value), "nothing was under the key"
        assert allocated_bytes(master) == 0


# ---- a cluster without room --------------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_without_any_segment_a_put_fails_after_a_bounded_back_off_and_names_segments() -> None:
    with cluster() as master, tl.open(master.url(local_buffer="16MiB"), max_bytes="32MiB") as store:
        started = time.monotonic()
        with counted(store) as gained, pytest.raises(tl.StoreFull, match="segment=0 everywhere") as caught:
            store.put(["homeless"], [filled((1000,))])
        assert BACK_OFF_SECONDS <= time.monotonic() - started < 5
        assert [(failure.key, failure.kind, failure.code) for failure in caught.value.failures] == [
            ("homeless", "full", -200)
        ]
        assert "4000 bytes" in str(caught.value)
        assert gained["retries"] == 3
        assert gained["engine_write_calls"] == 4
        assert gained["written_keys"] == gained["in_flight_bytes"] == 0


@pytest.fixture(scope="module")
def small() -> Iterator[Master]:
    """A cluster with room for 32 MiB."""
    with cluster(segment="32MiB", lease_ttl_ms=500) as master:
        yield master


@pytest.mark.alone
def test_a_segment_full_of_pinned_values_keeps_them_and_names_those_that_found_no_room(small: Master) -> None:
    url = small.url(local_buffer="16MiB", pin="hard")
    with tl.open(url, max_bytes="32MiB", namespace="pinned/") as store:
        values = {f"{index}": torch.full((MIB,), index, dtype=torch.uint8) for index in range(40)}
        started = time.monotonic()
        with pytest.raises(tl.StoreFull, match=f"{MIB} bytes") as caught:
            store.put(list(values), list(values.values()))
        assert BACK_OFF_SECONDS <= time.monotonic() - started < 5
        failed = {failure.key for failure in caught.value.failures}
        assert len(failed) == 8
        assert {(failure.kind, failure.code) for failure in caught.value.failures} == {("full", -200)}
        stored = [key for key in values if key not in failed]
        assert store.stats()["written_keys"] == len(stored)
        for key, found in zip(stored, store.get(stored, [(MIB,)] * len(stored), torch.uint8), strict=True):
            assert_same(found, values[key])
        assert store.clear() == len(stored)


def test_without_pins_eviction_makes_room_and_puts_go_on(small: Master) -> None:
    url = small.url(local_buffer="16MiB", pin="none")
    with tl.open(url, max_bytes="32MiB", namespace="unpinned/", retries=10) as store:
        count = 100
        for index in range(count):
            store.put([f"{index}"], [torch.full((MIB,), index, dtype=torch.uint8)])
        last = store.get([f"{count - 1}"], [(MIB,)], torch.uint8)[0]
        assert_same(last, torch.full((MIB,), count - 1, dtype=torch.uint8))
        there = store.contains([f"{index}" for index in range(count)])
        assert 0 < sum(there) <= 32
        assert not there[0]
        assert store.clear() == sum(there)


# ---- a key that is replaced while it is read ----------------------------------------------------------------------------------


@pytest.mark.freezes
def test_a_key_that_is_being_written_is_an_error_after_the_retries(
    running: tuple[Master, SegmentOwner], plain: tl.Store
) -> None:
    master, owner = running
    plain.put(["written"], [filled(ROW)])
    with tl.open(master.url(local_buffer="16MiB"), max_bytes="32MiB") as writer:
        value = filled(ROW)
        with paused(owner):
            writing = Running(lambda: writer.put(["written"], [value]))
            assert not writing.ended_within(REACHED_SECONDS)
            with counted(plain) as gained, pytest.raises(tl.TransferError, match="being written") as caught:
                plain.get(["written"], [ROW], torch.float32, timeout=10)
            assert [(failure.kind, failure.code) for failure in caught.value.failures] == [("transient", -703)]
            assert gained["retries"] == 3
            assert gained["engine_read_calls"] == 4
        writing.result()
        assert_same(plain.get(["written"], [ROW], torch.float32)[0], value)


@pytest.mark.freezes
def test_a_read_that_meets_a_write_gets_the_new_value_when_a_retry_comes_after_it(
    running: tuple[Master, SegmentOwner],
) -> None:
    master, owner = running
    url = master.url(local_buffer="16MiB")
    with tl.open(url, max_bytes="32MiB", retries=60) as reader, tl.open(url, max_bytes="32MiB") as writer:
        writer.put(["written"], [filled(ROW)])
        value = filled(ROW)
        with paused(owner):
            writing = Running(lambda: writer.put(["written"], [value]))
            assert not writing.ended_within(REACHED_SECONDS)
            read = Running(lambda: reader.get(["written"], [ROW], torch.float32))
            wait_until(lambda: reader.stats()["retries"] >= 2, "the read has met the write")
        assert_same(read.result()[0], value)
        writing.result()


def test_reads_beside_a_writer_bring_its_values_or_end_with_the_typed_error(
    running: tuple[Master, SegmentOwner], plain: tl.Store
) -> None:
    """A read may bring a mixture: replacing a key is not atomic on Mooncake. What it may not bring is any other byte."""
    values = [torch.full((MIB // 4,), float(number)) for number in range(4)]
    with tl.open(running[0].url(local_buffer="16MiB"), max_bytes="32MiB") as writer:
        writer.put(["busy"], [values[0]])
        ended = threading.Event()

        def write() -> int:
            puts = 0
            while not ended.is_set():
                writer.put(["busy"], [values[puts % 4]])
                puts += 1
            return puts

        writing = Running(write)
        try:
            outcomes = [read_busy(plain) for _ in range(40)]
        finally:
            ended.set()
        assert writing.result() > 1
        assert outcomes.count("read") + outcomes.count("refused") == 40
        assert_same(plain.get(["busy"], [(MIB // 4,)], torch.float32)[0], values[(writing.result() - 1) % 4])


def read_busy(store: tl.Store) -> str:
    try:
        (found,) = store.get(["busy"], [(MIB // 4,)], torch.float32)
    except tl.TransferError as error:
        assert [(failure.kind, failure.code) for failure in error.failures] == [("transient", -703)]
        return "refused"
    assert set(found.unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}
    return "read"


# ---- removing ------------------------------------------------------------------------------------------------------------------


def test_clear_without_a_namespace_is_refused_and_removes_nothing(plain: tl.Store) -> None:
    plain.put(["stays"], [filled((3,))])
    with pytest.raises(tl.ConfigError, match="open the store with a namespace"):
        plain.clear()
    assert plain.contains(["stays"]) == [True]


@pytest.mark.parametrize("namespace", ["run/7/", "a.b*[x]+(y)?^$|{2}\\/", "日本/"])
def test_clear_removes_exactly_the_keys_of_the_namespace(
    running: tuple[Master, SegmentOwner], plain: tl.Store, namespace: str
) -> None:
    # The first would match as a regular expression does, the others start with a part of it.
    others = ["acbbx+y/1", namespace[:-1], f" {namespace}1", "run/70/1", f"other {namespace}"]
    plain.put(others, [filled((2,))] * len(others))
    url = running[0].url(local_buffer="16MiB")
    with tl.open(url, max_bytes="16MiB", namespace=namespace) as store:
        keys = [f"{index}" for index in range(20)]
        store.put(keys, [filled((2,))] * 20)
        assert store.clear() == 20
        assert store.contains(keys) == [False] * 20
        assert store.clear() == 0
    assert plain.contains(others) == [True] * len(others)
    plain.remove(others)


@pytest.mark.parametrize("store", ["plain", "registering"])
def test_a_value_of_zero_bytes_takes_the_old_ones_place_and_is_there(
    store: str, request: pytest.FixtureRequest
) -> None:
    opened: tl.Store = request.getfixturevalue(store)
    keys = ["replaced", "kept", "new"]
    opened.put(keys[:2], [filled(ROW), filled(ROW)])
    opened.put(["replaced", "new"], [torch.empty(0), torch.empty(3, 0)])
    assert opened.contains(keys) == [True, True, True]
    opened.wait(keys, timeout=5)
    with pytest.raises(tl.SizeMismatch):
        opened.get(["replaced"], [ROW], torch.float32)
    with counted(opened) as gained:
        found = opened.get(["replaced", "new"], [(0,), (3, 0)], torch.float32)
    assert [tuple(value.shape) for value in found] == [(0,), (3, 0)]
    assert gained["engine_read_calls"] == 0
    assert opened.remove(keys) == 3
    assert opened.contains(keys) == [False] * 3


# ---- the store itself ------------------------------------------------------------------------------------------------------------


def test_a_pickled_store_opens_again_on_the_same_cluster(running: tuple[Master, SegmentOwner]) -> None:
    url = running[0].url(local_buffer="16MiB", connect_timeout=3)
    value = filled(ROW)
    with tl.open(url, max_bytes="16MiB", namespace="pickled/", readers=2) as store:
        store.put(["shared"], [value])
        copy: Any = pickle.loads(pickle.dumps(store))
        with copy:
            assert copy.url == url
            assert_same(copy.get(["shared"], [ROW], torch.float32)[0], value)
            assert copy.clear() == 1
        assert store.contains(["shared"]) == [False]
