"""What the tests on a real Mooncake share: a cluster on loopback, or a reason why there is none."""

from __future__ import annotations

import os
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import tensorlease as tl
from bench.cluster import Master, SegmentOwner
from tensorlease.mooncake_master import master_binary

#: How long a condition may take that another process brings about.
PATIENCE_SECONDS = 20.0


def require_mooncake() -> None:
    """Skips the test where Mooncake can't be had, and says why; in CI that is a failure."""
    try:
        master_binary()
        import mooncake.store  # noqa: F401 - the import is the question
    except (tl.ConfigError, ImportError) as error:
        reason = f"no Mooncake here: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@contextmanager
def cluster(*, segment: str | None = None, lease_ttl_ms: int = 10_000, **master: Any) -> Iterator[Master]:
    """A master, and with `segment` a process that owns one of that size."""
    require_mooncake()
    with Master(lease_ttl_ms=lease_ttl_ms, **master) as running:
        if segment is None:
            yield running
            return
        with owner_of(running, segment):
            yield running


@contextmanager
def owned_cluster(segment: str, **master: Any) -> Iterator[tuple[Master, SegmentOwner]]:
    """A master and the process that owns its only segment, for tests that stop or kill one of them."""
    with cluster(**master) as running, owner_of(running, segment) as owner:
        yield running, owner


def owner_of(master: Master, segment: str) -> SegmentOwner:
    """One more process with a segment."""
    return SegmentOwner(master.url(segment=segment, local_buffer="16MiB"))


@contextmanager
def paused(owner: SegmentOwner) -> Iterator[None]:
    """Transfers to and from the owner's segment hang meanwhile."""
    owner.pause()
    try:
        yield
    finally:
        owner.resume()


@contextmanager
def counted(store: tl.Store) -> Iterator[dict[str, float]]:
    """What the counters of `store` gain meanwhile, by name, once the block has ended."""
    gained: dict[str, float] = {}
    before = store.stats()
    try:
        yield gained
    finally:
        gained.update({name: value - before[name] for name, value in store.stats().items()})


def allocated_bytes(master: Master) -> int:
    """Of all segments, as the master counts them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{master.metrics_port}/metrics") as answer:
        found = re.search(r"^master_allocated_bytes (\d+)", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something that another thread or process brings about."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, f"not within {PATIENCE_SECONDS} s: {what}"
        time.sleep(0.01)


class Running:
    """A call in a thread of its own, and what became of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._outcome: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:
            self._error = error

    def ended_within(self, seconds: float) -> bool:
        """Waits for it at most so long."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Waits for it; raises what it raised."""
        assert self.ended_within(PATIENCE_SECONDS), "the call hangs"
        if self._error is not None:
            raise self._error
        return self._outcome


@contextmanager
def ticking() -> Iterator[Callable[[], float]]:
    """Runs another Python thread meanwhile; gives the longest time that it stood still, seconds."""
    longest, ended = 0.0, threading.Event()

    def tick() -> None:
        nonlocal longest
        last = time.monotonic()
        while not ended.wait(0.01):
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        longest = max(longest, time.monotonic() - last)

    def longest_pause() -> float:
        # Lets the other thread run first: it may stand still until now.
        time.sleep(0.05)
        return longest

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield longest_pause
    finally:
        ended.set()
        thread.join()
