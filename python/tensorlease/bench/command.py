"""The options of `tensorlease bench reads`, and its run. The repository's other benchmarks share most of both.

What measures needs torch, and is imported when it runs: `--help` works without.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import tensorlease as tl
from tensorlease.bench.workload import parse_workload
from tensorlease.option_values import checked, list_of, one_of, size, whole

if TYPE_CHECKING:
    from tensorlease.bench.opening import EngineChoice
    from tensorlease.bench.report import Report, Verdict

# The names of `reading.MODES`, repeated because that module needs torch and `--help` must not.
MODE_NAMES = ("register-per-call", "copied", "store-pool", "leased", "batch", "loop", "auto")
SHARES = ("half", "quarter")
_SHARES_TOLD = "half (the reference) or quarter (its first submission)"
FOUR_SHAPES = "64x16MiB,1024x1MiB,4096x1MiB,16384x64KiB"
_DEFAULT_MODES = "register-per-call,copied,leased,batch,loop"

mode_name = one_of(MODE_NAMES, "mode")
share_name = one_of(SHARES, "share")
workload = checked(parse_workload)


def _option(kind: Callable[[str], Any], metavar: str, told: str, default: object = None) -> dict[str, Any]:
    shown = told if default is None else f"{told} (default %(default)s)"
    return {"type": kind, "metavar": metavar, "help": shown, "default": default}


#: Options as argparse takes them; their defaults are those of `reads`.
_OPTIONS: dict[str, dict[str, Any]] = {
    "--engine": _option(str, "URL", "URL of the store", "embedded://"),
    "--readers": _option(whole(1), "N", "threads that read", 4),
    "--seed": _option(whole(0), "N", "of contents and order", 0),
    "--json": _option(Path, "FILE", "write the figures; kept in part when the run is interrupted"),
    "--check": {"action": "store_true", "help": "compare with the promised figures; exit status 1 on a miss"},
    "--shapes": _option(list_of(workload), "LIST", "COUNTxSIZE", FOUR_SHAPES),
    "--modes": _option(list_of(mode_name), "LIST", f"of {', '.join(MODE_NAMES)}", _DEFAULT_MODES),
    "--reps": _option(whole(1), "N", "timed calls per mode", 10),
    "--max-bytes": _option(size, "SIZE", "budget of the store (default 1.4 times the largest shape)"),
    "--share": _option(share_name, "SHARE", f"of store-pool: {_SHARES_TOLD} (default half)"),
    "--batch-keys": _option(whole(1), "N", "keys of one batch in register-per-call and store-pool", 400),
    "--plot": _option(Path, "FILE.png", "draw a chart"),
}


def add_options(parser: argparse.ArgumentParser, *names: str, **defaults: object) -> None:
    """Adds options that benchmarks share, and sets defaults of these or others."""
    for name in names:
        parser.add_argument(name, **_OPTIONS[name])
    parser.set_defaults(**defaults)


def add_reads(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    reads = benchmarks.add_parser("reads", help="each way of reading a column, on each shape")
    add_options(reads, *_OPTIONS, run=run_reads, engine_of=engine_of, verdicts_of=verdicts_of)
    return reads


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
    status = run_benchmark(options, reads, settings, report)
    if options.plot is not None:
        plot.plot_reads(report, options.plot)
    return status


def engine_of(options: argparse.Namespace, modes: list[str], batch_keys: int) -> EngineChoice:
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
    from tensorlease.bench.reads import check_reads

    return check_reads(report)


def run_benchmark(options: argparse.Namespace, benchmark: ModuleType, settings: object, report: Report) -> int:
    """Runs, keeps what was measured whatever happens, prints the table and the verdicts."""
    from tensorlease.bench.report import judged, write_json

    if options.json is not None:
        _require_folder(options.json)
    logger = logging.getLogger("tensorlease")
    logger.addFilter(_is_not_counted)
    try:
        benchmark.run(settings, report)
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
