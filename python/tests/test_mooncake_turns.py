"""How many calls run on Mooncake over TCP at a time: calls of small objects as many as there are cores, calls of large ones one."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from mooncake_rig import cluster

import tensorlease as tl

THREADS = 4
#: Long enough for the calls of all threads to meet, were they let.
CALL_SECONDS = 0.05
KIB = 1024
SMALL, LARGE = 64 * KIB, 1024 * KIB


class Meetings:
    """How many calls run at once, by way: "read" or "write"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    @contextmanager
    def call(self, way: str) -> Iterator[None]:
        """A transfer, and a slow one."""
        with self._lock:
            self._running[way] += 1
            self.most[way] = max(self.most[way], self._running[way])
        time.sleep(CALL_SECONDS)
        yield
        with self._lock:
            self._running[way] -= 1


@contextmanager
def watched() -> Iterator[Meetings]:
    """Clients of Mooncake that are made in this process meanwhile tell of their transfers."""
    import mooncake.store

    meetings = Meetings()

    class Watched(mooncake.store.MooncakeDistributedStore):  # type: ignore[misc]
        def batch_get_into(self, *arguments: Any) -> Any:
            with meetings.call("read"):
                return super().batch_get_into(*arguments)

        def batch_upsert_from(self, *arguments: Any) -> Any:
            with meetings.call("write"):
                return super().batch_upsert_from(*arguments)

    with mock.patch.object(mooncake.store, "MooncakeDistributedStore", Watched):
        yield meetings


@contextmanager
def opened_on(cores: set[int], url: str) -> Iterator[tuple[tl.Store, Meetings]]:
    """A store that finds the process confined to those cores."""
    allowed = os.sched_getaffinity(0)
    with watched() as meetings:
        os.sched_setaffinity(0, cores)
        try:
            store = tl.open(url, max_bytes="256MiB", readers=THREADS)
        finally:
            os.sched_setaffinity(0, allowed)
        with store:
            yield store, meetings


def most_at_once(store: tl.Store, meetings: Meetings, size: int) -> dict[str, int]:
    """Threads that write and read objects of one size at the same time; the most calls that met, by way."""
    meetings.most.clear()
    value = torch.arange(size, dtype=torch.int64).to(torch.uint8)

    def write_and_read(thread: int) -> None:
        keys = [f"{size}/{thread}/{row}" for row in range(4)]
        for _ in range(3):
            store.put(keys, [value] * len(keys))
            for read in store.get(keys, [[size]] * len(keys), [torch.uint8] * len(keys), delivery="leased"):
                assert torch.equal(read, value)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(write_and_read, range(THREADS)))
    return dict(meetings.most)


@pytest.mark.parametrize("cores", [1, 2])
def test_as_many_calls_of_small_objects_run_at_a_time_as_there_are_cores(cores: int) -> None:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < cores:
        pytest.skip(f"needs {cores} cores, this process may use {len(usable)}")
    with cluster(segment="256MiB") as master, opened_on(set(usable[:cores]), master.url()) as (store, meetings):
        assert most_at_once(store, meetings, SMALL) == {"read": cores, "write": cores}
        assert most_at_once(store, meetings, LARGE) == {"read": 1, "write": 1}


def test_writes_into_a_segment_of_this_process_are_not_held_back() -> None:
    core = min(os.sched_getaffinity(0))
    # Objects of this size are read by Mooncake, wherever they lie.
    read_by_mooncake = 8 * KIB
    with cluster() as master, opened_on({core}, master.url(segment="256MiB")) as (store, meetings):
        assert most_at_once(store, meetings, read_by_mooncake) == {"read": 1, "write": THREADS}
        assert most_at_once(store, meetings, LARGE)["write"] == 2
