"""`tensorlease bench reads`: every mode on every shape, in random order within each repetition."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from tensorlease.bench.column import Column
from tensorlease.bench.machine import header, memcpy_samples_ms
from tensorlease.bench.modes import BASELINE, keeps_last, read_of
from tensorlease.bench.opening import open_for, require_feasible
from tensorlease.bench.progress import Progress
from tensorlease.bench.reading import COUNTERS, STAGES, Reading, median, stdev, warm_then_timed
from tensorlease.bench.report import Report, count, machine_line, table, times
from tensorlease.bench.sizes import GIB, format_bytes
from tensorlease.bench.workload import Workload


@dataclass(frozen=True)
class ReadsSettings:
    """What one run measures; `max_bytes` is the budget of each store."""

    engine: str
    workloads: list[Workload]
    modes: list[str]
    readers: int
    repetitions: int
    max_bytes: int
    seed: int

    def as_json(self) -> dict[str, object]:
        """Everything that is needed to run it again."""
        values = asdict(self) | {"shapes": [workload.name for workload in self.workloads]}
        return {name: value for name, value in values.items() if name not in ("workloads", "engine")}


def new_report(settings: ReadsSettings) -> Report:
    """A report without rows."""
    return header("reads", settings.engine, settings.as_json()) | {"memcpy_ms_per_gib": 0.0, "memcpy_samples_ms": []}


def run(settings: ReadsSettings, report: Report) -> None:
    """Fills `report` shape by shape; whatever ends the run, the rows that were measured stay in it."""
    require_feasible(
        settings.engine, [(workload, settings.max_bytes) for workload in settings.workloads], settings.readers
    )
    steps = len(settings.workloads) * settings.repetitions * len(settings.modes)
    with Progress(steps) as progress:
        progress.note("memcpy yardstick")
        _add_yardstick(report)
        try:
            for workload in settings.workloads:
                progress.note(f"{workload.name}: writing")
                _run_shape(settings, workload, report, progress)
            progress.note("memcpy yardstick")
            _add_yardstick(report)
        finally:
            _add_ratios(report)
    report["complete"] = True


def _run_shape(settings: ReadsSettings, workload: Workload, report: Report, progress: Progress) -> None:
    readings: dict[str, list[Reading]] = {mode: [] for mode in settings.modes}
    rng = random.Random(f"{settings.seed}/{workload.name}")
    try:
        column = Column(workload, settings.seed)
        with open_for(settings.engine, workload, settings.max_bytes, settings.readers, copies_fit=True) as store:
            column.put(store)
            reads = {mode: read_of(mode, store, column) for mode in settings.modes}
            for _ in range(settings.repetitions):
                for mode in rng.sample(settings.modes, len(settings.modes)):
                    reading, rows = warm_then_timed(store, reads[mode], keeps_last(mode))
                    readings[mode].append(reading)
                    column.check(rows, rng)
                    # The next mode must find the arena empty.
                    del rows
                    progress.step(f"{workload.name} {mode}")
    finally:
        report["rows"] += [_row(workload, mode, done) for mode, done in readings.items() if done]


def _row(workload: Workload, mode: str, readings: list[Reading]) -> dict[str, Any]:
    """Times are medians; counters are means per read, so that a single registration among ten reads shows."""
    totals = [reading.total_ms for reading in readings]
    return {
        "shape": workload.name,
        "mode": mode,
        "keys": len(workload.lengths),
        "bytes": workload.size_bytes,
        "median_ms": median(totals),
        "min_ms": min(totals),
        "stdev_ms": stdev(totals),
        **{name: _mean([reading.counters[name] for reading in readings]) for name in COUNTERS},
        "page_faults": _mean([reading.page_faults for reading in readings]),
        "stages_ms": {stage: median([reading.stages_ms[stage] for reading in readings]) for stage in STAGES},
        "repetitions_ms": totals,
    }


def _mean(values: list[Any]) -> float:
    return float(sum(values) / len(values))


def _add_yardstick(report: Report) -> None:
    report["memcpy_samples_ms"] += memcpy_samples_ms()
    report["memcpy_ms_per_gib"] = median(report["memcpy_samples_ms"])


def _add_ratios(report: Report) -> None:
    """`ratio`: times as fast as register-per-call. `ratio_to_memcpy`: times as long as one memcpy of as many bytes."""
    baselines = {row["shape"]: row["median_ms"] for row in report["rows"] if row["mode"] == BASELINE}
    for row in report["rows"]:
        baseline = baselines.get(row["shape"])
        row["ratio"] = None if baseline is None else baseline / row["median_ms"]
        row["ratio_to_memcpy"] = row["median_ms"] / (report["memcpy_ms_per_gib"] * row["bytes"] / GIB)


def render(report: Report) -> str:
    """The table, for people."""
    headings = [
        "shape",
        "mode",
        "median ms",
        "min",
        "stdev",
        "GiB/s",
        "vs register",
        "vs memcpy",
        "registrations",
        "copied",
        "page faults",
    ]
    lines: list[list[str]] = []
    shape = None
    for row in report["rows"]:
        if shape is not None and row["shape"] != shape:
            lines.append([])
        lines.append(
            [
                row["shape"] if row["shape"] != shape else "",
                row["mode"],
                f"{row['median_ms']:.1f}",
                f"{row['min_ms']:.1f}",
                f"{row['stdev_ms']:.1f}",
                f"{row['bytes'] / GIB / row['median_ms'] * 1e3:.1f}",
                times(row["ratio"]),
                times(row["ratio_to_memcpy"]),
                count(row["register_calls"]),
                format_bytes(row["copied_bytes"]),
                count(row["page_faults"]),
            ]
        )
        shape = row["shape"]
    settings = report["settings"]
    budget = format_bytes(settings["max_bytes"])
    notes = (
        f"{report['engine']}   budget {budget}, {settings['readers']} readers, {settings['repetitions']} repetitions\n"
        f"{machine_line(report)}\n"
        f"one memcpy of 1 GiB, one thread, warm: {report['memcpy_ms_per_gib']:.1f} ms\n"
        "vs register: times as fast as register-per-call (more is better); "
        "vs memcpy: times as long as that memcpy (less is better)"
    )
    return f"{notes}\n\n{table(headings, lines, left_columns=2)}"
