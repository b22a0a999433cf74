"""`python -m bench sweep`: the released client's way and the reference's, for more and more keys per batch."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import tensorlease as tl
from bench.engine import Engine
from bench.lending import planned_loans, share_bytes
from tensorlease.bench.column import Column
from tensorlease.bench.machine import header
from tensorlease.bench.reading import BASELINE, STORE_POOL, Readings, alternate, row_of
from tensorlease.bench.report import Progress, Report, TableColumn, count, engine_line, machine_line, table_of
from tensorlease.bench.workload import Workload

#: `leased` knows no batches: it shows how much the machine drifted from one number of keys to the next.
MODES = (BASELINE, STORE_POOL, "leased")


@dataclass(frozen=True)
class SweepSettings:
    """Every shape is read with every number of keys per batch. The engine's own `batch_keys` is not used."""

    engine: Engine
    workloads: list[Workload]
    batch_keys: list[int]
    readers: int
    repetitions: int
    max_bytes: int
    seed: int


def new_report(settings: SweepSettings) -> Report:
    """A report without rows."""
    told: dict[str, object] = {
        **settings.engine.as_json(),
        "shapes": [workload.name for workload in settings.workloads],
        "batch_keys": settings.batch_keys,
        "readers": settings.readers,
        "repetitions": settings.repetitions,
        "max_bytes": settings.max_bytes,
        "seed": settings.seed,
    }
    return header("sweep", settings.engine.engine, told)


def run(settings: SweepSettings, report: Report) -> None:
    """A store per number of keys, one after the other; on each, the modes alternate."""
    if settings.engine.share is None:
        raise tl.ConfigError("a sweep compares with store-pool; name a share")
    settings.engine.require_feasible(
        [(workload, settings.max_bytes) for workload in settings.workloads], settings.readers
    )
    cases = [(workload, keys) for workload in settings.workloads for keys in settings.batch_keys]
    with Progress(len(cases) * settings.repetitions * len(MODES)) as progress:
        for workload, keys in cases:
            progress.note(f"{workload.name}: writing")
            _run_case(settings, workload, keys, report, progress)
    report["complete"] = True


def _run_case(settings: SweepSettings, workload: Workload, keys: int, report: Report, progress: Progress) -> None:
    readings: Readings = {mode: [] for mode in MODES}
    rng = random.Random(f"{settings.seed}/{workload.name}/{keys}")
    engine = replace(settings.engine, batch_keys=keys)
    column = Column(workload, settings.seed)
    try:
        with engine.store(workload, settings.max_bytes, settings.readers) as store:
            column.put(store)
            doing = f"{workload.name}, {keys} keys a batch"
            for mode in alternate(store, column, settings.repetitions, rng, readings):
                progress.step(f"{doing}: {mode}")
    finally:
        share = share_bytes(engine.local_buffer_bytes, settings.readers, engine.share or "half")
        planned = planned_loans(workload, keys, share)
        of_case = {"shape": workload.name, "batch_keys": keys, "bytes": workload.size_bytes, "planned_loans": planned}
        report["rows"] += [of_case | row_of(mode, done, settings.readers) for mode, done in readings.items() if done]


COLUMNS = [
    TableColumn("mode", lambda row: str(row["mode"])),
    TableColumn("median ms", lambda row: f"{row['median_ms']:.1f}"),
    TableColumn("stdev", lambda row: f"{row['stdev_ms']:.1f}"),
    TableColumn("registrations", lambda row: count(row["register_calls"])),
    TableColumn("loans", lambda row: count(row["loans"])),
]


def render(report: Report) -> str:
    """The table, for people."""
    settings = report["settings"]
    notes = (
        f"{engine_line(report)}   {settings['readers']} readers, {settings['repetitions']} repetitions\n"
        f"{machine_line(report)}\n"
        "each number of keys on a store of its own; leased knows no batches, so its column shows the drift of the machine"
    )
    return f"{notes}\n\n{table_of(report['rows'], COLUMNS, ('shape', 'batch_keys'))}"
