"""One process of a measurement with a store: it writes, or reads, and times that. Both sides of all measurements run this."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tensorlease as tl
from bench.host.asked import answer
from tensorlease.bench.machine import Yardstick
from tensorlease.bench.workload import Workload, parse_workload

#: Rows of a read that are compared with what was written.
CHECKED_ROWS = 16
#: A small value: 1 KiB.
SMALL_ELEMENTS = 256
MESSAGE_BYTES = 64
#: The other end of the ping-pong: a plain loop, as fast as Python has one.
ECHO = """
import socket, sys
peer = socket.socket(fileno=int(sys.argv[1]))
while message := peer.recv(256):
    peer.send(message)
"""


class StoreSide:
    """Calls of one process; each returns milliseconds, or microseconds where it says so."""

    def __init__(self) -> None:
        self.store: tl.Store
        self.values: np.ndarray[Any, Any]
        self.yardstick = Yardstick()
        self.rng = random.Random(0)

    def open(self, url: str, max_bytes: int) -> float:
        """Of `tensorlease.open` alone."""
        start = time.perf_counter()
        self.store = tl.open(url, max_bytes=max_bytes, copy_cache_bytes=max_bytes)
        return since(start)

    def make(self, shape: str) -> None:
        """The values of later puts: row number i is all i, with its number once more at the end."""
        workload = parse_workload(shape)
        self.values = np.empty((len(workload.lengths), workload.lengths[0]), np.float32)
        self.values[:] = np.arange(len(workload.lengths), dtype=np.float32)[:, None]

    def put(self, shape: str, library: str) -> float:
        """The rows of one array, or of one tensor: ordinary memory."""
        rows = list(self.values)
        if library == "torch":
            import torch

            rows = list(torch.from_numpy(self.values).unbind())
        keys = keys_of(parse_workload(shape))
        start = time.perf_counter()
        self.store.put(keys, rows)
        return since(start)

    def get(self, shape: str, library: str, delivery: str) -> float:
        """The whole column; what it brought is checked, and dropped, after that."""
        workload = parse_workload(shape)
        keys, dtypes = keys_of(workload), [dtype_of(library)] * len(workload.lengths)
        start = time.perf_counter()
        rows = self.store.get(keys, workload.shapes, dtypes, delivery=delivery)
        elapsed = since(start)
        self._check(rows)
        return elapsed

    def view(self, shape: str) -> list[float]:
        """Of the call, and of dropping what it brought."""
        keys = keys_of(parse_workload(shape))
        start = time.perf_counter()
        rows = self.store.get(keys, view=True)
        elapsed = since(start)
        self._check(rows)
        start = time.perf_counter()
        del rows
        return [elapsed, since(start)]

    def remove(self, shape: str) -> None:
        """Room for the next shape."""
        self.store.remove(keys_of(parse_workload(shape)))
        self.store.trim()

    def memcpy(self) -> float:
        """Of 1 GiB by one thread of this process."""
        return self.yardstick.sample_ms()

    def small(self, rounds: int, calls: int) -> dict[str, list[float]]:
        """Microseconds of single calls, a batch of each kind in random order within each round."""
        value: np.ndarray[Any, Any] = np.arange(SMALL_ELEMENTS, dtype=np.float32)
        shapes, dtypes = [value.shape], [value.dtype]
        self.store.put(["small"], [value])
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        command = [sys.executable, "-S", "-c", ECHO, str(there.fileno())]
        message = b"x" * MESSAGE_BYTES
        with subprocess.Popen(command, pass_fds=[there.fileno()]), there, here:
            there.close()
            kinds: dict[str, Callable[[], object]] = {
                "ping-pong": lambda: (here.send(message), here.recv(256)),
                "get": lambda: self.store.get(["small"], shapes, dtypes),
                "put": lambda: self.store.put(["small"], [value]),
                "view": lambda: self.store.get(["small"], view=True),
            }
            taken: dict[str, list[float]] = {kind: [] for kind in kinds}
            for number in range(rounds + 1):
                for kind in self.rng.sample(list(kinds), len(kinds)):
                    samples = timed_calls(kinds[kind], calls)
                    # The first round warms everything.
                    taken[kind] += samples if number else []
        return taken

    def _check(self, rows: Any) -> None:
        for at in self.rng.sample(range(len(rows)), min(CHECKED_ROWS, len(rows))):
            row = rows[at]
            if not float(row[0]) == float(row[len(row) // 2]) == float(row[-1]) == at:
                raise SystemExit(f"row {at} is not what was written")


def timed_calls(call: Callable[[], object], calls: int) -> list[float]:
    """Microseconds of each."""
    clock, taken = time.perf_counter_ns, []
    for _ in range(calls):
        start = clock()
        call()
        taken.append((clock() - start) / 1e3)
    return taken


def since(start: float) -> float:
    """Milliseconds."""
    return (time.perf_counter() - start) * 1e3


def keys_of(workload: Workload) -> list[str]:
    """As long as those of a job are."""
    return [f"step-0/{workload.name}/sample-{row}" for row in range(len(workload.lengths))]


def dtype_of(library: str) -> Any:
    """float32 of torch, which is not imported where it isn't asked for, or of numpy."""
    if library == "numpy":
        return np.float32
    import torch

    return torch.float32


if __name__ == "__main__":
    answer(StoreSide())
