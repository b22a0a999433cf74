"""Opening a store that is large enough for the workload, or saying why it can't be."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import tensorlease as tl
from tensorlease.bench.machine import YARDSTICK_BYTES, require_memory
from tensorlease.bench.workload import Workload

# Objects take whole size classes, at most an eighth larger than themselves.
_CAPACITY_FACTOR = 1.25
_TRIAL_BYTES = 64 << 20


def require_feasible(engine: str, cases: list[tuple[Workload, int]], readers: int) -> None:
    """Refuses at once what would be refused after minutes of measuring: memory, the engine's URL, its permissions.

    `cases` are workloads with their budgets.
    """
    for workload, max_bytes in cases:
        _require_room(workload, max_bytes)
    tl.open(engine, max_bytes=_TRIAL_BYTES, readers=readers).close()


def open_for(engine: str, workload: Workload, max_bytes: int, readers: int, *, copies_fit: bool = False) -> tl.Store:
    """A store for one workload; an embedded engine without a capacity of its own gets one that the workload fits.

    `copies_fit`: the recycled memory for copies holds the workload too, so that what is measured as copied is all copies.
    """
    _require_room(workload, max_bytes)
    copy_cache_bytes = round(workload.size_bytes * _CAPACITY_FACTOR) if copies_fit else None
    url = engine_for(engine, workload.size_bytes)
    return tl.open(url, max_bytes=max_bytes, readers=readers, copy_cache_bytes=copy_cache_bytes)


def _require_room(workload: Workload, max_bytes: int) -> None:
    require_memory(
        needed_bytes(workload, max_bytes),
        f"shape {workload.name}",
        "leave it out of --shapes, give a smaller --max-bytes, or end what else uses memory",
    )


def engine_for(engine: str, size_bytes: int) -> str:
    """The URL with `capacity` for `size_bytes` of objects, where it names an embedded engine and no capacity."""
    parts = urlsplit(engine)
    if parts.scheme != "embedded" or "capacity" in parse_qs(parts.query):
        return engine
    capacity = max(round(size_bytes * _CAPACITY_FACTOR), 64 << 20)
    separator = "&" if parts.query else "?"
    return f"{engine}{separator}capacity={capacity}"


def needed_bytes(workload: Workload, max_bytes: int) -> int:
    """The most that is held at once.

    Objects, arena (`loop` holds two results), a result outside the arena, and the copies kept for reuse.
    """
    size = workload.size_bytes
    arena = min(max_bytes, 9 * size // 4 + max_bytes // 8)
    store = round(size * _CAPACITY_FACTOR)
    return max(store + arena + 2 * size, 2 * YARDSTICK_BYTES)


def default_max_bytes(workloads: list[Workload]) -> int:
    """1.4 times the largest workload, so that one result and the reserve for copies fit and two results do not.

    Tiny workloads get the size of a first slab: the reserve for copies alone takes 8 MiB.
    """
    return max(round(1.4 * max(workload.size_bytes for workload in workloads)), _TRIAL_BYTES)
