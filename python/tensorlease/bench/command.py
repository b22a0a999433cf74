"""The options of `tensorlease bench reads`, and its run. The repository's benchmarks have most of both too.

What measures needs torch, and is imported when it runs: `--help` works without.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import tensorlease as tl
from tensorlease.bench.workload import Workload, parse_workload
from tensorlease.option_values import checked, list_of, one_of, size, whole

if TYPE_CHECKING:
    from tensorlease.bench.opening import EngineChoice
    from tensorlease.bench.report import Report, Verdict

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

# The names of `modes.MODES`, repeated because that module needs torch and `--help` must not.
MODE_NAMES = ("register-per-call", "copied", "store-pool", "leased", "batch", "loop", "auto")
SHARES = ("half", "quarter")
FOUR_SHAPES = "64x16MiB,1024x1MiB,4096x1MiB,16384x64KiB"
_DEFAULT_MODES = "register-per-call,copied,leased,batch,loop"

mode_name = one_of(MODE_NAMES, "mode")
share_name = one_of(SHARES, "share")
workload = checked(parse_workload)


def workloads(text: str) -> list[Workload]:
    """Shapes between commas."""
    return list_of(workload)(text)


def add_reads(benchmarks: Commands) -> argparse.ArgumentParser:
    """Adds `reads` to the benchmarks."""
    reads = benchmarks.add_parser("reads", help="each way of reading a column, on each shape")
    add_shared(reads)
    add_shapes(reads, FOUR_SHAPES)
    named = f"of {', '.join(MODE_NAMES)} (default {_DEFAULT_MODES})"
    reads.add_argument("--modes", type=list_of(mode_name), default=_DEFAULT_MODES, metavar="LIST", help=named)
    add_repetitions(reads, 10, "timed reads per mode")
    add_budget(reads)
    add_share(reads)
    batch = "keys of one batch in register-per-call and store-pool (default 400)"
    reads.add_argument("--batch-keys", type=whole(1), default=400, metavar="N", help=batch)
    reads.add_argument("--plot", type=Path, metavar="FILE.png", help="draw a chart")
    reads.set_defaults(run=run_reads, engine_of=engine_of, verdicts_of=verdicts_of)
    return reads


def add_shared(parser: argparse.ArgumentParser, engine: str = "embedded://", *, readers: bool = True) -> None:
    """Options of every benchmark."""
    parser.add_argument("--engine", default=engine, metavar="URL", help=f"URL of the store (default {engine})")
    if readers:
        parser.add_argument("--readers", type=whole(1), default=4, metavar="N", help="threads that read (default 4)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of contents and order (default 0)")
    kept = "write the figures; kept in part when the run is interrupted"
    parser.add_argument("--json", type=Path, metavar="FILE", help=kept)
    missed = "compare with the promised figures; exit status 1 on a miss"
    parser.add_argument("--check", action="store_true", help=missed)


def add_shapes(parser: argparse.ArgumentParser, default: str, *names: str) -> None:
    """Which workloads."""
    kinds = "COUNTxSIZE (default %(default)s)"
    parser.add_argument("--shapes", *names, type=workloads, default=default, metavar="LIST", help=kinds)


def add_repetitions(parser: argparse.ArgumentParser, default: int, what: str) -> None:
    """How often."""
    parser.add_argument("--reps", type=whole(1), default=default, metavar="N", help=f"{what} (default {default})")


def add_budget(parser: argparse.ArgumentParser) -> None:
    """How much memory."""
    budget = "budget of the store (default 1.4 times the largest shape)"
    parser.add_argument("--max-bytes", type=size, metavar="SIZE", help=budget)


def add_share(parser: argparse.ArgumentParser) -> None:
    """How much of Mooncake's pool."""
    shares = "of store-pool: half (the reference) or quarter (its first submission) (default half)"
    parser.add_argument("--share", type=share_name, metavar="SHARE", help=shares)


def run_reads(options: argparse.Namespace) -> int:
    """Measures, prints, and draws. The exit status."""
    require_torch("bench")
    from tensorlease.bench import plot, reads
    from tensorlease.bench.opening import default_max_bytes

    if options.plot is not None:
        plot.require_plottable(options.plot)
        _require_folder(options.plot)
    settings = reads.ReadsSettings(
        engine=options.engine_of(options, options.modes, options.batch_keys),
        workloads=options.shapes,
        modes=options.modes,
        readers=options.readers,
        repetitions=options.reps,
        max_bytes=options.max_bytes or default_max_bytes(options.shapes),
        seed=options.seed,
    )
    report = reads.new_report(settings)
    status = run_benchmark(options, reads, report, lambda: reads.run(settings, report))
    if options.plot is not None:
        plot.plot_reads(report, options.plot)
    return status


def engine_of(options: argparse.Namespace, modes: list[str], batch_keys: int) -> EngineChoice:
    """What is measured."""
    from tensorlease.bench.opening import EngineChoice

    return EngineChoice(options.engine, share_of(options, modes), batch_keys=batch_keys)


def share_of(options: argparse.Namespace, modes: list[str]) -> str | None:
    """The share of Mooncake's own pool, where a mode reads through it."""
    if "store-pool" in modes:
        return options.share or SHARES[0]
    if options.share is not None:
        raise tl.ConfigError("--share is the share of store-pool; name that mode, or leave --share out")
    return None


def verdicts_of(report: Report) -> list[Verdict]:
    """Is what was measured what is promised?"""
    from tensorlease.bench.check import check_reads

    return check_reads(report)


def run_benchmark(options: argparse.Namespace, benchmark: ModuleType, report: Report, run: Callable[[], None]) -> int:
    """Runs, keeps what was measured whatever happens, prints the table and the verdicts."""
    from tensorlease.bench.report import judged, write_json

    if options.json is not None:
        _require_folder(options.json)
    logger = logging.getLogger("tensorlease")
    logger.addFilter(_is_not_counted)
    try:
        run()
    finally:
        logger.removeFilter(_is_not_counted)
        if options.json is not None:
            write_json(report, options.json)
        if report["rows"]:
            print(benchmark.render(report))
    if not options.check:
        return 0
    verdicts = judged(report, options.verdicts_of(report))
    print("\n" + "\n".join(verdict.line() for verdict in verdicts))
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _is_not_counted(record: logging.LogRecord) -> bool:
    """A fallback that a mode brings about on purpose is a number in the table, not a warning."""
    return "leave the fast path" not in record.getMessage()


def require_torch(command: str) -> None:
    """A ConfigError where there is none."""
    if importlib.util.find_spec("torch") is None:
        raise tl.ConfigError(f"tensorlease {command} needs torch, which is not installed: pip install torch")


def _require_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise tl.ConfigError(f"{path} can't be written: there is no folder {path.parent}")
