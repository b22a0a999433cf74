"""What the figures were measured on: the machine, its free memory, and the yardstick of one memcpy."""

from __future__ import annotations

import ctypes
import datetime
import importlib.metadata
import mmap
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import tensorlease as tl
from tensorlease.bench.sizes import GIB, format_bytes

YARDSTICK_BYTES = GIB


def machine() -> dict[str, object]:
    """Processor, cores this process may use, memory, kernel."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _meminfo("MemTotal"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
    }


def versions() -> dict[str, str]:
    """Of everything that takes part in a read."""
    found = {"python": platform.python_version()}
    for package in ("tensorlease", "torch", "numpy", "mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def header(benchmark: str, engine: str, settings: dict[str, object], *, yardstick: bool = False) -> dict[str, Any]:
    """The part of a report that every benchmark shares. `complete` turns true when the last row is in."""
    report: dict[str, Any] = {
        "benchmark": benchmark,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "engine": engine,
        "settings": settings,
        "complete": False,
        "rows": [],
    }
    return report | {"memcpy_ms_per_gib": 0.0, "memcpy_samples_ms": []} if yardstick else report


def add_yardstick(report: dict[str, Any]) -> None:
    """Some more samples of one memcpy; at the start and at the end of a run, since machines drift."""
    report["memcpy_samples_ms"] += memcpy_samples_ms()
    report["memcpy_ms_per_gib"] = statistics.median(report["memcpy_samples_ms"])


class Yardstick:
    """Two buffers of 1 GiB that have been written before, and one libc memcpy on one thread from one to the other."""

    def __init__(self) -> None:
        self._memcpy = ctypes.CDLL(None).memcpy
        self._memcpy.restype = ctypes.c_void_p
        self._memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self._buffers: list[mmap.mmap] = []

    def sample_ms(self) -> float:
        """Milliseconds per GiB. The first call makes the buffers, and copies once more."""
        if not self._buffers:
            self._make()
        # Views pin their mappings, so they live no longer than a call.
        source, target = (ctypes.c_char.from_buffer(buffer) for buffer in self._buffers)
        start = time.perf_counter()
        self._memcpy(ctypes.addressof(target), ctypes.addressof(source), YARDSTICK_BYTES)
        return (time.perf_counter() - start) * 1e3 * GIB / YARDSTICK_BYTES

    def close(self) -> None:
        """Gives the memory back."""
        while self._buffers:
            self._buffers.pop().close()

    def _make(self) -> None:
        for byte in (1, 2):
            buffer = mmap.mmap(-1, YARDSTICK_BYTES)
            ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), byte, YARDSTICK_BYTES)
            self._buffers.append(buffer)
        self.sample_ms()


def memcpy_samples_ms(repetitions: int = 5) -> list[float]:
    """Milliseconds per GiB of one libc memcpy on one thread, between two buffers that have been written before."""
    yardstick = Yardstick()
    samples = [yardstick.sample_ms() for _ in range(repetitions)]
    yardstick.close()
    return samples


def require_memory(needed_bytes: int, purpose: str, advice: str) -> None:
    """A ConfigError before anything is allocated, instead of a process killed half-way."""
    available = available_bytes()
    if available < needed_bytes:
        raise tl.ConfigError(
            f"{purpose} needs about {format_bytes(needed_bytes)} of memory and {format_bytes(max(available, 0))} are "
            f"available; {advice}"
        )


def available_bytes() -> int:
    """What this process may still take: the kernel's estimate, or less where its control group has less left."""
    left = [_meminfo("MemAvailable")]
    for limit_name, used_name in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, used = _number(limit_name), _number(used_name)
        if limit is not None and used is not None:
            left.append(limit - used)
    return min(left)


def _number(path: str) -> int | None:
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _meminfo(field: str) -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise tl.ConfigError(f"/proc/meminfo has no {field}; tensorlease needs Linux")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()
