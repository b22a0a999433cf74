"""`tensorlease bench reads`: every mode on every shape, in random order within each repetition."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tensorlease.bench.column import Column
from tensorlease.bench.machine import add_yardstick, header
from tensorlease.bench.modes import BASELINE, STORE_POOL, require_comparable
from tensorlease.bench.opening import EngineChoice
from tensorlease.bench.progress import Progress
from tensorlease.bench.reading import Readings, alternate, row_of
from tensorlease.bench.report import Report, TableColumn, count, engine_line, machine_line, table_of, times
from tensorlease.bench.workload import Workload
from tensorlease.sizes import GIB, format_bytes


@dataclass(frozen=True)
class ReadsSettings:
    """What one run measures; `max_bytes` is the budget of each store."""

    engine: EngineChoice
    workloads: list[Workload]
    modes: list[str]
    readers: int
    repetitions: int
    max_bytes: int
    seed: int

    def as_json(self) -> dict[str, object]:
        """Everything that is needed to run it again."""
        return {
            "modes": self.modes,
            "readers": self.readers,
            "repetitions": self.repetitions,
            "max_bytes": self.max_bytes,
            "seed": self.seed,
            "shapes": [workload.name for workload in self.workloads],
            **self.engine.as_json(),
        }


def new_report(settings: ReadsSettings) -> Report:
    """A report without rows."""
    return header("reads", settings.engine.engine, settings.as_json(), yardstick=True)


def run(settings: ReadsSettings, report: Report) -> None:
    """Fills `report` shape by shape; whatever ends the run, the rows that were measured stay in it."""
    require_comparable(settings.modes)
    settings.engine.require_feasible(
        [(workload, settings.max_bytes) for workload in settings.workloads], settings.readers
    )
    steps = len(settings.workloads) * settings.repetitions * len(settings.modes)
    with Progress(steps) as progress:
        progress.note("memcpy yardstick")
        add_yardstick(report)
        try:
            for workload in settings.workloads:
                progress.note(f"{workload.name}: writing")
                _run_shape(settings, workload, report, progress)
            progress.note("memcpy yardstick")
            add_yardstick(report)
        finally:
            _add_ratios(report)
    report["complete"] = True


def _run_shape(settings: ReadsSettings, workload: Workload, report: Report, progress: Progress) -> None:
    readings: Readings = {mode: [] for mode in settings.modes}
    rng = random.Random(f"{settings.seed}/{workload.name}")
    try:
        column = Column(workload, settings.seed)
        copies_fit = settings.engine.share is None
        with settings.engine.store(workload, settings.max_bytes, settings.readers, copies_fit=copies_fit) as store:
            column.put(store)
            alternate(
                store,
                column,
                settings.repetitions,
                rng,
                readings,
                lambda mode: progress.step(f"{workload.name} {mode}"),
            )
    finally:
        of_shape = {"shape": workload.name, "keys": len(workload.lengths), "bytes": workload.size_bytes}
        report["rows"] += [of_shape | row_of(mode, done, settings.readers) for mode, done in readings.items() if done]


def _add_ratios(report: Report) -> None:
    """`ratio`: times as fast as register-per-call; `ratio_to_store_pool`: as the reference's way.

    `ratio_to_memcpy`: times as long as one memcpy of as many bytes.
    """
    medians = {(row["shape"], row["mode"]): row["median_ms"] for row in report["rows"]}
    for row in report["rows"]:
        for name, mode in (("ratio", BASELINE), ("ratio_to_store_pool", STORE_POOL)):
            other = medians.get((row["shape"], mode))
            row[name] = None if other is None else other / row["median_ms"]
        row["ratio_to_memcpy"] = row["median_ms"] / (report["memcpy_ms_per_gib"] * row["bytes"] / GIB)


COLUMNS: list[TableColumn] = [
    TableColumn("median ms", lambda row: f"{row['median_ms']:.1f}"),
    TableColumn("min", lambda row: f"{row['min_ms']:.1f}"),
    TableColumn("stdev", lambda row: f"{row['stdev_ms']:.1f}"),
    TableColumn("GiB/s", lambda row: f"{row['bytes'] / GIB / row['median_ms'] * 1e3:.1f}"),
    TableColumn("vs register", lambda row: times(row["ratio"])),
    TableColumn("vs store-pool", lambda row: times(row["ratio_to_store_pool"]), lambda row: row["ratio_to_store_pool"]),
    TableColumn("vs memcpy", lambda row: times(row["ratio_to_memcpy"])),
    TableColumn("registrations", lambda row: count(row["register_calls"])),
    TableColumn("loans", lambda row: count(row["loans"]), lambda row: row["loans"]),
    TableColumn("overflow", lambda row: count(row["overflow_loans"]), lambda row: row["loans"]),
    TableColumn("fallbacks", lambda row: count(row["fallbacks"]), lambda row: row["fallbacks"]),
    TableColumn("copied", lambda row: format_bytes(row["copied_bytes"])),
    TableColumn("page faults", lambda row: count(row["page_faults"])),
    TableColumn(
        "stages / wall", lambda row: f"{row['stages_of_total']:.1%}", lambda row: row["stages_of_total"] is not None
    ),
]


def render(report: Report) -> str:
    """The table, for people."""
    settings = report["settings"]
    budget = format_bytes(settings["max_bytes"])
    pooled = any(row["ratio_to_store_pool"] for row in report["rows"])
    compared = "vs register, vs store-pool" if pooled else "vs register"
    notes = (
        f"{engine_line(report)}   budget {budget}, at most {settings['readers']} readers, {settings['repetitions']} repetitions\n"
        f"{machine_line(report)}\n"
        f"one memcpy of 1 GiB, one thread, warm: {report['memcpy_ms_per_gib']:.1f} ms\n"
        f"{compared}: times as fast as that mode (more is better); "
        "vs memcpy: times as long as that memcpy (less is better)"
    )
    if any(row["fallbacks"] for row in report["rows"]):
        notes += (
            "\nfallbacks: values of a read that found no room in the budget; loop keeps the result of the read before"
        )
    return f"{notes}\n\n{table_of(report['rows'], COLUMNS, ('shape', 'mode'))}"
