"""Several modes on one store, in random order within each repetition, so that drift of the machine is shared; and a row of the report for each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import tensorlease as tl
from tensorlease.bench.column import Column
from tensorlease.bench.modes import keeps_last, read_of
from tensorlease.bench.reading import COUNTERS, STAGES, Reading, mean, median, stdev, warm_then_timed

#: Readings of each mode, in the order of the repetitions.
Readings = dict[str, list[Reading]]


def alternate(
    store: tl.Store,
    column: Column,
    repetitions: int,
    rng: random.Random,
    readings: Readings,
    step: Callable[[str], None],
) -> None:
    """Reads the column in each mode of `readings` and appends there, so that an interrupted run keeps what it has."""
    reads = {mode: read_of(mode, store, column) for mode in readings}
    for _ in range(repetitions):
        for mode in rng.sample(list(reads), len(reads)):
            reading, rows = warm_then_timed(store, reads[mode], keeps_last(mode))
            readings[mode].append(reading)
            column.check(rows, rng)
            # The next mode must find the arena empty.
            del rows
            step(mode)


def row_of(mode: str, readings: list[Reading], readers: int) -> dict[str, Any]:
    """Times are medians; counters are means per read."""
    return timing([reading.total_ms for reading in readings]) | {
        "mode": mode,
        **{name: mean([reading.counters[name] for reading in readings]) for name in COUNTERS},
        "page_faults": mean([reading.page_faults for reading in readings]),
        "stages_ms": {stage: median([reading.stages_ms[stage] for reading in readings]) for stage in STAGES},
        "stages_sum_ms": median([reading.stages_sum_ms for reading in readings]),
        # With several readers the stages overlap, and their sum says nothing about the time that passed.
        "stages_of_total": None
        if readers > 1
        else median([reading.stages_sum_ms / reading.total_ms for reading in readings]),
    }


def timing(totals_ms: list[float]) -> dict[str, Any]:
    """The times of one row, in full and summed up."""
    return {
        "median_ms": median(totals_ms),
        "min_ms": min(totals_ms),
        "stdev_ms": stdev(totals_ms),
        "repetitions_ms": totals_ms,
    }
