"""What several readers of the same content take of the machine's memory: in the host's arena, and with a private store each.

Memory is the proportional set size: pages that several processes map count for each of them by its part, so that the sum is what is really used.

Usage: python -m bench.host.memory --json FILE [--readers N] [--check]
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from bench.host.asked import Asked
from bench.host.daemon import serving
from bench.host.promises import told
from bench.host.reporting import parser_of
from tensorlease.bench.machine import header, require_memory
from tensorlease.bench.report import Report, Row, TableColumn, machine_line, table_of, write_json
from tensorlease.sizes import GIB, MIB, format_bytes

READERS = 8
ROWS, ROW_BYTES = 1024, MIB
#: A private store has its objects in the process: as much room as they need.
PRIVATE_URL = f"embedded://?capacity={ROWS * ROW_BYTES + 16 * MIB}"


def main() -> int:
    parser = parser_of("memory", __doc__, repetitions=1)
    parser.add_argument("--readers", type=int, default=READERS)
    options = parser.parse_args()
    size = ROWS * ROW_BYTES
    require_memory(
        round(1.1 * options.readers * size) + GIB, f"{options.readers} private stores", "give fewer --readers"
    )
    report = header("host_memory", "host://", {"readers": options.readers, "bytes": size, "rows": ROWS})
    try:
        report["rows"] = [shared(options.readers), private(options.readers)]
        for row in report["rows"]:
            row["ratio"] = report["rows"][1]["pss_bytes"] / row["pss_bytes"]
        report["complete"] = True
    finally:
        write_json(report, options.json)
    print(render(report))
    return told(report, options.check)


def shared(readers: int) -> Row:
    """One arena: a writer fills it and goes, the readers look at all of it in place."""
    with serving(2 * GIB) as daemon, ExitStack() as stack:
        with Asked("bench.host.reader_side") as writer:
            writer.ask("open", daemon.url)
            writer.ask("fill", ROWS, ROW_BYTES)
        sides = [stack.enter_context(Asked("bench.host.reader_side")) for _ in range(readers)]
        for side in sides:
            side.ask("open", daemon.url)
        for side in sides:
            side.ask("look", ROWS)
        return row_of("shared", [pss_bytes(side.pid) for side in sides], pss_bytes(daemon.pid))


def private(readers: int) -> Row:
    """A store in each process, which holds the objects; nothing is read from it, which would take more."""
    with ExitStack() as stack:
        sides = [stack.enter_context(Asked("bench.host.reader_side")) for _ in range(readers)]
        for side in sides:
            side.ask("open", PRIVATE_URL)
            side.ask("fill", ROWS, ROW_BYTES)
        return row_of("private", [pss_bytes(side.pid) for side in sides], 0)


def pss_bytes(pid: int) -> int:
    """Proportional set size of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            return int(value.split()[0]) * 1024
    raise SystemExit(f"/proc/{pid}/smaps_rollup has no Pss")


def row_of(way: str, of_readers: list[int], of_daemon: int) -> Row:
    """One way of having the content."""
    whole = sum(of_readers) + of_daemon
    return {
        "way": way,
        "readers": len(of_readers),
        "readers_pss_bytes": of_readers,
        "daemon_pss_bytes": of_daemon,
        "pss_bytes": whole,
        "beside_content_bytes_per_reader": (whole - ROWS * ROW_BYTES * (1 if of_daemon else len(of_readers)))
        / len(of_readers),
    }


COLUMNS = [
    TableColumn("all together", lambda row: format_bytes(row["pss_bytes"])),
    TableColumn("daemon", lambda row: format_bytes(row["daemon_pss_bytes"]) if row["daemon_pss_bytes"] else "-"),
    TableColumn("beside the content, per reader", lambda row: format_bytes(row["beside_content_bytes_per_reader"])),
    TableColumn("times less", lambda row: f"{row['ratio']:.1f}"),
]


def render(report: Report) -> str:
    heading = f"{report['settings']['readers']} readers of the same {format_bytes(report['settings']['bytes'])}; proportional set sizes"
    return f"{heading}\n{machine_line(report)}\n\n{table_of(report['rows'], COLUMNS, ('way', 'readers'))}"


if __name__ == "__main__":
    sys.exit(main())
