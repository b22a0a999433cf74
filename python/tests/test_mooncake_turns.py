"""How many calls run on Mooncake over TCP at a time: calls of small objects as many as there are cores, calls of large ones one."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from mooncake_rig import cluster

import tensorlease as tl

pytestmark = pytest.mark.alone

THREADS = 4
#: How long a call stays for one more to meet it, were that let.
CALL_SECONDS = 0.05
#: How long it stays for those that must meet it. Calls that take half a second count as hanging, and nobody waits for those.
MEET_SECONDS = 0.4
KIB = 1024
SMALL, LARGE = 64 * KIB, 1024 * KIB


class Meetings:
    """How many calls run at once, by way: "read" or "write"."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: Counter[str] = Counter()
        self.expected: dict[str, int] = {"read": 1, "write": 1}
        self.most: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    @contextmanager
    def call(self, way: str) -> Iterator[None]:
        """A transfer, and a slow one."""
        with self._changed:
            self.calls[way] += 1
            self._running[way] += 1
            self.most[way] = max(self.most[way], self._running[way])
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most[way] >= self.expected[way], MEET_SECONDS)
        time.sleep(CALL_SECONDS)
        yield
        with self._changed:
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


def most_at_once(store: tl.Store, meetings: Meetings, size: int, expected: dict[str, int]) -> dict[str, int]:
    """Threads that write and read objects of one size at the same time; the most calls that met, by way."""
    meetings.most.clear()
    meetings.expected = expected
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


def cores_by_quota() -> float:
    """How much of the processors the control groups leave this process."""
    group = Path("/sys/fs/cgroup", *Path("/proc/self/cgroup").read_text().rpartition(":")[2].split("/"), "cpu.max")
    files = [folder / "cpu.max" for folder in group.parents if folder.is_relative_to("/sys/fs/cgroup")]
    limits = [file.read_text().split() for file in files if file.exists()]
    return min((int(quota) / int(period) for quota, period in limits if quota != "max"), default=math.inf)


@pytest.mark.parametrize("cores", [1, 2])
def test_as_many_calls_of_small_objects_run_at_a_time_as_there_are_cores(cores: int) -> None:
    usable = sorted(os.sched_getaffinity(0))
    there_are = min(len(usable), cores_by_quota())
    if there_are < cores:
        pytest.skip(f"needs {cores} cores, this process may use {there_are:.1f}")
    small, large = {"read": cores, "write": cores}, {"read": 1, "write": 1}
    with cluster(segment="256MiB") as master, opened_on(set(usable[:cores]), master.url()) as (store, meetings):
        assert most_at_once(store, meetings, SMALL, small) == small
        assert most_at_once(store, meetings, LARGE, large) == large


def test_values_that_are_put_together_take_turns_and_go_in_one_call() -> None:
    core = min(os.sched_getaffinity(0))
    values = [{"row": np.arange(row, row + 2048)} for row in range(64)]
    with cluster(segment="256MiB") as master, opened_on({core}, master.url()) as (store, meetings):

        def write(thread: int) -> None:
            store.put([f"{thread}/{row}" for row in range(len(values))], values)

        meetings.calls.clear()
        before = store.stats()["engine_write_calls"]
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(write, range(THREADS)))
        assert meetings.most["write"] == 1
        assert meetings.calls["write"] == store.stats()["engine_write_calls"] - before
        keys = [f"0/{row}" for row in range(len(values))]
        metas = store.put(keys, values)
        for read, value in zip(store.get(keys, [None] * 64, [None] * 64, metas), values, strict=True):
            assert np.array_equal(read["row"], value["row"])


def test_writes_into_a_segment_of_this_process_are_not_held_back() -> None:
    core = min(os.sched_getaffinity(0))
    # Objects of this size are read by Mooncake, wherever they lie.
    read_by_mooncake = 8 * KIB
    small, large = {"read": 1, "write": THREADS}, {"read": 1, "write": 2}
    with cluster() as master, opened_on({core}, master.url(segment="256MiB")) as (store, meetings):
        assert most_at_once(store, meetings, read_by_mooncake, small) == small
        assert most_at_once(store, meetings, LARGE, large)["write"] == 2
