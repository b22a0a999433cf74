"""One timed call with what it cost: stages, registrations, loans, bytes copied, page faults."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import tensorlease as tl
from tensorlease.bench.modes import Read, Rows

STAGES = ("plan", "register", "transfer", "copy", "wrap")
# Names in reports and in `Store.stats()`. A leased value holds one block, so that these values count the leases of the arena; loans are those
# of Mooncake's pool.
COUNTERS = {
    "register_calls": "register_calls",
    "registered_bytes": "registered_bytes",
    "leases": "leased_reads",
    "loans": "loans",
    "overflow_loans": "overflow_loans",
    "copied_bytes": "copied_bytes",
    "fallbacks": "fallback_reads",
}

# The same of a write.
WRITE_COUNTERS = {
    "register_calls": "register_calls",
    "registered_bytes": "registered_bytes",
    "in_place_writes": "in_place_writes",
    "staged_writes": "staged_writes",
    "fallback_writes": "fallback_writes",
    "copied_bytes": "copied_bytes",
    "engine_write_calls": "engine_write_calls",
}

Result = TypeVar("Result")


@dataclass(frozen=True)
class Reading:
    """Times in milliseconds."""

    total_ms: float
    stages_ms: dict[str, float]
    counters: dict[str, float]
    page_faults: int

    @property
    def stages_sum_ms(self) -> float:
        """Of all stages. More than the total where several readers work at a time."""
        return sum(self.stages_ms.values())


def timed_call(
    store: tl.Store, call: Callable[[], Result], kept: list[Result], counters: Mapping[str, str] = COUNTERS
) -> Reading:
    """Calls once. The result replaces what `kept` holds, inside the timed part, as an assignment in a loop would."""
    # A collection that earlier modes have earned must not fall into this mode's time.
    gc.collect()
    before = store.stats()
    faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    kept[:] = [call()]
    elapsed = time.perf_counter() - start
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before
    after = store.stats()
    return Reading(
        total_ms=elapsed * 1e3,
        stages_ms={stage: (after[f"{stage}_seconds"] - before[f"{stage}_seconds"]) * 1e3 for stage in STAGES},
        counters={name: after[counter] - before[counter] for name, counter in counters.items()},
        page_faults=faults,
    )


def warm_then_timed(store: tl.Store, read: Read, keep_last: bool) -> tuple[Reading, Rows]:
    """A read that is not timed, then a timed one.

    The first result is dropped before the second read unless `keep_last`.
    """
    kept: list[Rows] = [read()]
    if not keep_last:
        kept.clear()
    reading = timed_call(store, read, kept)
    return reading, kept[0]


def median(values: Sequence[float]) -> float:
    """Of at least one value."""
    return statistics.median(values)


def mean(values: Sequence[float]) -> float:
    """Of at least one value; for counters, so that a single registration among ten reads shows."""
    return statistics.fmean(values)


def stdev(values: Sequence[float]) -> float:
    """Sample deviation; 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Lower and upper quartile, interpolated between the values."""
    if len(values) == 1:
        return values[0], values[0]
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, upper
