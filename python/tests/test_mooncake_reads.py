"""Reads from a real Mooncake over TCP: what its own batch calls would get wrong, and reads of many keys."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from mooncake_rig import Running, cluster, counted, owned_cluster, paused, wait_until
from tensors import DTYPES, assert_same, filled

import tensorlease as tl
from bench.cluster import Master, SegmentOwner

DELIVERIES = ["leased", "copied", "register-per-call"]
ROW = (1000,)
ROW_BYTES = 4000


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with cluster(segment="256MiB") as running:
        yield running


@pytest.fixture(scope="module")
def plain(master: Master) -> Iterator[tl.Store]:
    with tl.open(master.url(local_buffer="16MiB"), max_bytes="128MiB") as store:
        yield store


@pytest.fixture(scope="module")
def pooled(master: Master) -> Iterator[tl.Store]:
    url = master.url(local_buffer="16MiB", pool="store", force=1)
    with tl.open(url, max_bytes="128MiB") as store:
        yield store


@pytest.fixture(params=["plain", "pooled"])
def store(request: pytest.FixtureRequest) -> tl.Store:
    found: tl.Store = request.getfixturevalue(request.param)
    return found


# ---- one key three times (Mooncake reports success and leaves the first two destinations as they are) ---------------------------


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_key_asked_for_three_times_is_fetched_once_and_delivered_three_times(store: tl.Store, delivery: str) -> None:
    same, other = filled(ROW), filled((7,))
    store.put(["same", "other"], [same, other])
    with counted(store) as gained:
        out = store.get(["same", "other", "same", "same"], [ROW, (7,), ROW, ROW], torch.float32, delivery=delivery)
    for found, expected in zip(out, [same, other, same, same], strict=True):
        assert_same(found, expected)
    assert len({tensor.data_ptr() for tensor in out}) == 4
    assert gained["duplicate_keys"] == 2
    out[0].zero_()
    assert_same(out[2], same)


def test_a_key_that_stands_twice_in_a_batch_fills_both_rows_and_both_destinations(store: tl.Store) -> None:
    value = filled(ROW)
    store.put(["twice"], [value])
    batch = store.get_batch(["twice", "twice"], ROW, torch.float32)
    assert_same(batch, torch.stack([value, value]))
    destinations = [torch.zeros(ROW), torch.zeros(ROW)]
    store.get_into(["twice", "twice"], destinations)
    for destination in destinations:
        assert_same(destination, value)


# ---- objects of another size (Mooncake takes a shorter one for success) ----------------------------------------------------------


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("asked", [ROW[0] - 1, ROW[0] + 1], ids=["longer than asked", "shorter than asked"])
def test_an_object_of_another_size_is_a_size_mismatch_that_names_both(
    store: tl.Store, asked: int, delivery: str
) -> None:
    store.put(["sized", "right"], [filled(ROW), filled(ROW)])
    with counted(store) as gained, pytest.raises(tl.SizeMismatch) as caught:
        store.get(["right", "sized"], [ROW, (asked,)], torch.float32, delivery=delivery)
    assert str(ROW_BYTES) in str(caught.value) and str(4 * asked) in str(caught.value)
    assert [(failure.key, failure.kind) for failure in caught.value.failures] == [("sized", "mismatch")]
    assert gained["retries"] == gained["read_keys"] == gained["leased_bytes"] == gained["in_flight_bytes"] == 0


@pytest.mark.parametrize("asked", [ROW[0] - 1, ROW[0] + 1], ids=["longer than asked", "shorter than asked"])
def test_an_object_of_another_size_leaves_the_destination_as_it_was(store: tl.Store, asked: int) -> None:
    store.put(["sized"], [filled(ROW)])
    destination = torch.full((asked,), 7.0)
    with pytest.raises(tl.SizeMismatch):
        store.get_into(["sized"], [destination])
    assert_same(destination, torch.full((asked,), 7.0))


# ---- missing keys -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_missing_keys_among_present_ones_fail_within_one_call(store: tl.Store, delivery: str) -> None:
    store.put(["there", "there too"], [filled(ROW), filled(ROW)])
    keys = ["there", "nowhere", "there too", "nowhere either"]
    with counted(store) as gained, pytest.raises(tl.KeyNotFound) as caught:
        store.get(keys, [ROW] * 4, torch.float32, delivery=delivery)
    assert {failure.key for failure in caught.value.failures} == {"nowhere", "nowhere either"}
    assert {(failure.kind, failure.code) for failure in caught.value.failures} == {("not_found", -704)}
    assert gained["retries"] == 0
    assert gained["engine_read_calls"] == 1
    assert gained["leased_bytes"] == gained["in_flight_bytes"] == gained["read_keys"] == 0


def test_contains_wait_and_remove_tell_present_keys_from_missing_ones(plain: tl.Store) -> None:
    plain.put(["here"], [filled((3,))])
    assert plain.contains(["here", "gone", "here"]) == [True, False, True]
    for timeout in [0, 0.3]:
        plain.wait(["here"], timeout=timeout)
        with pytest.raises(tl.Timeout, match="gone") as caught:
            plain.wait(["here", "gone"], timeout=timeout)
        assert [failure.key for failure in caught.value.failures] == ["gone"]
    # The reads above hold a lease of Mooncake's, which does not keep a key from being removed.
    assert plain.remove(["here", "gone"]) == 1
    assert plain.contains(["here"]) == [False]


# ---- values of zero bytes (Mooncake refuses them) ---------------------------------------------------------------------------------


def test_values_of_zero_bytes_never_reach_mooncake_and_come_back_from_their_spec(store: tl.Store) -> None:
    keys, values = ["none", "some", "none in two"], [torch.empty(0), filled((4,)), torch.empty(2, 0)]
    with counted(store) as written:
        store.put(keys, values)
    assert written["engine_write_calls"] == 1
    with counted(store) as gained:
        out = store.get(keys, [(0,), (4,), (2, 0)], torch.float32)
    for found, expected in zip(out, values, strict=True):
        assert_same(found, expected)
    assert gained["engine_read_calls"] == 1
    with counted(store) as gained:
        assert_same(store.get(["none"], [(0,)], torch.float32)[0], torch.empty(0))
    assert gained["engine_read_calls"] == 0
    assert store.remove(["none", "some", "none in two"]) == 3


# ---- values of every kind, and many ----------------------------------------------------------------------------------------------


def test_every_dtype_and_shape_comes_back_bit_for_bit(store: tl.Store) -> None:
    shapes = [(), (3,), (5, 7), (0, 2), (1, 1, 1, 1, 3)]
    wanted = [(shape, dtype) for dtype in DTYPES for shape in shapes]
    keys, values = [f"kind {index}" for index in range(len(wanted))], [filled(*spec) for spec in wanted]
    store.put(keys, values)
    out = store.get(keys, [shape for shape, _ in wanted], [dtype for _, dtype in wanted])
    for found, expected in zip(out, values, strict=True):
        assert_same(found, expected)


def test_5000_keys_are_one_read_of_calls_that_a_peer_can_queue(plain: tl.Store) -> None:
    count = 5000
    keys, values = [f"many {index}" for index in range(count)], [torch.arange(64) + index for index in range(count)]
    plain.put(keys, values)
    with counted(plain) as gained:
        out = plain.get(keys, [(64,)] * count, torch.int64)
    assert all(torch.equal(found, expected) for found, expected in zip(out, values, strict=True))
    # At most 1,024 keys a call.
    assert gained["engine_read_calls"] == 5
    assert gained["retries"] == 0
    plain.remove(keys)


# ---- a read lease of 1 s, the segment in another process -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_lease() -> Iterator[tuple[Master, SegmentOwner]]:
    with owned_cluster("2560MiB", lease_ttl_ms=1000) as running:
        yield running


# Most of it is the segment's first use of its memory.
@pytest.mark.timeout(600)
@pytest.mark.alone
def test_8000_keys_are_read_although_the_read_lease_is_shorter_than_the_read(
    short_lease: tuple[Master, SegmentOwner],
) -> None:
    count, items, piece = 8000, 65536, 250
    pattern = torch.arange(items, dtype=torch.float32)
    rows = pattern.repeat(piece, 1)
    with tl.open(short_lease[0].url(local_buffer="16MiB"), max_bytes="2560MiB") as store:
        for start in range(0, count, piece):
            rows[:, 0] = torch.arange(start, start + piece)
            store.put([f"{index}" for index in range(start, start + piece)], list(rows))
        out = store.get([f"{index}" for index in range(count)], [(items,)] * count, torch.float32)
        assert [int(found[0]) for found in out] == list(range(count))
        # numpy compares in one thread: torch's would wait for each other 8,000 times.
        rest = pattern.numpy()[1:]
        assert all(np.array_equal(found.numpy()[1:], rest) for found in out)
        assert store.stats()["leased_reads"] == count
        del out
        assert store.stats()["leased_bytes"] == 0
        store.remove([f"{index}" for index in range(count)])


@pytest.mark.parametrize("size, calls", [(4096, 2), (16 << 20, 3)], ids=["small: as a whole", "large: in halves"])
@pytest.mark.freezes
def test_a_transfer_that_outlasts_the_read_lease_is_made_again(
    short_lease: tuple[Master, SegmentOwner], size: int, calls: int
) -> None:
    master, owner = short_lease
    with tl.open(master.url(local_buffer="16MiB"), max_bytes="64MiB") as store:
        value = filled((size,), torch.uint8)
        store.put(["slow"], [value])
        with paused(owner):
            read = Running(lambda: store.get(["slow"], [(size,)], torch.uint8))
            wait_until(lambda: store.stats()["engine_read_calls"] > 0, "the read has begun")
            # Past the lease of 1 s.
            assert not read.ended_within(1.5)
        assert_same(read.result()[0], value)
        stats = store.stats()
        assert (stats["retries"], stats["engine_read_calls"], stats["quarantined_bytes"]) == (1, calls, 0)


@pytest.mark.freezes
def test_a_range_that_outlasts_the_read_lease_of_a_removed_key_is_not_delivered(
    short_lease: tuple[Master, SegmentOwner],
) -> None:
    """Mooncake checks the lease of whole objects alone."""
    master, owner = short_lease
    # Larger than a share, so that the read goes in two ranges, one per reader.
    with (
        tl.open(master.url(local_buffer="8MiB", pool="store", force=1), max_bytes="32MiB", readers=2) as reader,
        tl.open(master.url(local_buffer="4MiB"), max_bytes="32MiB") as other,
    ):
        value = filled((3 << 20,), torch.uint8)
        reader.put(["removed"], [value])
        destination = torch.zeros_like(value)
        reader.get_into(["removed"], [destination])
        assert_same(destination, value)
        with paused(owner):
            before = reader.stats()["engine_read_calls"]
            read = Running(lambda: reader.get_into(["removed"], [destination]))
            wait_until(lambda: reader.stats()["engine_read_calls"] == before + 2, "the read has begun")
            assert not read.ended_within(1.5)
            # Its memory may hold another object from now on.
            assert other.remove(["removed"]) == 1
        with pytest.raises(tl.KeyNotFound):
            read.result()
