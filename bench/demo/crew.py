"""Threads that work together: the first error stops all of them and reaches the caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import tensorlease as tl

_SLICE_SECONDS = 0.2


class Stopped(Exception):
    """Raised in a thread that should end because the crew was stopped."""


class Crew:
    """Use as: `start` each thread, then `join`; `stop` in a finally."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Runs `work` in a thread of its own."""
        thread = threading.Thread(target=self._run, args=(work,), name=name)
        self._threads.append(thread)
        thread.start()

    def check(self) -> None:
        """Raises `Stopped` once the crew has been stopped."""
        if self._stop.is_set():
            raise Stopped

    def wait_until(self, ready: Callable[[float], bool], what: str, timeout_seconds: float) -> None:
        """Calls `ready` with a short time to wait, again and again, until it is true.

        `Timeout` after `timeout_seconds`, `Stopped` when the crew was stopped.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            self.check()
            left = deadline - time.monotonic()
            if ready(max(min(left, _SLICE_SECONDS), 0.0)):
                return
            if left <= 0:
                raise tl.Timeout(f"{what} did not come within {timeout_seconds:.0f} s")

    def join(self) -> None:
        """Waits for the threads in short slices, so that Ctrl-C is heard; raises the first error of any of them."""
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_SLICE_SECONDS)
        if self._error is not None:
            raise self._error

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Asks every thread to end and waits for that, at most `timeout_seconds`."""
        self._stop.set()
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Stopped:
            pass
        except BaseException as error:
            with self._lock:
                if self._error is None:
                    self._error = error
            self._stop.set()
