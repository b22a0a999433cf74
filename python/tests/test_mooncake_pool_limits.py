"""`pool=store` at its limits: budget and region cap of Mooncake's BufferPool, its hidden overflow, many readers at once.

Leases are held for as long as a test needs by making the owner of the segment stand still: the reads that hold them hang meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from mooncake_rig import Running, counted, owned_cluster, paused, wait_until
from tensors import assert_same, filled

import tensorlease as tl
from bench.cluster import Master, SegmentOwner

MIB = 1 << 20
#: What Mooncake's pool says when its budget or its region cap is used up.
EXHAUSTED = "buffer pool is exhausted"


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Master, SegmentOwner]]:
    with owned_cluster("128MiB") as found:
        yield found


def open_pooled(master: Master, readers: int, options: dict[str, object], **settings: Any) -> tl.Store:
    url = master.url(**{"local_buffer": "16MiB", "pool": "store", "force": 1} | options)
    return tl.open(url, **{"max_bytes": "64MiB", "readers": readers} | settings)


def put_bytes(store: tl.Store, sizes: list[int]) -> dict[str, torch.Tensor]:
    """Values of so many bytes each, by key."""
    values = {f"{index} of {size} bytes": filled((size,), torch.uint8) for index, size in enumerate(sizes)}
    store.put(list(values), list(values.values()))
    return values


def reading(store: tl.Store, value: tuple[str, torch.Tensor]) -> Running:
    """A read of one value in a thread of its own."""
    key, tensor = value
    return Running(lambda: store.get([key], [tensor.shape], torch.uint8))


def assert_read(read: Running, value: tuple[str, torch.Tensor]) -> None:
    assert_same(read.result()[0], value[1])


@pytest.mark.freezes
def test_reads_past_the_budget_are_registered_for_the_call_and_the_warning_names_the_cause(
    running: tuple[Master, SegmentOwner], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tensorlease")
    master, owner = running
    with open_pooled(master, 4, {"local_buffer": "4MiB", "share": "full"}) as store:
        first, *others = put_bytes(store, [3 * MIB, 3 * MIB, 2 * MIB]).items()
        with paused(owner):
            holding = reading(store, first)
            wait_until(lambda: store.stats()["loans"] == 1, "the first read holds its lease")
            refused = [reading(store, value) for value in others]
            wait_until(lambda: store.stats()["register_calls_per_read"] == 2, "the others do without")
            assert store.stats()["loans"] == 1
        for read, value in zip([holding, *refused], [first, *others], strict=True):
            assert_read(read, value)
        stats = store.stats()
        assert stats["fallback_no_loan"] == stats["fallback_reads"] == stats["registered_reads"] == 2
        assert stats["overflow_loans"] == stats["retries"] == 0
        # It is back, and so is the way through it.
        with counted(store) as gained:
            assert_read(reading(store, first), first)
        assert (gained["loans"], gained["fallback_reads"]) == (1, 0)
    (warning,) = caplog.records
    assert EXHAUSTED in warning.getMessage() and "local_buffer" in warning.getMessage()


@pytest.mark.freezes
def test_leases_of_reads_that_were_given_up_count_against_the_region_cap(
    running: tuple[Master, SegmentOwner], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tensorlease")
    master, owner = running
    with open_pooled(master, 2, {}) as store:
        value, *_ = put_bytes(store, [4096]).items()
        with paused(owner):
            for _ in range(2):
                with pytest.raises(tl.Timeout):
                    store.get([value[0]], [value[1].shape], torch.uint8, timeout=0.3)
            assert store.stats()["loans"] == store.stats()["abandoned_running_calls"] == 2
            third = reading(store, value)
            wait_until(lambda: store.stats()["fallback_no_loan"] == 1, "both regions are taken")
            fourth = reading(store, value)
            wait_until(lambda: store.stats()["fallback_no_loan"] == 2, "both regions are taken still")
        assert_read(third, value)
        assert_read(fourth, value)
        wait_until(lambda: store.stats()["abandoned_running_calls"] == 0, "the reads that were given up have returned")
        with counted(store) as gained:
            assert_read(reading(store, value), value)
        assert (gained["loans"], gained["fallback_reads"]) == (1, 0)
        assert store.stats()["warnings_suppressed"] == 1
    (warning,) = caplog.records
    assert EXHAUSTED in warning.getMessage()


@pytest.mark.freezes
def test_strict_refuses_a_read_past_the_region_cap_with_the_pools_own_words(
    running: tuple[Master, SegmentOwner],
) -> None:
    master, owner = running
    with open_pooled(master, 1, {}, strict=True) as store:
        value, *_ = put_bytes(store, [4096]).items()
        with paused(owner):
            with pytest.raises(tl.Timeout):
                store.get([value[0]], [value[1].shape], torch.uint8, timeout=0.3)
            with pytest.raises(tl.FallbackError, match=EXHAUSTED):
                store.get([value[0]], [value[1].shape], torch.uint8, timeout=10)
        assert store.stats()["fallback_reads"] == store.stats()["register_calls_per_read"] == 0


#: Three of them fit into 16 MiB, but not once the allocator has rounded each up to 5.5 MiB: the pool then allocates and
#: registers the third on its own, and says nothing.
ROUNDED_UP = 5_500_000


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.freezes
def test_a_lease_that_the_pool_allocates_on_its_own_is_seen(
    running: tuple[Master, SegmentOwner], strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tensorlease")
    master, owner = running
    with open_pooled(master, 3, {"share": "quarter"}, strict=strict) as store:
        values = list(put_bytes(store, [ROUNDED_UP] * 3).items())
        with paused(owner):
            reads = [reading(store, values[0]), reading(store, values[1])]
            wait_until(lambda: store.stats()["loans"] == 2, "two leases are out")
            assert store.stats()["overflow_loans"] == 0
            third = reading(store, values[2])
            wait_until(lambda: store.stats()["overflow_loans"] == 1, "the third is no part of the local buffer")
        for read, value in zip(reads, values, strict=False):
            assert_read(read, value)
        if strict:
            with pytest.raises(tl.FallbackError, match="allocated and registered just for this read"):
                third.result()
        else:
            assert_read(third, values[2])
        assert store.stats()["fallback_no_loan"] == 0
    (warning,) = caplog.records
    assert "allocated and registered just for this read" in warning.getMessage()


def test_concurrent_reads_share_budget_and_region_cap(running: tuple[Master, SegmentOwner]) -> None:
    with open_pooled(running[0], 4, {}) as store, ThreadPoolExecutor(12) as threads:
        values = put_bytes(store, [MIB // 2 + 64 * index for index in range(12)])

        def read(start: int) -> None:
            wanted = list(values.items())[start:] + list(values.items())[:start]
            found = store.get([key for key, _ in wanted], [value.shape for _, value in wanted], torch.uint8)
            for tensor, (_, value) in zip(found, wanted, strict=True):
                assert_same(tensor, value)

        list(threads.map(read, list(range(12)) * 2))
        stats = store.stats()
        assert 24 < stats["loans"] == stats["engine_read_calls"]
        assert stats["fallback_reads"] == stats["overflow_loans"] == stats["register_calls_per_read"] == 0
