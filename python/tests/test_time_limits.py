"""No call outlives its timeout, whatever the daemon or the engine do while memory is made or registered."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from host_rig import Served, eventually, place, served

import tensorlease as tl
from bench.cluster import stop_process

pytestmark = pytest.mark.alone

KIB = 1 << 10
MIB = 1 << 20
TIMEOUT = 0.3
#: What a call may take beyond that.
SLACK = 0.5

#: Reads that need memory of the arena: how many values of how many bytes.
READS = [(1, MIB), (256, 64 * KIB), (4096, 64 * KIB)]


@pytest.fixture
def daemon() -> Iterator[Served]:
    with place() as folder, served(folder / "d.sock", "--max-bytes", "1GiB") as daemon:
        yield daemon


def ended(call: Callable[[], Any]) -> float:
    """Seconds that a call took which can't be served in time. The best of three: this machine may be busy with other things."""
    took = []
    for _ in range(3):
        started = time.monotonic()
        with pytest.raises(tl.Timeout):
            call()
        took.append(time.monotonic() - started)
    return min(took)


def values(count: int, size: int) -> tuple[list[str], list[np.ndarray[Any, Any]]]:
    return [f"{size}-{index}" for index in range(count)], [np.full(size, 7, dtype=np.uint8)] * count


@pytest.mark.parametrize(("count", "size"), READS)
def test_a_read_that_needs_memory_of_a_stopped_daemon_ends_in_time(daemon: Served, count: int, size: int) -> None:
    keys, written = values(count, size)
    with tl.open(daemon.url, max_bytes="512MiB") as store:
        store.put(keys, written)
        stop_process(daemon.process)
        try:
            shapes, dtypes = [(size,)] * count, [np.uint8] * count
            took = ended(lambda: store.get(keys, shapes, dtypes, timeout=TIMEOUT))
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        assert took < TIMEOUT + SLACK
        assert all((value == 7).all() for value in store.get(keys, shapes, dtypes))
        assert store.stats()["fallback_reads"] == 0


def test_other_calls_that_need_memory_of_a_stopped_daemon_end_in_time_too(daemon: Served) -> None:
    keys, written = values(256, 64 * KIB)
    with tl.open(daemon.url, max_bytes="512MiB", call_timeout=TIMEOUT) as store:
        store.put(keys, written, timeout=10)
        stop_process(daemon.process)
        try:
            for call in (
                lambda: store.put(["new"], [np.zeros(40 * MIB, np.uint8)]),
                lambda: store.get_batch(keys, (64 * KIB,), np.uint8),
                lambda: store.empty((MIB,), np.uint8),
            ):
                assert ended(call) < TIMEOUT + SLACK
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        eventually("memory of the daemon's", lambda: has_room(store))


def has_room(store: tl.Store) -> bool:
    try:
        return bool(store.empty((MIB,), np.uint8).nbytes == MIB)
    except tl.Timeout:
        return False


#: A registration that hangs: the second one, of the slab that these reads need beside the one made at open.
HANGING = "embedded://?capacity=1GiB&registration=none&faults=hang:5s:call2"


@pytest.mark.parametrize(("count", "size"), [(1, 80 * MIB), (1500, 64 * KIB)])
def test_a_registration_that_hangs_delays_nobody_past_their_timeout(count: int, size: int) -> None:
    keys, written = values(count, size)
    with tl.open(HANGING, max_bytes="384MiB") as store:
        store.put([*keys, "small"], [*written, np.full(64 * KIB, 3, dtype=np.uint8)])
        shapes, dtypes = [(size,)] * count, [np.uint8] * count
        started = time.monotonic()
        took = ended(lambda: store.get(keys, shapes, dtypes, timeout=TIMEOUT))
        assert took < TIMEOUT + SLACK
        # What needs no other slab goes on meanwhile.
        assert (store.get(["small"], [(64 * KIB,)], [np.uint8])[0] == 3).all()
        assert time.monotonic() - started < 5, "it was over before the registration was"
        # It comes in the end, and nothing was lost.
        assert all((value == 7).all() for value in store.get(keys, shapes, dtypes, timeout=20))
        assert store.stats()["fallback_reads"] == 0
        assert store.stats()["slabs_made"] == 2


def test_an_interrupt_ends_the_wait_for_a_registration() -> None:
    with tl.open(HANGING, max_bytes="384MiB") as store:
        store.put(["large"], [np.zeros(80 * MIB, dtype=np.uint8)])
        started = time.monotonic()
        threading.Timer(TIMEOUT, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            store.get(["large"])
        assert time.monotonic() - started < 4


def test_an_interrupt_ends_an_open_that_waits_for_its_first_memory() -> None:
    started = time.monotonic()
    threading.Timer(TIMEOUT, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        tl.open("embedded://?capacity=64MiB&faults=hang:5s", max_bytes="64MiB")
    assert time.monotonic() - started < 4


def test_a_wait_for_keys_of_a_stopped_daemon_ends_in_time(daemon: Served) -> None:
    with tl.open(daemon.url, max_bytes="64MiB") as store:
        stop_process(daemon.process)
        try:
            for timeout in (0, TIMEOUT):
                assert ended(lambda timeout=timeout: store.wait(["never"], timeout=timeout)) < timeout + SLACK
                assert (
                    ended(lambda timeout=timeout: asyncio.run(store.await_keys(["never"], timeout))) < timeout + SLACK
                )
        finally:
            daemon.process.send_signal(signal.SIGCONT)
