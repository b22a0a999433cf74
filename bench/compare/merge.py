"""The reports of several processes as one: medians over the processes, ratios, a table, a chart, and whether the promises hold.

Usage: python -m bench.compare.merge --json FILE --plot FILE [--check] REPORT...
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean, median

from bench.compare.chart import plot_comparison
from bench.compare.contenders import READS, REFERENCE, RELEASED, WRITES
from bench.compare.promises import broken_promises
from bench.spread import stdev
from bench.stored_report import read_json
from tensorlease.bench.report import (
    Report,
    Row,
    TableColumn,
    count,
    machine_line,
    table_of,
    times,
    write_json,
)
from tensorlease.sizes import GIB

#: One row for each of these.
Case = tuple[str, str, str]

COLUMNS = [
    TableColumn("median ms", lambda row: f"{row['median_ms']:.1f}"),
    TableColumn("of processes", lambda row: " ".join(f"{ms:.0f}" for ms in row["processes_ms"])),
    TableColumn("GiB/s", lambda row: f"{row['bytes'] / GIB / row['median_ms'] * 1e3:.1f}"),
    TableColumn("vs released", lambda row: times(row["ratio_to_released"])),
    TableColumn("vs reference", lambda row: times(row["ratio_to_reference"]), lambda row: row["ratio_to_reference"]),
    TableColumn("registrations", lambda row: count(row["register_calls"])),
    TableColumn("page faults", lambda row: count(row["page_faults"])),
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.compare.merge", description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--plot", type=Path, required=True)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    report = merged([read_json(path) for path in options.reports])
    write_json(report, options.json)
    plot_comparison(report, options.plot)
    print(render(report))
    broken = broken_promises(report) if options.check else []
    print("\n".join(broken) or ("every promise holds" if options.check else ""))
    return 1 if broken else 0


def merged(reports: list[Report]) -> Report:
    """The first one's head; rows in a fixed order."""
    first = reports[0]
    owners = {report["settings"]["owner"] for report in reports}
    if len(owners) != 1 or not all(report["complete"] for report in reports):
        raise SystemExit("compare.merge: the reports are of different kinds, or one was interrupted; run them again")
    memcpy_ms = [ms for report in reports for ms in report["memcpy_samples_ms"]]
    shapes = list(dict.fromkeys(row["shape"] for row in sorted(first["rows"], key=_by_size)))
    cases: list[Case] = [("read", shape, mode) for shape in shapes for mode in READS]
    cases += [("write", shape, mode) for shape in shapes for mode in WRITES]
    rows = [_merged_row(case, reports) for case in cases]
    medians = {_case(row): row["median_ms"] for row in rows}
    for row in rows:
        for mode in (RELEASED, REFERENCE):
            other = medians.get((row["kind"], row["shape"], mode))
            row[f"ratio_to_{mode}"] = None if other is None else other / row["median_ms"]
    settings = {**first["settings"], "shapes": shapes, "processes": len(reports)}
    settings["seed"] = [report["settings"]["seed"] for report in reports]
    yardstick = {"memcpy_samples_ms": memcpy_ms, "memcpy_ms_per_gib": median(memcpy_ms)}
    return {**first, "settings": settings, "rows": rows, **yardstick}


def _by_size(row: Row) -> tuple[bool, float, int]:
    return row["shape"] == "ragged", -row["bytes"] / row["keys"], row["keys"]


def _case(row: Row) -> Case:
    return row["kind"], row["shape"], row["mode"]


def _merged_row(case: Case, reports: list[Report]) -> Row:
    rows = [row for report in reports for row in report["rows"] if _case(row) == case]
    medians = [row["median_ms"] for row in rows]
    summed_up: Row = {
        "processes_ms": medians,
        "median_ms": median(medians),
        "min_ms": min(row["min_ms"] for row in rows),
        "stdev_ms": stdev([ms for row in rows for ms in row["repetitions_ms"]]),
        "repetitions_ms": [row["repetitions_ms"] for row in rows],
        "register_calls": fmean([row["register_calls"] for row in rows]),
        "page_faults": fmean([row["page_faults"] for row in rows]),
    }
    return {**rows[0], **summed_up}


def render(report: Report) -> str:
    """The tables, for people."""
    settings, versions = report["settings"], report["versions"]
    where = "this" if settings["owner"] == "same" else "another"
    head = (
        f"Mooncake {versions.get('mooncake', '')} over TCP, segment in {where} process; TransferQueue {versions['TransferQueue']}; "
        f"{settings['readers']} readers; median over {settings['processes']} processes of {settings['repetitions']} reads or {settings['write_repetitions']} writes each\n"
        f"{machine_line(report)}, one memcpy of 1 GiB: {report['memcpy_ms_per_gib']:.1f} ms\n"
    )
    tables = [
        f"{kind}s\n{table_of([row for row in report['rows'] if row['kind'] == kind], COLUMNS, ('shape', 'mode'))}"
        for kind in ("read", "write")
    ]
    return head + "\n" + "\n\n".join(tables)


if __name__ == "__main__":
    sys.exit(main())
