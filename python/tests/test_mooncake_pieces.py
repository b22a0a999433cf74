"""Values of several pieces on a real Mooncake over TCP: put together, many in a call, and kept where a call may still read them."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from mooncake_rig import cluster

import tensorlease as tl
from bench.cluster import Master

KIB, MIB = 1024, 1 << 20
#: A transfer that fails after 30 s may still go on.
LATE_SECONDS = 31.0
TRANSFER_FAIL = -800
LEASE_EXPIRED = -707


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with cluster(segment="256MiB") as running:
        yield running


def value(size: int, number: int = 0) -> dict[str, Any]:
    """Packed, it is a head, and an array that is not copied into it."""
    return {"number": number, "array": np.arange(number, number + size // 8)}


@pytest.mark.parametrize("sizes", [[64 * KIB] * 200, [KIB] * 500, [6 * MIB, 64 * KIB, 5 * MIB, 9 * MIB, KIB]], ids=str)
def test_values_of_several_pieces_come_back_whatever_shares_a_call_with_them(master: Master, sizes: list[int]) -> None:
    values: list[Any] = [value(size, number) for number, size in enumerate(sizes)]
    # One piece, no piece, and plain memory between them.
    values[1:1] = ["text", np.empty(0), b"", np.full(70_000, 7.0)]
    keys = [f"{len(values)}/{number}" for number in range(len(values))]
    with tl.open(master.url(), max_bytes="64MiB") as store:
        metas = store.put(keys, values)
        arrays = [isinstance(one, np.ndarray) for one in values]
        shapes = [one.shape if array else None for one, array in zip(values, arrays, strict=True)]
        dtypes = [one.dtype if array else None for one, array in zip(values, arrays, strict=True)]
        for found, expected in zip(store.get(keys, shapes, dtypes, metas), values, strict=True):
            if isinstance(expected, dict):
                assert found["number"] == expected["number"]
                assert np.array_equal(found["array"], expected["array"])
            else:
                assert np.array_equal(found, expected) if isinstance(expected, np.ndarray) else found == expected
        store.remove(keys)


@pytest.mark.timeout(120)
def test_what_was_put_together_stays_while_a_call_that_was_given_up_may_read_it(master: Master) -> None:
    import mooncake.store

    late: list[tuple[int, bytes]] = []

    class FirstIsLate(mooncake.store.MooncakeDistributedStore):  # type: ignore[misc]
        def batch_upsert_from(self, keys: list[str], at: list[int], lens: list[int], config: object) -> Any:
            if late:
                return super().batch_upsert_from(keys, at, lens, config)
            late.append((at[0], ctypes.string_at(at[0], lens[0])))
            time.sleep(LATE_SECONDS)
            return [TRANSFER_FAIL] * len(keys)

    with (
        mock.patch.object(mooncake.store, "MooncakeDistributedStore", FirstIsLate),
        tl.open(master.url(), max_bytes="32MiB", retries=0) as store,
    ):
        with pytest.raises(tl.TransferError) as caught:
            store.put(["late"], [value(MIB)])
        assert [(failure.kind, failure.code) for failure in caught.value.failures] == [
            ("may_still_write", TRANSFER_FAIL)
        ]
        # What it was put together from, and the memory in which it was.
        assert store.stats()["quarantined_bytes"] >= 2 * MIB
        for number in range(20):
            store.put(["next"], [value(MIB, number)])
        [(address, sent)] = late
        assert still_at(address, len(sent)) == sent
    assert store.stats()["quarantined_bytes"] == 0


@pytest.mark.timeout(180)
def test_memory_of_a_part_that_may_still_be_written_is_kept_also_where_it_does_not_unregister(master: Master) -> None:
    import mooncake.store

    class Late(mooncake.store.MooncakeDistributedStore):  # type: ignore[misc]
        def batch_get_into(self, keys: list[str], *_arguments: object) -> Any:
            """As a whole it takes too long, so that it is read in parts."""
            return [LEASE_EXPIRED] * len(keys)

        def get_into_ranges(self, *_arguments: object) -> Any:
            time.sleep(LATE_SECONDS)
            return [[[TRANSFER_FAIL]]]

        def unregister_buffer(self, address: int) -> int:
            assert super().unregister_buffer(address) == 0
            raise RuntimeError("not unregistered")

    with (
        mock.patch.object(mooncake.store, "MooncakeDistributedStore", Late),
        tl.open(master.url(), max_bytes="64MiB", retries=1) as store,
    ):
        store.put(["large"], [np.zeros(10 * MIB, np.uint8)])
        with pytest.raises(tl.TransferError, match="not unregistered") as caught:
            store.get(["large"], [(10 * MIB,)], [np.uint8])
        assert {(failure.kind, failure.code) for failure in caught.value.failures} == {
            ("may_still_write", TRANSFER_FAIL)
        }
        assert store.stats()["quarantined_bytes"] > 0
        store.remove(["large"])


def still_at(address: int, length: int) -> bytes | None:
    """The bytes there; None: nothing is mapped there any more."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        try:
            return os.pread(memory.fileno(), length, address)
        except OSError:
            return None
