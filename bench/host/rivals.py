"""The host's arena beside Ray's object store and TransferQueue's SimpleStorage, in one run; writer and reader are two processes, the same for all three.

Usage: python -m bench.host.rivals --json FILE [--shapes A,B] [--reps N] [--seed N] [--check]
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import ray
import transfer_queue as tq

from bench.host.daemon import serving
from bench.host.promises import told
from bench.host.reporting import measured_row, parser_of
from bench.host.rival_side import RivalSide
from tensorlease.bench.machine import add_yardstick, header, require_memory
from tensorlease.bench.report import Report, Row, TableColumn, machine_line, table_of, times, write_json
from tensorlease.bench.workload import Workload, parse_workload
from tensorlease.sizes import GIB, MIB

SHAPES = ("64x4MiB", "256x1MiB", "4096x64KiB")
OURS, RAY, SIMPLE = "ours", "Ray", "SimpleStorage"
CONTENDERS = (OURS, RAY, SIMPLE)
READS = ("leased", "view")
#: As for a host that has just this to do; each store has room for several times the content.
RAY_CPUS = 4
RAY_BYTES = 2 * GIB
DAEMON_BYTES = 3 * GIB
ARENA_BYTES = 512 * MIB
NEEDED_BYTES = 6 * GIB
#: What each call took, by call and way.
Taken = dict[tuple[str, str], list[dict[str, float]]]


def main() -> int:
    options = parser_of("rivals", __doc__, repetitions=7, shapes=SHAPES).parse_args()
    require_memory(NEEDED_BYTES, "this comparison", "run it on a larger machine")
    workloads = [parse_workload(shape) for shape in options.shapes.split(",")]
    report = header("host_rivals", "host://", {"repetitions": options.reps, "seed": options.seed}, yardstick=True)
    report["versions"] |= {"ray": version("ray"), "TransferQueue": version("TransferQueue")}
    rng = random.Random(options.seed)
    try:
        add_yardstick(report)
        with sides() as (writer, reader):
            for workload in workloads:
                ray.get(writer.make.remote(workload.name))
                taken = run_shape(writer, reader, workload, options.reps, rng)
                report["rows"] += rows_of(workload, taken)
        add_yardstick(report)
        report["complete"] = True
    finally:
        write_json(report, options.json)
    print(render(report))
    return told(report, options.check)


@contextmanager
def sides() -> Iterator[tuple[Any, Any]]:
    """A writer and a reader, each in a process that has all three stores open."""
    # An actor computes with one thread unless told otherwise; the stores may copy with more.
    environment = {
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray lets its workers, which SimpleStorage's units are too, yield to all other processes; the daemon does not.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as Ray spells it
    with serving(DAEMON_BYTES) as daemon:
        ray.init(
            num_cpus=RAY_CPUS,
            object_store_memory=RAY_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": environment},
        )
        try:
            tq.init()
            actor: Any = ray.remote(RivalSide)
            writer, reader = (actor.remote(daemon.url, ARENA_BYTES) for _ in range(2))
            if len({os.getpid(), *ray.get([writer.pid.remote(), reader.pid.remote()])}) != 3:
                raise SystemExit("writer and reader are one process")
            yield writer, reader
            ray.get([writer.close.remote(), reader.close.remote()])
            tq.close()
        finally:
            ray.shutdown()


def run_shape(writer: Any, reader: Any, workload: Workload, repetitions: int, rng: random.Random) -> Taken:
    """Each contender puts, gets and clears once untimed and once timed; their order is random within each repetition."""
    taken: Taken = {}
    for repetition in range(repetitions):
        print(f"{workload.name}: {repetition + 1} of {repetitions}", file=sys.stderr, flush=True)
        for contender in rng.sample(CONTENDERS, len(CONTENDERS)):
            for counted in (False, True):
                for case, measured in turn(contender, writer, reader, workload.name, rng):
                    if counted:
                        taken.setdefault(case, []).append(measured)
    return taken


def turn(
    contender: str, writer: Any, reader: Any, shape: str, rng: random.Random
) -> Iterator[tuple[tuple[str, str], dict[str, float]]]:
    """One step of a job."""
    if contender == RAY:
        measured, refs = ray.get(writer.put_ray.remote(shape))
        yield ("put", RAY), measured
        # In a list they are handed over as references, and the reader gets them itself.
        yield ("get", RAY), ray.get(reader.get_ray.remote(refs))
        # With the last reference the objects go.
        del refs
    elif contender == SIMPLE:
        yield ("put", SIMPLE), ray.get(writer.put_simple_storage.remote(shape))
        yield ("get", SIMPLE), ray.get(reader.get_simple_storage.remote(shape))
    else:
        yield ("put", "put"), ray.get(writer.put_ours.remote(shape))
        for way in rng.sample(READS, len(READS)):
            yield ("get", way), ray.get(reader.get_ours.remote(shape, way))
    ray.get(writer.clear.remote(shape, contender))


def rows_of(workload: Workload, taken: Taken) -> list[Row]:
    """A row for each call of each contender, with how many times as fast as each rival it was."""
    rows: list[Row] = []
    for call, way in (("put", "put"), ("put", RAY), ("put", SIMPLE), *(("get", way) for way in (*READS, RAY, SIMPLE))):
        measured = taken[call, way]
        row = measured_row(workload, way, [one["ms"] for one in measured]) | {"call": call}
        if way == SIMPLE:
            # What is not data: told apart, and left out of the comparison in the rival's favour.
            row["controller_ms"] = median([one["controller_ms"] for one in measured])
            row["data_ms"] = median([one["ms"] - one["controller_ms"] for one in measured])
        rows.append(row)
    rivals = {(row["call"], row["way"]): row.get("data_ms", row["median_ms"]) for row in rows}
    for row in rows:
        row["ratios"] = {rival: rivals[row["call"], rival] / row["median_ms"] for rival in (SIMPLE, RAY)}
    return rows


COLUMNS = [
    TableColumn("median ms", lambda row: f"{row['median_ms']:.2f}"),
    TableColumn("min ms", lambda row: f"{row['min_ms']:.2f}"),
    TableColumn("GiB/s", lambda row: f"{row['bytes'] / GIB / row['median_ms'] * 1e3:.1f}"),
    TableColumn("controller ms", lambda row: f"{row['controller_ms']:.1f}" if "controller_ms" in row else "-"),
    TableColumn("vs SimpleStorage", lambda row: times(row["ratios"][SIMPLE])),
    TableColumn("vs Ray", lambda row: times(row["ratios"][RAY])),
]


def render(report: Report) -> str:
    versions = report["versions"]
    named = [row | {"case": f"{row['call']} {row['shape']}"} for row in report["rows"]]
    return (
        f"TransferQueue {versions['TransferQueue']} with SimpleStorage, Ray {versions['ray']}; writer and reader in two processes; "
        f"median of {report['settings']['repetitions']} calls in random order\n{machine_line(report)}, "
        f"one memcpy of 1 GiB: {report['memcpy_ms_per_gib']:.1f} ms\n\n{table_of(named, COLUMNS, ('case', 'way'))}"
    )


if __name__ == "__main__":
    sys.exit(main())
