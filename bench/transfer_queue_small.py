"""The "Small" case of TransferQueue's own performance script, with its released client and with ours: 1024 samples of 9 columns of 8192 float32.

Each job is a process of its own with a Ray and a Mooncake master of its own; the clients alternate. The time of the controller, which is the
same code in both, is shown apart: ratios are of what is left, and of the whole.

Usage: python -m bench.transfer_queue_small --json FILE [--owners same,other] [--jobs N] [--reps N] [--check]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench.cluster import Master, SegmentOwner, native_messages_aside
from tensorlease.bench.machine import add_yardstick, header
from tensorlease.bench.report import Report, Row, TableColumn, machine_line, table_of, times, write_json
from tensorlease.sizes import GIB, MIB

SAMPLES, FIELDS, ELEMENTS = 1024, 9, 8192
BYTES = SAMPLES * FIELDS * ELEMENTS * 4
RELEASED, OURS, DENSE = "released", "ours", "ours dense"
CLIENTS = (RELEASED, OURS, DENSE)
#: Of `kv_batch_get`, times as fast as the released client, without the controller's time; by where the segment is.
PROMISED = {"same": {OURS: 2.0, DENSE: 4.0}, "other": {OURS: 1.3, DENSE: 1.6}}
JOB_SECONDS = 300.0
RAY_CPUS = 4
#: Twice the values, since Mooncake's allocator needs room to move.
SEGMENT_BYTES = 1 * GIB
LOCAL_BUFFER_BYTES = 512 * MIB
ARENA_BYTES = 1 * GIB


def main() -> int:
    options = arguments()
    if options.job is not None:
        run_job(options.job, options.owner, options.reps, options.json)
        return 0
    owners = options.owners.split(",")
    settings = {"owners": owners, "jobs": options.jobs, "reps": options.reps, "samples": SAMPLES, "fields": FIELDS}
    report = header("transfer_queue_small", "mooncake", {**settings, "elements": ELEMENTS}, yardstick=True)
    report["versions"]["TransferQueue"] = version("TransferQueue")
    try:
        add_yardstick(report)
        for owner in owners:
            report["rows"] += rows_of(owner, options.jobs, options.reps)
        add_yardstick(report)
        report["complete"] = True
    finally:
        write_json(report, options.json)
    print(render(report))
    broken = broken_promises(report) if options.check else []
    print("\n".join(broken) or ("every promise holds" if options.check else ""))
    return 1 if broken else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="transfer_queue_small", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--owners", default="same,other")
    parser.add_argument("--jobs", type=int, default=5, help="processes of each client")
    parser.add_argument("--reps", type=int, default=4, help="calls of each kind in each process, after one untimed")
    parser.add_argument("--check", action="store_true", help="exit 1 where a promised figure is missed")
    parser.add_argument("--job", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--owner", choices=["same", "other"], help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- the processes ---------------------------------------------------------------------------------------------------------------


def rows_of(owner: str, jobs: int, reps: int) -> list[Row]:
    """One row for each client and call: medians over the jobs."""
    measured: dict[str, list[dict[str, list[dict[str, float]]]]] = {client: [] for client in CLIENTS}
    for job in range(jobs):
        # Another one begins each time, so that none is always first.
        for client in CLIENTS[job % len(CLIENTS) :] + CLIENTS[: job % len(CLIENTS)]:
            print(f"segment in the {owner} process, job {job + 1} of {jobs}: {client}", file=sys.stderr, flush=True)
            measured[client].append(in_a_process(client, owner, reps))
    rows = [row_of(owner, client, call, measured[client]) for call in ("put", "get") for client in CLIENTS]
    base = {row["call"]: row for row in rows if row["client"] == RELEASED}
    for row in rows:
        for name in ("total", "data"):
            row[f"{name}_ratio"] = base[row["call"]][f"{name}_ms"] / row[f"{name}_ms"]
    return rows


def row_of(owner: str, client: str, call: str, jobs: list[dict[str, list[dict[str, float]]]]) -> Row:
    def of_jobs(name: str) -> list[float]:
        return [median([one[name] for one in job[call]]) for job in jobs]

    return {
        "case": f"{call}, segment in {'this' if owner == 'same' else 'another'} process",
        "owner": owner,
        "call": call,
        "client": client,
        "bytes": BYTES,
        **{f"{name}_ms": median(of_jobs(f"{name}_ms")) for name in ("total", "controller", "data")},
        "jobs_data_ms": of_jobs("data_ms"),
        "jobs_total_ms": of_jobs("total_ms"),
    }


def in_a_process(client: str, owner: str, reps: int) -> dict[str, list[dict[str, float]]]:
    """A job of its own: what each of its calls took."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "measured.json", Path(folder) / "log"
        job = [sys.executable, "-m", "bench.transfer_queue_small"]
        command = [*job, "--job", client, "--owner", owner, "--reps", str(reps), "--json", str(out)]
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        with log.open("wb") as written:
            done = subprocess.run(
                command, env=environment, stdout=written, stderr=written, timeout=JOB_SECONDS, check=False
            )
        if done.returncode != 0 or not out.exists():
            raise SystemExit(f"the job of {client} ended with {done.returncode}:\n{log.read_text()[-4000:]}")
        measured: dict[str, list[dict[str, float]]] = json.loads(out.read_text())
    return measured


# ---- one job ---------------------------------------------------------------------------------------------------------------------


