"""`python -m bench rounds`: how many leases of Mooncake's pool a read takes, counted by reading, beside what the reference published."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import tensorlease as tl
from bench.engine import Engine
from bench.lending import BATCH_KEYS, READERS, planned_loans, published_loans, share_bytes
from tensorlease.bench.column import Column
from tensorlease.bench.machine import header
from tensorlease.bench.reading import STORE_POOL, Readings, alternate, row_of
from tensorlease.bench.report import Progress, Report, TableColumn, count, engine_line, machine_line, table_of
from tensorlease.bench.workload import Workload
from tensorlease.sizes import MIB, format_bytes

#: Nothing is leased from the arena here; it only stages what is written.
_ARENA_BYTES = 256 * MIB


@dataclass(frozen=True)
class RoundsSettings:
    """One batch is read with every local buffer, every shape with one buffer; both with every share."""

    engine: Engine
    batch: Workload
    buffers_bytes: list[int]
    workloads: list[Workload]
    shares: list[str]
    repetitions: int
    seed: int

    def cases(self) -> list[tuple[Workload, Engine]]:
        """Everything that is read, and on what."""
        rounds = [
            (self.batch, replace(self.engine, local_buffer_bytes=buffer, share=share))
            for share in self.shares
            for buffer in self.buffers_bytes
        ]
        leases = [(workload, replace(self.engine, share=share)) for workload in self.workloads for share in self.shares]
        return rounds + leases


def new_report(settings: RoundsSettings) -> Report:
    """A report without rows."""
    told: dict[str, object] = {
        "batch": settings.batch.name,
        "buffers_bytes": settings.buffers_bytes,
        "shapes": [workload.name for workload in settings.workloads],
        "shares": settings.shares,
        "batch_keys": BATCH_KEYS,
        "readers": READERS,
        "repetitions": settings.repetitions,
        "seed": settings.seed,
    }
    if "owner" in settings.engine.as_json():
        told["owner"] = settings.engine.owner
    return header("rounds", settings.engine.engine, told) | {"skipped": []}


def run(settings: RoundsSettings, report: Report) -> None:
    """A store per case. One that the machine has no room for is named in `skipped`, and the others go on."""
    settings.engine.require_valid()
    cases = settings.cases()
    with Progress(len(cases) * settings.repetitions) as progress:
        for workload, engine in cases:
            of_case: dict[str, Any] = {
                "shape": workload.name,
                "local_buffer_bytes": engine.local_buffer_bytes,
                "share": engine.share,
            }
            try:
                engine.require_room(workload, _ARENA_BYTES)
            except tl.ConfigError as error:
                report["skipped"].append(of_case | {"why": str(error)})
                continue
            progress.note(f"{workload.name}: writing")
            report["rows"].append(of_case | _counted(settings, workload, engine, progress))
    report["complete"] = True


def _counted(settings: RoundsSettings, workload: Workload, engine: Engine, progress: Progress) -> dict[str, Any]:
    share = engine.share or "half"
    buffer = engine.local_buffer_bytes
    readings: Readings = {STORE_POOL: []}
    column, rng = Column(workload, settings.seed), random.Random(settings.seed)
    doing = f"{workload.name}, buffer {format_bytes(buffer)}, share {share}"
    with engine.store(workload, _ARENA_BYTES, READERS) as store:
        column.put(store)
        for _ in alternate(store, column, settings.repetitions, rng, readings):
            progress.step(doing)
    return {
        "planned_loans": planned_loans(workload, engine.batch_keys, share_bytes(buffer, READERS, share)),
        "published_loans": published_loans(workload.name, share, buffer),
        **row_of(STORE_POOL, readings[STORE_POOL], READERS),
    }


COLUMNS = [
    TableColumn("local buffer", lambda row: format_bytes(row["local_buffer_bytes"])),
    TableColumn("loans per read", lambda row: count(row["loans"])),
    TableColumn("planned", lambda row: count(row["planned_loans"])),
    TableColumn("published", lambda row: "-" if row["published_loans"] is None else count(row["published_loans"])),
    TableColumn("overflow", lambda row: count(row["overflow_loans"])),
    TableColumn("registrations", lambda row: count(row["register_calls"])),
    TableColumn("median ms", lambda row: f"{row['median_ms']:.1f}"),
]


def render(report: Report) -> str:
    """The table, for people."""
    settings = report["settings"]
    notes = (
        f"{engine_line(report)}   {settings['readers']} readers, batches of {settings['batch_keys']} keys\n"
        f"{machine_line(report)}\n"
        "planned: what batches and share come to; published: the reference's figure; times come from stores of their own, one after the other"
    )
    skipped = [
        f"left out: {case['shape']}, buffer {format_bytes(case['local_buffer_bytes'])}, share {case['share']}: {case['why']}"
        for case in report["skipped"]
    ]
    return "\n".join([f"{notes}\n\n{table_of(report['rows'], COLUMNS, ('shape', 'share'))}", *skipped])
