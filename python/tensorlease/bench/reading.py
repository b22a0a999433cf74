"""One timed read with what it cost: stages, registrations, bytes copied, page faults."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import tensorlease as tl
from tensorlease.bench.modes import Read, Rows

STAGES = ("plan", "register", "transfer", "copy", "wrap")
# Names in reports and in `Store.stats()`. A leased value holds one block, so that these values count the leases.
COUNTERS = {
    "register_calls": "register_calls",
    "registered_bytes": "registered_bytes",
    "leases": "leased_reads",
    "copied_bytes": "copied_bytes",
    "fallbacks": "fallback_reads",
}


@dataclass(frozen=True)
class Reading:
    """Times in milliseconds."""

    total_ms: float
    stages_ms: dict[str, float]
    counters: dict[str, float]
    page_faults: int


def timed_read(store: tl.Store, read: Read, kept: list[Rows]) -> Reading:
    """Reads once. The result replaces what `kept` holds, inside the timed part, as an assignment in a loop would."""
    # A collection that earlier modes have earned must not fall into this mode's time.
    gc.collect()
    before = store.stats()
    faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    kept[:] = [read()]
    elapsed = time.perf_counter() - start
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before
    after = store.stats()
    return Reading(
        total_ms=elapsed * 1e3,
        stages_ms={stage: (after[f"{stage}_seconds"] - before[f"{stage}_seconds"]) * 1e3 for stage in STAGES},
        counters={name: after[counter] - before[counter] for name, counter in COUNTERS.items()},
        page_faults=faults,
    )


def warm_then_timed(store: tl.Store, read: Read, keep_last: bool) -> tuple[Reading, Rows]:
    """A read that is not timed, then a timed one.

    The first result is dropped before the second read unless `keep_last`.
    """
    kept: list[Rows] = [read()]
    if not keep_last:
        kept.clear()
    reading = timed_read(store, read, kept)
    return reading, kept[0]


def median(values: Sequence[float]) -> float:
    """Of at least one value."""
    return statistics.median(values)


def stdev(values: Sequence[float]) -> float:
    """Sample deviation; 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Lower and upper quartile, interpolated between the values."""
    if len(values) == 1:
        return values[0], values[0]
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, upper
