"""Writer and reader in two processes on one arena, beside one memcpy of as many bytes; then single small calls beside a ping-pong.

Usage: python -m bench.host.speed --json FILE [--shapes A,B] [--reps N] [--seed N] [--check]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from bench.host.asked import Asked
from bench.host.daemon import serving
from bench.host.promises import told
from bench.host.reporting import measured_row, parser_of, small_row
from tensorlease.bench.machine import header, require_memory
from tensorlease.bench.reading import timing
from tensorlease.bench.report import Report, TableColumn, machine_line, table_of, write_json
from tensorlease.bench.workload import Workload, parse_workload
from tensorlease.sizes import GIB, MIB

SHAPES = ("64x16MiB", "1024x1MiB", "16384x64KiB")
#: Of one side's arena: what one read takes, and the reserve for copies.
ARENA_BYTES = 1536 * MIB
#: All objects, those that they replace while they are written, and both arenas.
DAEMON_BYTES = 6 * GIB
NEEDED_BYTES = DAEMON_BYTES + 5 * GIB
SMALL_ROUNDS, SMALL_CALLS = 20, 200


def main() -> int:
    options = parser_of("speed", __doc__, repetitions=7, shapes=SHAPES).parse_args()
    require_memory(NEEDED_BYTES, "this measurement", "run it on a larger machine")
    workloads = [parse_workload(shape) for shape in options.shapes.split(",")]
    settings = {"repetitions": options.reps, "seed": options.seed, "small_calls": SMALL_ROUNDS * SMALL_CALLS}
    report = header("host_speed", "host://", settings, yardstick=True)
    rng = random.Random(options.seed)
    try:
        for workload in rng.sample(workloads, len(workloads)):
            with serving(DAEMON_BYTES) as daemon:
                run_shape(daemon.url, workload, options.reps, rng, report)
        with serving(DAEMON_BYTES) as daemon, Asked("bench.host.store_side") as side:
            side.ask("open", daemon.url, ARENA_BYTES)
            taken = side.ask("small", SMALL_ROUNDS, SMALL_CALLS)
            report["small"] = [small_row(kind, samples, taken["ping-pong"]) for kind, samples in taken.items()]
        report["rows"].sort(key=lambda row: [workload.name for workload in workloads].index(row["shape"]))
        report["complete"] = True
    finally:
        write_json(report, options.json)
    print(render(report))
    return told(report, options.check)


def run_shape(url: str, workload: Workload, repetitions: int, rng: random.Random, report: Report) -> None:
    """Every way once untimed and once timed, in random order within each repetition. A shape has a daemon and two processes of its own."""
    name = workload.name
    with Asked("bench.host.store_side") as writer, Asked("bench.host.store_side") as reader:
        for side in (writer, reader):
            side.ask("open", url, ARENA_BYTES)
        writer.ask("make", name)
        # What the very first call pays: memory that nobody has touched yet.
        first = {"put numpy": writer.ask("put", name, "numpy")}
        first["leased numpy"] = reader.ask("get", name, "numpy", "leased")
        views: list[list[float]] = []

        def view() -> float:
            views.append(reader.ask("view", name))
            return views[-1][0]

        ways: dict[str, Callable[[], float]] = {
            "memcpy": lambda: reader.ask("memcpy"),
            "put numpy": lambda: writer.ask("put", name, "numpy"),
            "put torch": lambda: writer.ask("put", name, "torch"),
            "leased numpy": lambda: reader.ask("get", name, "numpy", "leased"),
            "leased torch": lambda: reader.ask("get", name, "torch", "leased"),
            "copied torch": lambda: reader.ask("get", name, "torch", "copied"),
            "view": view,
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for repetition in range(repetitions):
            print(f"{name}: {repetition + 1} of {repetitions}", file=sys.stderr, flush=True)
            for way in rng.sample(list(ways), len(ways)):
                ways[way]()
                taken[way].append(ways[way]())
    report["memcpy_samples_ms"] += taken["memcpy"]
    report["memcpy_ms_per_gib"] = timing(report["memcpy_samples_ms"])["median_ms"]
    memcpy_ms = timing(taken["memcpy"])["median_ms"] * workload.size_bytes / GIB
    for way, samples in taken.items():
        more: dict[str, Any] = {"first_ms": first.get(way)}
        if way == "view":
            # Of the timed views; the others were asked to warm up.
            more["drop_median_ms"] = timing([drop for _, drop in views[1::2]])["median_ms"]
        report["rows"].append(measured_row(workload, way, samples, memcpy_ms) | more)


COLUMNS = [
    TableColumn("median ms", lambda row: f"{row['median_ms']:.2f}"),
    TableColumn("min ms", lambda row: f"{row['min_ms']:.2f}"),
    TableColumn("of memcpy", lambda row: f"{row['ratio_to_memcpy']:.2f}"),
    TableColumn("GiB/s", lambda row: f"{row['bytes'] / GIB / row['median_ms'] * 1e3:.1f}"),
    TableColumn("first ms", lambda row: f"{row['first_ms']:.0f}" if row["first_ms"] else "-"),
    TableColumn("drop ms", lambda row: f"{row['drop_median_ms']:.2f}" if "drop_median_ms" in row else "-"),
]
SMALL_COLUMNS = [
    TableColumn("p50 us", lambda row: f"{row['p50_us']:.1f}"),
    TableColumn("p99 us", lambda row: f"{row['p99_us']:.1f}"),
    TableColumn("of a ping-pong", lambda row: f"{row['ratio']:.2f}"),
]


def render(report: Report) -> str:
    return (
        f"Two processes on one arena; median of {report['settings']['repetitions']} calls in random order\n{machine_line(report)}, "
        f"one memcpy of 1 GiB: {report['memcpy_ms_per_gib']:.1f} ms\n\n{table_of(report['rows'], COLUMNS, ('shape', 'way'))}\n\n"
        f"{table_of(report['small'], SMALL_COLUMNS, ('bytes', 'call'))}"
    )


if __name__ == "__main__":
    sys.exit(main())
