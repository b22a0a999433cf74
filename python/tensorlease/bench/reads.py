"""`tensorlease bench reads`: every mode on every shape, in random order within each repetition."""

import random
from dataclasses import dataclass

from tensorlease.bench.column import Column
from tensorlease.bench.machine import add_yardstick, header
from tensorlease.bench.opening import EngineChoice
from tensorlease.bench.reading import BASELINE, STORE_POOL, Readings, alternate, require_comparable, row_of
from tensorlease.bench.report import (
    Progress,
    Report,
    TableColumn,
    Verdict,
    at_least,
    at_most,
    count,
    engine_line,
    machine_line,
    table_of,
    times,
)
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


def new_report(settings: ReadsSettings) -> Report:
    """A report without rows, with everything that is needed to run it again."""
    told = {name: getattr(settings, name) for name in ("modes", "readers", "repetitions", "max_bytes", "seed")}
    shapes = [workload.name for workload in settings.workloads]
    told |= {"shapes": shapes, **settings.engine.as_json()}
    return header("reads", settings.engine.engine, told, yardstick=True)


def run(settings: ReadsSettings, report: Report) -> None:
    """Fills `report` shape by shape; whatever ends the run, the rows that were measured stay in it."""
    require_comparable(settings.modes)
    cases = [(workload, settings.max_bytes) for workload in settings.workloads]
    settings.engine.require_feasible(cases, settings.readers)
    with Progress(len(cases) * settings.repetitions * len(settings.modes)) as progress:
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
    copies_fit = settings.engine.share is None
    try:
        column = Column(workload, settings.seed)
        with settings.engine.store(workload, settings.max_bytes, settings.readers, copies_fit=copies_fit) as store:
            column.put(store)
            for mode in alternate(store, column, settings.repetitions, rng, readings):
                progress.step(f"{workload.name} {mode}")
    finally:
        of_shape = {"shape": workload.name, "keys": len(workload.lengths), "bytes": workload.size_bytes}
        report["rows"] += [of_shape | row_of(mode, done, settings.readers) for mode, done in readings.items() if done]


def _add_ratios(report: Report) -> None:
    """Times as fast as register-per-call, and as the reference's way; and times as long as one memcpy of as many bytes."""
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
    TableColumn("stages / wall", lambda row: f"{row['stages_of_total']:.1%}", lambda row: row["stages_of_total"]),
]


def render(report: Report) -> str:
    settings, rows = report["settings"], report["rows"]
    budget = format_bytes(settings["max_bytes"])
    pooled = ", vs store-pool" if any(row["ratio_to_store_pool"] for row in rows) else ""
    notes = [
        f"{engine_line(report)}   budget {budget}, at most {settings['readers']} readers, {settings['repetitions']} repetitions",
        machine_line(report),
        f"one memcpy of 1 GiB, one thread, warm: {report['memcpy_ms_per_gib']:.1f} ms",
        f"vs register{pooled}: times as fast as that mode (more is better); "
        "vs memcpy: times as long as that memcpy (less is better)",
    ]
    if any(row["fallbacks"] for row in rows):
        full = "values of a read that found no room in the budget"
        notes.append(f"fallbacks: {full}; loop keeps the result of the read before")
    return "\n".join([*notes, "", table_of(rows, COLUMNS, ("shape", "mode"))])


#: The figures that this project promises of the embedded engine.
LEASED_AGAINST_REGISTER_MIN = {"64x16MiB": 4.5, "1024x1MiB": 4.0, "4096x1MiB": 4.0, "16384x64KiB": 3.5, "ragged": 4.0}
LEASED_AGAINST_MEMCPY_MAX = {"64x16MiB": 0.9, "1024x1MiB": 0.9, "16384x64KiB": 1.1}


def check_reads(report: Report) -> list[Verdict]:
    """A verdict per promise that the report says anything about."""
    verdicts = []
    is_pinned = "registration=pinned" in report["engine"]
    for row in (row for row in report["rows"] if row["mode"] == "leased"):
        shape = row["shape"]
        verdicts.append(at_most(row["register_calls"], 0, f"{shape}: registrations per leased read"))
        if is_pinned and shape in LEASED_AGAINST_REGISTER_MIN and row["ratio"] is not None:
            least = LEASED_AGAINST_REGISTER_MIN[shape]
            verdicts.append(at_least(row["ratio"], least, f"{shape}: leased against register-per-call"))
        if not is_pinned and report["engine"].startswith("embedded:") and shape in LEASED_AGAINST_MEMCPY_MAX:
            most = LEASED_AGAINST_MEMCPY_MAX[shape]
            verdicts.append(at_most(row["ratio_to_memcpy"], most, f"{shape}: leased against one memcpy"))
    return verdicts
