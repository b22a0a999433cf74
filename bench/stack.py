"""`python -m bench stack`: `get_batch` against `get` followed by `torch.stack`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median

import torch

from bench.engine import Engine
from bench.spread import quartiles, stdev
from tensorlease.bench.column import Column
from tensorlease.bench.machine import header
from tensorlease.bench.reading import Read, Rows, read_of, warm_then_timed
from tensorlease.bench.report import Progress, Report, engine_line, machine_line, table, times
from tensorlease.bench.workload import Workload


@dataclass(frozen=True)
class StackSettings:
    """One shape of equal rows."""

    engine: Engine
    workload: Workload
    repetitions: int
    max_bytes: int
    readers: int
    seed: int


def new_report(settings: StackSettings) -> Report:
    """A report without rows."""
    told: dict[str, object] = {
        "shape": settings.workload.name,
        "repetitions": settings.repetitions,
        "max_bytes": settings.max_bytes,
        "readers": settings.readers,
        "seed": settings.seed,
        **settings.engine.as_json(),
    }
    return header("stack", settings.engine.engine, told)


def run(settings: StackSettings, report: Report) -> None:
    """Alternates the two, in random order within each repetition."""
    settings.engine.require_valid()
    rng = random.Random(settings.seed)
    column = Column(settings.workload, settings.seed)
    taken: dict[str, list[float]] = {"get_batch": [], "get + torch.stack": []}
    with (
        Progress(settings.repetitions) as progress,
        settings.engine.store(settings.workload, settings.max_bytes, settings.readers) as store,
    ):
        column.put(store)
        get = read_of("auto", store, column)
        reads: dict[str, Read] = {
            "get_batch": read_of("batch", store, column),
            "get + torch.stack": lambda: _stacked(get()),
        }
        for _ in range(settings.repetitions):
            for name in rng.sample(list(reads), len(reads)):
                reading, rows = warm_then_timed(store, reads[name], keep_last=False)
                taken[name].append(reading.total_ms)
                column.check(rows, rng)
                del rows
            progress.step(settings.workload.name)
    baseline = taken["get + torch.stack"]
    for name, totals in taken.items():
        ratios = [slow / fast for slow, fast in zip(baseline, totals, strict=True)]
        report["rows"].append(
            {
                "shape": settings.workload.name,
                "mode": name,
                "median_ms": median(totals),
                "min_ms": min(totals),
                "stdev_ms": stdev(totals),
                "ratio": median(ratios),
                "ratio_quartiles": list(quartiles(ratios)),
                "repetitions_ms": totals,
            }
        )
    report["complete"] = True


def _stacked(rows: Rows) -> torch.Tensor:
    return torch.stack(list(rows))


def render(report: Report) -> str:
    """The table, for people."""
    headings = ["shape", "way", "median ms", "min", "stdev", "times as fast"]
    lines = [
        [
            row["shape"],
            row["mode"],
            f"{row['median_ms']:.1f}",
            f"{row['min_ms']:.1f}",
            f"{row['stdev_ms']:.1f}",
            times(row["ratio"]),
        ]
        for row in report["rows"]
    ]
    return f"{engine_line(report)}\n{machine_line(report)}\n\n{table(headings, lines, left_columns=2)}"