def run_job(client: str, owner: str, reps: int, out: Path) -> None:
    import ray

    runtime_env: dict[str, Any] = {}
    if client != RELEASED:
        import tensorlease.transfer_queue

        runtime_env = tensorlease.transfer_queue.runtime_env()
    with Master(lease_ttl_ms=60_000) as master, segment_owner(master, owner):
        ray.init(num_cpus=RAY_CPUS, include_dashboard=False, log_to_driver=False, runtime_env=runtime_env)
        try:
            with queue(client, owner, master) as watch, native_messages_aside():
                measured = measure(watch, reps)
        finally:
            ray.shutdown()
    out.write_text(json.dumps(measured))


@contextmanager
def segment_owner(master: Master, owner: str) -> Iterator[None]:
    """A process that has all of the memory, or none."""
    if owner == "same":
        yield
        return
    with SegmentOwner(master.url(segment=SEGMENT_BYTES, local_buffer="16MiB")):
        yield


@contextmanager
def queue(client: str, owner: str, master: Master) -> Iterator[ControllerWatch]:
    import transfer_queue as tq
    from omegaconf import OmegaConf

    mooncake: dict[str, Any] = {
        "auto_init": False,
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master.address,
        "local_hostname": "127.0.0.1",
        "protocol": "tcp",
        "global_segment_size": SEGMENT_BYTES if owner == "same" else 0,
        "local_buffer_size": LOCAL_BUFFER_BYTES,
    }
    if client != RELEASED:
        mooncake["tensorlease"] = {"max_bytes": ARENA_BYTES, "dense": client == DENSE}
    tq.init(OmegaConf.create({"backend": {"storage_backend": "MooncakeStore", "MooncakeStore": mooncake}}))
    used = type(tq.get_client().storage_manager.storage_client).__name__
    if (used == "MooncakeStoreClient") != (client == RELEASED):
        raise SystemExit(f"{client} runs on {used}")
    try:
        yield ControllerWatch(tq.get_client())
    finally:
        tq.close()


class ControllerWatch:
    """Adds up what the client's requests to the controller take."""

    def __init__(self, client: Any) -> None:
        self.seconds = 0.0
        client._request_controller = self._timed(client._request_controller)
        client.storage_manager.notify_data_update = self._timed(client.storage_manager.notify_data_update)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return await call(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - start

        return timed

    def measure(self, call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
        """Calls once."""
        self.seconds = 0.0
        start = time.perf_counter()
        result = call()
        total_ms, controller_ms = (time.perf_counter() - start) * 1e3, self.seconds * 1e3
        return result, {"total_ms": total_ms, "controller_ms": controller_ms, "data_ms": total_ms - controller_ms}


def measure(watch: ControllerWatch, reps: int) -> dict[str, list[dict[str, float]]]:
    """Puts, gets, compares and clears under the same keys; the first round is not counted."""
    import torch
    import transfer_queue as tq
    from tensordict import TensorDict

    generator = torch.Generator().manual_seed(0)
    columns = {f"field_{field}": torch.rand(SAMPLES, ELEMENTS, generator=generator) for field in range(FIELDS)}
    keys = [f"sample_{sample}" for sample in range(SAMPLES)]
    measured: dict[str, list[dict[str, float]]] = {"put": [], "get": []}
    for rep in range(reps + 1):
        fields = TensorDict(columns, batch_size=[SAMPLES])
        _, put = watch.measure(functools.partial(tq.kv_batch_put, keys, "bench", fields=fields))
        found, got = watch.measure(functools.partial(tq.kv_batch_get, keys, "bench"))
        for name, column in columns.items():
            rows = found[name].unbind()
            if not all(torch.equal(rows[at], column[at]) for at in (0, SAMPLES // 2, SAMPLES - 1)):
                raise SystemExit(f"{name} is not what was put")
        # Blocks that the result owns go back before the next read.
        del found, rows
        tq.kv_clear(keys, "bench")
        if rep:
            measured["put"].append(put)
            measured["get"].append(got)
    return measured


# ---- the report ------------------------------------------------------------------------------------------------------------------

COLUMNS = [
    TableColumn("total ms", lambda row: f"{row['total_ms']:.1f}"),
    TableColumn("controller ms", lambda row: f"{row['controller_ms']:.1f}"),
    TableColumn("without it ms", lambda row: f"{row['data_ms']:.1f}"),
    TableColumn("of jobs", lambda row: " ".join(f"{ms:.0f}" for ms in row["jobs_data_ms"])),
    TableColumn("GiB/s", lambda row: f"{row['bytes'] / GIB / row['data_ms'] * 1e3:.1f}"),
    TableColumn("vs released", lambda row: times(row["data_ratio"])),
    TableColumn("vs released, total", lambda row: times(row["total_ratio"])),
]


def render(report: Report) -> str:
    settings = report["settings"]
    return (
        f"TransferQueue {report['versions']['TransferQueue']}, Mooncake over TCP; {SAMPLES} samples x {FIELDS} fields x {ELEMENTS} float32; "
        f"median over {settings['jobs']} jobs of {settings['reps']} calls each\n"
        f"{machine_line(report)}, one memcpy of 1 GiB: {report['memcpy_ms_per_gib']:.1f} ms\n\n"
        f"{table_of(report['rows'], COLUMNS, ('case', 'client'))}\n"
    )


def broken_promises(report: Report) -> list[str]:
    """A line for each promise that does not hold."""
    broken = []
    for row in report["rows"]:
        least = PROMISED[row["owner"]].get(row["client"]) if row["call"] == "get" else None
        if least is not None and row["data_ratio"] < least:
            broken.append(
                f"MISSED  {row['case']}, {row['client']}: {row['data_ratio']:.2f}x released, promised {least}x"
            )
    return broken


if __name__ == "__main__":
    sys.exit(main())
