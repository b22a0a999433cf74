"""What the reports of all measurements of the host have in common."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorlease.bench.reading import timing
from tensorlease.bench.report import Row
from tensorlease.bench.workload import Workload

SMALL_BYTES = 1024


def parser_of(
    name: str, description: str | None, repetitions: int, shapes: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """The options of a measurement: those of all, and `--shapes` where it has some."""
    parser = argparse.ArgumentParser(prog=f"bench.host.{name}", description=(description or "").splitlines()[0])
    if shapes:
        parser.add_argument("--shapes", default=",".join(shapes))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--reps", type=int, default=repetitions)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="exit 1 where a promised figure is missed")
    return parser


def measured_row(workload: Workload, way: str, samples_ms: list[float], memcpy_ms: float | None = None) -> Row:
    """One way of moving one shape."""
    names: dict[str, Any] = {"shape": workload.name, "way": way, "keys": len(workload.lengths)}
    row = names | {"bytes": workload.size_bytes} | timing(samples_ms)
    return row if memcpy_ms is None else row | {"ratio_to_memcpy": row["median_ms"] / memcpy_ms}


def small_row(call: str, samples_us: list[float], ping_pong_us: list[float]) -> Row:
    """Percentiles of single calls; the ratio is that of the medians."""
    p50 = statistics.median(samples_us)
    p99 = statistics.quantiles(samples_us, n=100, method="inclusive")[98]
    return {
        "call": call,
        "bytes": SMALL_BYTES,
        "calls": len(samples_us),
        "p50_us": p50,
        "p99_us": p99,
        "ratio": p50 / statistics.median(ping_pong_us),
    }
