"""The ways of reading a column that are compared, and timed calls with what they cost: stages, registrations, loans, bytes copied, page faults."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from resource import RUSAGE_SELF, getrusage
from statistics import fmean, median
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch

import tensorlease as tl
from tensorlease.bench.column import Column

BASELINE = "register-per-call"
#: The reference's way: leased from Mooncake's own pool, copied into fresh memory.
STORE_POOL = "store-pool"
#: By mode, the delivery. A batch is leased by default, but not where a store has Mooncake's pool. `loop` is the plain program
#: `out = store.get(...)` in a loop.
_DELIVERIES = {
    BASELINE: "register-per-call",
    "copied": "copied",
    STORE_POOL: "copied",
    "leased": "leased",
    "batch": "leased",
    "loop": "auto",
    "auto": "auto",
}
MODES = tuple(_DELIVERIES)
#: What goes through Mooncake's pool, too, where a store has one: it would be `store-pool` under another name.
_THROUGH_THE_POOL = ("copied", "loop", "auto")

Rows: TypeAlias = list[torch.Tensor] | torch.Tensor
Read = Callable[[], Rows]

STAGES = ("plan", "register", "transfer", "copy", "wrap")
#: Names in reports and in `Store.stats()`. A leased value holds one block, so `leases` counts leases of the arena. `loans` are of Mooncake's pool.
COUNTERS = {
    "register_calls": "register_calls",
    "registered_bytes": "registered_bytes",
    "leases": "leased_reads",
    "loans": "loans",
    "overflow_loans": "overflow_loans",
    "copied_bytes": "copied_bytes",
    "fallbacks": "fallback_reads",
}

Result = TypeVar("Result")


def require_comparable(modes: Sequence[str]) -> None:
    """All modes of a comparison read from one store, and one with Mooncake's pool serves only some of them."""
    others = [mode for mode in modes if mode in _THROUGH_THE_POOL]
    if STORE_POOL in modes and others:
        raise tl.ConfigError(
            f"{STORE_POOL} reads through Mooncake's pool, and so would {' and '.join(others)} on the same store; "
            f"measure them in a run without {STORE_POOL}"
        )


def read_of(mode: str, store: tl.Store, column: Column) -> Read:
    """A call that reads the whole column once in the given mode."""
    keys, shapes, delivery = column.keys, column.workload.shapes, _DELIVERIES[mode]
    if mode == "batch":
        shape = shapes if column.workload.is_ragged else shapes[0]
        return lambda: store.get_batch(keys, shape, column.dtype, delivery=delivery)
    dtypes = [column.dtype] * len(keys)
    return lambda: store.get(keys, shapes, dtypes, delivery=delivery)


def keeps_last(mode: str) -> bool:
    """Does the result of the read before stay alive during the next one?"""
    return mode == "loop"


class Reading(NamedTuple):
    """Times in milliseconds. With several readers the stages overlap, and their sum is more than the total."""

    total_ms: float
    stages_ms: dict[str, float]
    counters: dict[str, float]
    page_faults: int

    @property
    def stages_sum_ms(self) -> float:
        return sum(self.stages_ms.values())


#: Readings of each mode, in the order of the repetitions.
Readings = dict[str, list[Reading]]


def timed_call(
    store: tl.Store, call: Callable[[], Result], kept: list[Result], counters: Mapping[str, str] = COUNTERS
) -> Reading:
    """Calls once. The result replaces what `kept` holds, inside the timed part, as an assignment in a loop would."""
    # A collection that earlier modes have earned must not fall into this mode's time.
    gc.collect()
    before, faults_before = store.stats(), getrusage(RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    kept[:] = [call()]
    elapsed = time.perf_counter() - start
    faults, after = getrusage(RUSAGE_SELF).ru_minflt - faults_before, store.stats()
    return Reading(
        total_ms=elapsed * 1e3,
        stages_ms={stage: (after[f"{stage}_seconds"] - before[f"{stage}_seconds"]) * 1e3 for stage in STAGES},
        counters={name: after[counter] - before[counter] for name, counter in counters.items()},
        page_faults=faults,
    )


def warm_then_timed(store: tl.Store, read: Read, keep_last: bool) -> tuple[Reading, Rows]:
    """A read that is not timed, then a timed one. The first result is dropped before the second read unless `keep_last`."""
    kept: list[Rows] = [read()]
    if not keep_last:
        kept.clear()
    reading = timed_call(store, read, kept)
    return reading, kept[0]


def alternate(
    store: tl.Store, column: Column, repetitions: int, rng: random.Random, readings: Readings
) -> Iterator[str]:
    """Reads the column in each mode of `readings` and appends there, so that an interrupted run keeps what it has; yields the mode.

    The order is random within each repetition, so that the modes share the drift of the machine.
    """
    reads = {mode: read_of(mode, store, column) for mode in readings}
    for _ in range(repetitions):
        for mode in rng.sample(list(reads), len(reads)):
            reading, rows = warm_then_timed(store, reads[mode], keeps_last(mode))
            readings[mode].append(reading)
            column.check(rows, rng)
            # The next mode must find the arena empty.
            del rows
            yield mode


def row_of(mode: str, readings: list[Reading], readers: int) -> dict[str, Any]:
    """One row of a report. Times are medians, counters are means per read, so that one registration among ten reads shows."""
    of_total = None if readers > 1 else median(reading.stages_sum_ms / reading.total_ms for reading in readings)
    return timing([reading.total_ms for reading in readings]) | {
        "mode": mode,
        **{name: fmean(reading.counters[name] for reading in readings) for name in COUNTERS},
        "page_faults": fmean(reading.page_faults for reading in readings),
        "stages_ms": {stage: median(reading.stages_ms[stage] for reading in readings) for stage in STAGES},
        "stages_sum_ms": median(reading.stages_sum_ms for reading in readings),
        "stages_of_total": of_total,
    }


def timing(totals_ms: list[float]) -> dict[str, Any]:
    """The times of one row, in full and summed up. The deviation is the sample's, 0 of a single value."""
    return {
        "median_ms": median(totals_ms),
        "min_ms": min(totals_ms),
        "stdev_ms": statistics.stdev(totals_ms) if len(totals_ms) > 1 else 0.0,
        "repetitions_ms": totals_ms,
    }
