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


def memcpy_samples_ms(repetitions: int = 5) -> list[float]:
    """Milliseconds per GiB of one libc memcpy on one thread, between two buffers that have been written before."""
    memcpy = ctypes.CDLL(None).memcpy
    memcpy.restype = ctypes.c_void_p
    memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    source, target = mmap.mmap(-1, YARDSTICK_BYTES), mmap.mmap(-1, YARDSTICK_BYTES)
    source_view, target_view = ctypes.c_char.from_buffer(source), ctypes.c_char.from_buffer(target)
    source_address, target_address = ctypes.addressof(source_view), ctypes.addressof(target_view)
    ctypes.memset(source_address, 1, YARDSTICK_BYTES)
    ctypes.memset(target_address, 2, YARDSTICK_BYTES)
    samples = []
    for repetition in range(repetitions + 1):
        start = time.perf_counter()
        memcpy(target_address, source_address, YARDSTICK_BYTES)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        if repetition > 0:
            samples.append(elapsed_ms * GIB / YARDSTICK_BYTES)
    # The views must go before the mappings they pin can be closed.
    del source_view, target_view
    source.close()
    target.close()
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
