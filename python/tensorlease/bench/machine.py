"""What the figures were measured on: the machine, its free memory, and the yardstick of one memcpy."""

import contextlib
import ctypes
import datetime
import importlib.metadata
import mmap
import os
import platform
import re
import statistics
import time
from pathlib import Path
from typing import Any

import tensorlease as tl
from tensorlease.doctor.machine import Machine
from tensorlease.sizes import GIB, format_bytes

YARDSTICK_BYTES = GIB
_PACKAGES = ("tensorlease", "torch", "numpy", "mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda")


def header(benchmark: str, engine: str, settings: dict[str, object], *, yardstick: bool = False) -> dict[str, Any]:
    """The part of a report that every benchmark shares. `complete` turns true when the last row is in."""
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    report: dict[str, Any] = {
        "benchmark": benchmark,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": model[1].strip() if model else platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": Machine().memory_bytes(),
            "kernel": platform.release(),
            "architecture": platform.machine(),
        },
        "versions": _versions(),
        "engine": engine,
        "settings": settings,
        "complete": False,
        "rows": [],
    }
    return report | {"memcpy_ms_per_gib": 0.0, "memcpy_samples_ms": []} if yardstick else report


def _versions() -> dict[str, str]:
    """Of everything that takes part in a read."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


class Yardstick:
    """One libc memcpy of 1 GiB on one thread, between two buffers that were written before."""

    def __init__(self) -> None:
        self._memcpy = ctypes.CDLL(None).memcpy
        self._memcpy.restype = ctypes.c_void_p
        self._memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self._buffers: list[mmap.mmap] = []

    def sample_ms(self) -> float:
        """Milliseconds per GiB. The first call makes the buffers, and copies once more."""
        if not self._buffers:
            for byte in (1, 2):
                buffer = mmap.mmap(-1, YARDSTICK_BYTES)
                ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), byte, YARDSTICK_BYTES)
                self._buffers.append(buffer)
            self.sample_ms()
        # A view pins its mapping, so it lives no longer than a call.
        source, target = (ctypes.c_char.from_buffer(buffer) for buffer in self._buffers)
        start = time.perf_counter()
        self._memcpy(ctypes.addressof(target), ctypes.addressof(source), YARDSTICK_BYTES)
        return (time.perf_counter() - start) * 1e3 * GIB / YARDSTICK_BYTES

    def close(self) -> None:
        while self._buffers:
            self._buffers.pop().close()


def add_yardstick(report: dict[str, Any], repetitions: int = 5) -> None:
    """Adds samples of one memcpy. A run calls it at its start and at its end, because machines drift."""
    yardstick = Yardstick()
    report["memcpy_samples_ms"] += [yardstick.sample_ms() for _ in range(repetitions)]
    yardstick.close()
    report["memcpy_ms_per_gib"] = statistics.median(report["memcpy_samples_ms"])


def require_memory(needed_bytes: int, purpose: str, advice: str) -> None:
    """A ConfigError before anything is allocated, instead of a process that is killed half-way."""
    available = available_bytes()
    if available < needed_bytes:
        needed = f"{purpose} needs about {format_bytes(needed_bytes)} of memory"
        raise tl.ConfigError(f"{needed} and {format_bytes(available)} are available; {advice}")


def available_bytes() -> int:
    return Machine().available_bytes() or 0
