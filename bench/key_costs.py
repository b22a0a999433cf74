"""`python -m bench keys`: what a read costs per key where the rows are tiny, for more and more keys."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from bench.engine import Engine
from tensorlease.bench.column import WrongContents
from tensorlease.bench.machine import header, require_memory
from tensorlease.bench.reading import STAGES, timed_call
from tensorlease.bench.report import Progress, Report, engine_line, machine_line, table
from tensorlease.sizes import GIB, format_bytes

# A key, its shape, its tensor and its entries in the engine and the arena.
_BYTES_PER_KEY = 2048


@dataclass(frozen=True)
class KeyCostsSettings:
    """`row_bytes` is the size of each float32 row."""

    engine: Engine
    key_counts: list[int]
    row_bytes: int
    repetitions: int
    max_bytes: int
    readers: int


def new_report(settings: KeyCostsSettings) -> Report:
    """A report without rows."""
    told: dict[str, object] = {
        "row_bytes": settings.row_bytes,
        "repetitions": settings.repetitions,
        "max_bytes": settings.max_bytes,
        "readers": settings.readers,
        **settings.engine.as_json(),
    }
    return header("keys", settings.engine.engine, told)


def run(settings: KeyCostsSettings, report: Report) -> None:
    """One store per number of keys; the first read of each warms it up."""
    settings.engine.require_valid()
    with Progress(len(settings.key_counts) * (settings.repetitions + 1)) as progress:
        for key_count in settings.key_counts:
            progress.note(f"{key_count:,} keys: writing")
            report["rows"].append(_measure(settings, key_count, lambda: progress.step("reading")))
    report["complete"] = True


def _measure(settings: KeyCostsSettings, key_count: int, step: Callable[[], None]) -> dict[str, Any]:
    size_bytes = key_count * settings.row_bytes
    require_memory(
        size_bytes * 3 + settings.max_bytes + key_count * _BYTES_PER_KEY + GIB // 4,
        f"{key_count:,} keys",
        "give smaller numbers in --keys",
    )
    length = settings.row_bytes // 4
    keys = [f"key/{index}" for index in range(key_count)]
    values = torch.arange(key_count * length, dtype=torch.float32).view(key_count, length)
    shapes, dtypes = [(length,)] * key_count, [torch.float32] * key_count
    # Every object takes a size class of its own and an entry, which is much for 64 bytes.
    object_bytes = size_bytes + key_count * _BYTES_PER_KEY
    with settings.engine.store_of_bytes(object_bytes, settings.max_bytes, settings.readers) as store:
        store.put(keys, list(values))

        def read() -> list[torch.Tensor]:
            return store.get(keys, shapes, dtypes, delivery="leased")

        totals, drops, stages, yardsticks = [], [], [], []
        for repetition in range(settings.repetitions + 1):
            kept: list[list[torch.Tensor] | torch.Tensor] = []
            reading = timed_call(store, read, kept)
            if not torch.equal(kept[0][key_count - 1], values[key_count - 1]):
                raise WrongContents(f"{key_count:,} keys: the last row is not what was written")
            start = time.perf_counter()
            kept.clear()
            drop_ms = (time.perf_counter() - start) * 1e3
            step()
            if repetition > 0:
                totals.append(reading.total_ms)
                drops.append(drop_ms)
                stages.append(reading.stages_ms)
                yardsticks.append(_unbind_ms(values))
    gc.collect()
    per_key = {stage: median([taken[stage] for taken in stages]) * 1e3 / key_count for stage in STAGES}
    total = median(totals) * 1e3 / key_count
    return {
        "keys": key_count,
        "row_bytes": settings.row_bytes,
        "total_us_per_key": total,
        "drop_us_per_key": median(drops) * 1e3 / key_count,
        "unbind_us_per_key": median(yardsticks) * 1e3 / key_count,
        "stages_us_per_key": per_key,
        # What no stage counts: above all taking the arguments apart.
        "arguments_us_per_key": max(total - sum(per_key.values()), 0.0),
    }


def _unbind_ms(values: torch.Tensor) -> float:
    """The yardstick of `wrap`: torch itself makes as many tensors, in the same minute and without the collector."""
    gc.disable()
    try:
        start = time.perf_counter()
        rows = values.unbind()
        elapsed_ms = (time.perf_counter() - start) * 1e3
    finally:
        gc.enable()
    del rows
    return elapsed_ms


def render(report: Report) -> str:
    """The table, for people."""
    headings = ["keys", "total us/key", "arguments", "plan + lease", "transfer", "copy", "wrap", "unbind", "drop"]
    lines = [
        [
            f"{row['keys']:,}",
            f"{row['total_us_per_key']:.3f}",
            f"{row['arguments_us_per_key']:.3f}",
            f"{row['stages_us_per_key']['plan']:.3f}",
            f"{row['stages_us_per_key']['transfer']:.3f}",
            f"{row['stages_us_per_key']['copy']:.3f}",
            f"{row['stages_us_per_key']['wrap']:.3f}",
            f"{row['unbind_us_per_key']:.3f}",
            f"{row['drop_us_per_key']:.3f}",
        ]
        for row in report["rows"]
    ]
    size = format_bytes(report["settings"]["row_bytes"])
    notes = (
        f"{engine_line(report)}   rows of {size}, leased\n{machine_line(report)}\n"
        "microseconds per key; equal numbers in a column mean linear cost; unbind: torch's own, of the same rows, beside wrap"
    )
    return f"{notes}\n\n{table(headings, lines, left_columns=0)}"
