"""`python -m bench writes`: each kind of value against registering its memory for the write."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

import tensorlease as tl
from bench.batches import rows_of_one_batch
from bench.engine import Engine
from tensorlease.bench.column import Column, WrongContents
from tensorlease.bench.machine import add_yardstick, header
from tensorlease.bench.reading import Reading, timed_call, timing
from tensorlease.bench.report import Progress, Report, TableColumn, count, engine_line, machine_line, table_of, times
from tensorlease.bench.workload import Workload
from tensorlease.sizes import GIB, format_bytes

#: What is written in each mode, and the mode that it is compared with.
MODES = {
    "register-per-call": "register-per-call",
    "foreign": "register-per-call",
    "arena": "register-per-call",
    "packed-register-per-call": "packed-register-per-call",
    "packed": "packed-register-per-call",
}
_CHECKED_ROWS = 3
#: Names in reports and in `Store.stats()`.
WRITE_COUNTERS = {
    name: name
    for name in (
        "register_calls",
        "registered_bytes",
        "in_place_writes",
        "staged_writes",
        "fallback_writes",
        "copied_bytes",
        "engine_write_calls",
    )
}


@dataclass(frozen=True)
class WritesSettings:
    """What one run measures; `max_bytes` is the budget of each store, which holds the tensors of `arena` too."""

    engine: Engine
    workloads: list[Workload]
    modes: list[str]
    readers: int
    repetitions: int
    max_bytes: int
    seed: int


def new_report(settings: WritesSettings) -> Report:
    """A report without rows."""
    told: dict[str, object] = {
        "modes": settings.modes,
        "shapes": [workload.name for workload in settings.workloads],
        "readers": settings.readers,
        "repetitions": settings.repetitions,
        "max_bytes": settings.max_bytes,
        "seed": settings.seed,
        **settings.engine.as_json(),
    }
    return header("writes", settings.engine.engine, told, yardstick=True)


def run(settings: WritesSettings, report: Report) -> None:
    """Fills `report` shape by shape; whatever ends the run, the rows that were measured stay in it."""
    settings.engine.require_feasible(
        [(workload, settings.max_bytes) for workload in settings.workloads], settings.readers
    )
    with Progress(len(settings.workloads) * settings.repetitions * len(settings.modes)) as progress:
        progress.note("memcpy yardstick")
        add_yardstick(report)
        try:
            for workload in settings.workloads:
                progress.note(f"{workload.name}: making values")
                _run_shape(settings, workload, report, progress)
            progress.note("memcpy yardstick")
            add_yardstick(report)
        finally:
            _add_ratios(report)
    report["complete"] = True


def _run_shape(settings: WritesSettings, workload: Workload, report: Report, progress: Progress) -> None:
    readings: dict[str, list[Reading]] = {mode: [] for mode in settings.modes}
    rng = random.Random(f"{settings.seed}/{workload.name}")
    column = Column(workload, settings.seed)
    # Rows of one batch, as a job hands them over: the released client registers those that touch in one piece.
    rows = rows_of_one_batch(column)
    try:
        with settings.engine.store(workload, settings.max_bytes, settings.readers) as store:
            values = {mode: _values_of(mode, store, rows) for mode in settings.modes}
            for _ in range(settings.repetitions):
                for mode in rng.sample(settings.modes, len(settings.modes)):
                    readings[mode].append(_warm_then_timed(mode, store, column, values[mode], rng))
                    progress.step(f"{workload.name} {mode}")
            # Blocks of the arena go back before the store closes.
            values.clear()
    finally:
        of_shape = {"shape": workload.name, "keys": len(workload.lengths), "bytes": workload.size_bytes}
        report["rows"] += [of_shape | _row(mode, done) for mode, done in readings.items() if done]


def _values_of(mode: str, store: tl.Store, rows: Sequence[torch.Tensor]) -> list[Any]:
    if mode == "arena":
        values = [store.empty(tuple(row.shape), row.dtype) for row in rows]
        for value, row in zip(values, rows, strict=True):
            value.copy_(row)
        return values
    if mode.startswith("packed"):
        return [{"index": index, "row": row.numpy()} for index, row in enumerate(rows)]
    return list(rows)


def _warm_then_timed(mode: str, store: tl.Store, column: Column, values: list[Any], rng: random.Random) -> Reading:
    """Writes new keys twice, the second time timed: memory that objects left behind is warm in both."""
    delivery = "register-per-call" if mode.endswith("register-per-call") else None

    def write() -> list[dict[str, int] | None]:
        return store.put(column.keys, values, delivery=delivery)

    write()
    store.remove(column.keys)
    kept: list[list[dict[str, int] | None]] = []
    reading = timed_call(store, write, kept, WRITE_COUNTERS)
    _check(mode, store, column, kept[0], rng)
    store.remove(column.keys)
    return reading


def _check(mode: str, store: tl.Store, column: Column, metas: list[dict[str, int] | None], rng: random.Random) -> None:
    """Reads a few values back and compares each in full."""
    chosen = rng.sample(range(len(column.keys)), min(_CHECKED_ROWS, len(column.keys)))
    keys = [column.keys[index] for index in chosen]
    if mode.startswith("packed"):
        found = store.get(keys, [None] * len(keys), [None] * len(keys), [metas[index] for index in chosen])
        rows = [torch.from_numpy(value["row"]) for value in found]
    else:
        rows = store.get(keys, [column.workload.shapes[index] for index in chosen], [column.dtype] * len(keys))
    for index, row in zip(chosen, rows, strict=True):
        if not torch.equal(row, column.row(index)):
            raise WrongContents(f"{column.workload.name}: row {index} is not what was written as {mode}")


def _row(mode: str, readings: list[Reading]) -> dict[str, Any]:
    """Times are medians; counters are means per write."""
    return timing([reading.total_ms for reading in readings]) | {
        "mode": mode,
        **{name: fmean([reading.counters[name] for reading in readings]) for name in WRITE_COUNTERS},
        "page_faults": fmean([reading.page_faults for reading in readings]),
    }


def _add_ratios(report: Report) -> None:
    """`ratio`: times as fast as the same values with their memory registered for the write."""
    medians = {(row["shape"], row["mode"]): row["median_ms"] for row in report["rows"]}
    for row in report["rows"]:
        baseline = medians.get((row["shape"], MODES[row["mode"]]))
        row["ratio"] = None if baseline is None else baseline / row["median_ms"]
        row["ratio_to_memcpy"] = row["median_ms"] / (report["memcpy_ms_per_gib"] * row["bytes"] / GIB)


COLUMNS = [
    TableColumn("median ms", lambda row: f"{row['median_ms']:.1f}"),
    TableColumn("min", lambda row: f"{row['min_ms']:.1f}"),
    TableColumn("stdev", lambda row: f"{row['stdev_ms']:.1f}"),
    TableColumn("GiB/s", lambda row: f"{row['bytes'] / GIB / row['median_ms'] * 1e3:.1f}"),
    TableColumn("vs register", lambda row: times(row["ratio"])),
    TableColumn("vs memcpy", lambda row: times(row["ratio_to_memcpy"])),
    TableColumn("registrations", lambda row: count(row["register_calls"])),
    TableColumn("in place", lambda row: count(row["in_place_writes"])),
    TableColumn("staged", lambda row: count(row["staged_writes"])),
    TableColumn("copied", lambda row: format_bytes(row["copied_bytes"])),
    TableColumn("calls", lambda row: count(row["engine_write_calls"])),
    TableColumn("page faults", lambda row: count(row["page_faults"])),
]


def render(report: Report) -> str:
    """The table, for people."""
    settings = report["settings"]
    notes = (
        f"{engine_line(report)}   budget {format_bytes(settings['max_bytes'])}, at most {settings['readers']} readers, "
        f"{settings['repetitions']} repetitions\n{machine_line(report)}\n"
        f"one memcpy of 1 GiB, one thread, warm: {report['memcpy_ms_per_gib']:.1f} ms\n"
        "foreign: ordinary tensors; arena: tensors of store.empty; packed: a dictionary with an array for each key\n"
        "vs register: times as fast as the same values with their memory registered for the write (more is better)"
    )
    return f"{notes}\n\n{table_of(report['rows'], COLUMNS, ('shape', 'mode'))}"
