"""`python -m bench pairs`: two modes read in pairs, so that slow drift of the machine cancels out."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.engine import Engine
from bench.spread import quartiles
from tensorlease.bench.column import Column
from tensorlease.bench.machine import header
from tensorlease.bench.reading import keeps_last, read_of, require_comparable, warm_then_timed
from tensorlease.bench.report import Progress, Report, engine_line, machine_line, table
from tensorlease.bench.workload import Workload
from tensorlease.sizes import format_bytes


@dataclass(frozen=True)
class PairsSettings:
    """Every shape is measured with every budget of `budgets_bytes`."""

    engine: Engine
    workloads: list[Workload]
    first: str
    second: str
    pairs: int
    budgets_bytes: list[int]
    readers: int
    seed: int


def new_report(settings: PairsSettings) -> Report:
    """A report without rows."""
    told: dict[str, object] = {
        "a": settings.first,
        "b": settings.second,
        "pairs": settings.pairs,
        "readers": settings.readers,
        "seed": settings.seed,
        **settings.engine.as_json(),
    }
    return header("pairs", settings.engine.engine, told)


def run(settings: PairsSettings, report: Report) -> None:
    """Fills `report`; whatever ends the run, the rows that were measured stay in it."""
    cases = [(workload, budget) for workload in settings.workloads for budget in settings.budgets_bytes]
    require_comparable([settings.first, settings.second])
    settings.engine.require_feasible(cases, settings.readers)
    with Progress(len(cases) * settings.pairs) as progress:
        for workload, budget in cases:
            progress.note(f"{workload.name}: writing")
            _run_case(settings, workload, budget, report, progress)
    report["complete"] = True


def _run_case(settings: PairsSettings, workload: Workload, budget: int, report: Report, progress: Progress) -> None:
    rng = random.Random(f"{settings.seed}/{workload.name}/{budget}")
    column = Column(workload, settings.seed)
    pairs: list[tuple[float, float]] = []
    try:
        with settings.engine.store(workload, budget, settings.readers) as store:
            column.put(store)
            reads = {mode: read_of(mode, store, column) for mode in (settings.first, settings.second)}
            for _ in range(settings.pairs):
                taken: dict[str, float] = {}
                for mode in rng.sample(list(reads), len(reads)):
                    reading, rows = warm_then_timed(store, reads[mode], keeps_last(mode))
                    taken[mode] = reading.total_ms
                    column.check(rows, rng)
                    del rows
                pairs.append((taken[settings.first], taken[settings.second]))
                progress.step(f"{workload.name} {settings.first} / {settings.second}, budget {format_bytes(budget)}")
    finally:
        if pairs:
            report["rows"].append(_row(workload, budget, pairs))


def _row(workload: Workload, budget: int, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    ratios = [second / first for first, second in pairs]
    lower, upper = quartiles(ratios)
    return {
        "shape": workload.name,
        "max_bytes": budget,
        "bytes": workload.size_bytes,
        "a_median_ms": median([first for first, _ in pairs]),
        "b_median_ms": median([second for _, second in pairs]),
        "ratio": median(ratios),
        "ratio_quartiles": [lower, upper],
        "pairs_ms": [list(pair) for pair in pairs],
    }


def render(report: Report) -> str:
    """The table, for people."""
    first, second = report["settings"]["a"], report["settings"]["b"]
    headings = ["shape", "budget", f"{first} ms", f"{second} ms", "ratio", "quartiles", "pairs"]
    lines = [
        [
            row["shape"],
            format_bytes(row["max_bytes"]),
            f"{row['a_median_ms']:.1f}",
            f"{row['b_median_ms']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_quartiles'][0]:.2f} - {row['ratio_quartiles'][1]:.2f}",
            str(len(row["pairs_ms"])),
        ]
        for row in report["rows"]
    ]
    notes = (
        f"{engine_line(report)}   at most {report['settings']['readers']} readers\n{machine_line(report)}\n"
        f"ratio: median over the pairs of {second} / {first}; above 1 means that {first} is faster"
    )
    return f"{notes}\n\n{table(headings, lines, left_columns=1)}"
