"""Many processes open the host's store at the same moment, where no daemon runs: how long until the last of them has put and got a value.

Usage: python -m bench.host.opens --json FILE [--processes N] [--reps N] [--check]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.host.promises import told
from bench.host.reporting import parser_of
from tensorlease import host
from tensorlease._core import host_listens
from tensorlease.bench.machine import header
from tensorlease.bench.report import Report, TableColumn, machine_line, table_of, write_json

PROCESSES = 100
TIMEOUT_SECONDS = 120.0
#: Forks after its imports, so that all of them wait behind one barrier with nothing left to import; prints when each was served.
OPENERS = """
import json, os, sys, time
sys.modules["torch"] = None
import tensorlease as tl
import tensorlease.codec
ready, go, done = os.pipe(), os.pipe(), os.pipe()
count = int(sys.argv[1])
for number in range(count):
    if os.fork() == 0:
        os.close(go[1])
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        start = time.monotonic()
        with tl.open(max_bytes="8MiB") as store:
            opened = time.monotonic()
            key = f"key/{number}"
            store.put([key], [number])
            right = store.get([key]) == [number]
            os.write(done[1], (json.dumps([start, opened, time.monotonic(), right]) + "\\n").encode())
        os._exit(0)
os.close(done[1])
left = count
while left:
    left -= len(os.read(ready[0], left))
start = time.monotonic()
os.close(go[1])
served = [json.loads(line) for line in os.fdopen(done[0])]
print(json.dumps([[moment - start for moment in times] + [right] for *times, right in served]))
for _ in range(count):
    os.wait()
"""


def main() -> int:
    parser = parser_of("opens", __doc__, repetitions=3)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    options = parser.parse_args()
    report = header("host_opens", "host://", {"processes": options.processes, "repetitions": options.reps})
    try:
        report["rows"] = [opened(options.processes, number) for number in range(options.reps)]
        report["complete"] = True
    finally:
        write_json(report, options.json)
    print(render(report))
    return told(report, options.check)


def opened(processes: int, number: int) -> dict[str, Any]:
    """One round, at a place of its own, whose daemon is ended."""
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        environment = {name: value for name, value in os.environ.items() if name != "TENSORLEASE_URL"}
        environment["XDG_RUNTIME_DIR"] = folder
        command = [sys.executable, "-c", OPENERS, str(processes)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
        socket = str(Path(folder) / "tensorlease/host.sock")
        if done.returncode != 0 or done.stderr:
            end(host.report(socket)["pid"], socket)
            raise SystemExit(f"of the processes that open some failed:\n{done.stderr[-4000:]}")
        served = json.loads(done.stdout)
        report = host.report(socket)
        started = (Path(folder) / "tensorlease/host.log").read_text().count("tensorlease: serving")
        end(report["pid"], socket)
    return {
        "round": number + 1,
        "processes": processes,
        "daemons": started,
        "served": sum(right for *_, right in served),
        "objects": report["objects"],
        # Those that opened after the daemon listened pay this and no start.
        "first_seconds": min(opened for _, opened, _, _ in served),
        "median_seconds": median([done for _, _, done, _ in served]),
        "seconds": max(done for _, _, done, _ in served),
    }


def end(pid: int, socket: str) -> None:
    """The objects of the round keep the daemon, so it is told."""
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + 10
    while host_listens(socket) and time.monotonic() < until:
        time.sleep(0.01)


COLUMNS = [
    TableColumn("daemons", lambda row: str(row["daemons"])),
    TableColumn("served", lambda row: str(row["served"])),
    TableColumn("first open s", lambda row: f"{row['first_seconds']:.2f}"),
    TableColumn("median s", lambda row: f"{row['median_seconds']:.2f}"),
    TableColumn("last s", lambda row: f"{row['seconds']:.2f}"),
]


def render(report: Report) -> str:
    heading = f"{report['settings']['processes']} processes open at the same moment; seconds from that moment"
    return f"{heading}\n{machine_line(report)}\n\n{table_of(report['rows'], COLUMNS, ('processes', 'round'))}"


if __name__ == "__main__":
    sys.exit(main())
