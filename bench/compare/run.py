"""One process of the comparison: every shape, every client, in random order; a report as JSON.

Usage: python -m bench.compare.run --owner same|other --json FILE [--shapes A,B] [--reps N] [--write-reps N] [--seed N]
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import tensorlease as tl
from bench.cluster import native_messages_aside
from bench.compare.contenders import READS, WRITES, Sharing, one_client, reads_of, released_client, writes_of
from bench.engine import MOONCAKE, Engine
from tensorlease.bench.column import Column, WrongContents
from tensorlease.bench.machine import add_yardstick, header
from tensorlease.bench.opening import default_max_bytes
from tensorlease.bench.reading import timing
from tensorlease.bench.report import Progress, Report, write_json
from tensorlease.bench.workload import Workload, parse_workload
from tensorlease.sizes import GIB

SHAPES = ("64x16MiB", "1024x1MiB", "4096x1MiB", "16384x64KiB", "ragged")
READERS = 4
#: Rows of a write that are read back.
CHECKED_ROWS = 3
#: What each timed call of a way took, by name.
Measured = dict[str, list[dict[str, float]]]


def main() -> None:
    options = arguments()
    workloads = [parse_workload(shape) for shape in options.shapes.split(",")]
    random.Random(options.seed).shuffle(workloads)
    engine = Engine(MOONCAKE, "half", GIB, owner=options.owner)
    settings = {
        "readers": READERS,
        "repetitions": options.reps,
        "write_repetitions": options.write_reps,
        "seed": options.seed,
        "shapes": [workload.name for workload in workloads],
        **engine.as_json(),
    }
    report = header("compare", MOONCAKE, settings, yardstick=True)
    report["versions"]["TransferQueue"] = version("TransferQueue")
    steps = len(workloads) * (options.reps * len(READS) + options.write_reps * len(WRITES))
    try:
        with native_messages_aside(), Progress(steps) as progress:
            add_yardstick(report)
            for workload in workloads:
                run_shape(engine, workload, options, report, progress)
            add_yardstick(report)
        report["complete"] = True
    finally:
        write_json(report, options.json)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.compare.run", description=__doc__.splitlines()[0])
    parser.add_argument("--owner", choices=["same", "other"], required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--reps", type=int, default=3, help="timed reads of each way")
    parser.add_argument("--write-reps", type=int, default=5, help="timed writes of each way")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def run_shape(
    engine: Engine, workload: Workload, options: argparse.Namespace, report: Report, progress: Progress
) -> None:
    """Reads first, of objects that our store put; then writes, which put and remove them anew."""
    rng = random.Random(f"{options.seed}/{workload.name}")
    column = Column(workload, options.seed)
    progress.note(f"{workload.name}: writing")
    with (
        one_client() as sharing,
        engine.store(workload, default_max_bytes([workload]), READERS) as store,
        released_client() as released,
    ):
        column.put(store)
        readings: Measured = {mode: [] for mode in READS}
        reads = reads_of(store, released, column)
        for _ in range(options.reps):
            for mode in rng.sample(READS, len(READS)):
                progress.step(f"{workload.name} read {mode}")
                readings[mode].append(timed_read(reads[mode], column, sharing, rng))
        store.remove(column.keys)
        written: Measured = {mode: [] for mode in WRITES}
        writes = writes_of(store, released, column)
        for _ in range(options.write_reps):
            for mode in rng.sample(WRITES, len(WRITES)):
                progress.step(f"{workload.name} write {mode}")
                written[mode].append(timed_write(writes[mode], sharing, store, column, rng))
        # Blocks of the arena go back before the store closes.
        writes.clear()
    report["rows"] += [row_of("read", workload, mode, done) for mode, done in readings.items()]
    report["rows"] += [row_of("write", workload, mode, done) for mode, done in written.items()]


def timed_read(read: Callable[[], Any], column: Column, sharing: Sharing, rng: random.Random) -> dict[str, float]:
    """Once untimed, then once timed; some rows are compared with what was written."""
    read()
    rows, measured = timed(read, sharing)
    column.check(rows, rng)
    return measured


def timed_write(
    write: Callable[[], object], sharing: Sharing, store: tl.Store, column: Column, rng: random.Random
) -> dict[str, float]:
    """New keys both times: memory that objects left behind is warm. Some rows are read back and compared."""
    write()
    store.remove(column.keys)
    _, measured = timed(write, sharing)
    chosen = rng.sample(range(len(column.keys)), min(CHECKED_ROWS, len(column.keys)))
    keys, shapes = [column.keys[at] for at in chosen], [column.workload.shapes[at] for at in chosen]
    for at, row in zip(chosen, store.get(keys, shapes, column.dtype), strict=True):
        if not torch.equal(row, column.row(at)):
            raise WrongContents(f"{column.workload.name}: row {at} is not what was written")
    store.remove(column.keys)
    return measured


def timed(call: Callable[[], Any], sharing: Sharing) -> tuple[Any, dict[str, float]]:
    """Calls once."""
    client = sharing()
    gc.collect()
    registered = client.register_calls
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    return result, {
        "ms": elapsed * 1e3,
        "register_calls": client.register_calls - registered,
        "page_faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
    }


def row_of(kind: str, workload: Workload, mode: str, measured: list[dict[str, float]]) -> dict[str, Any]:
    """Times are medians, counts are means."""
    return {
        "kind": kind,
        "shape": workload.name,
        "mode": mode,
        "keys": len(workload.lengths),
        "bytes": workload.size_bytes,
        **timing([one["ms"] for one in measured]),
        "register_calls": fmean([one["register_calls"] for one in measured]),
        "page_faults": fmean([one["page_faults"] for one in measured]),
    }


if __name__ == "__main__":
    main()
