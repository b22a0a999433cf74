"""From the options of `tensorlease bench` to a run. The benchmarks need torch and are imported when one of them runs."""

from __future__ import annotations

import argparse
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import tensorlease as tl
from tensorlease.bench.lending import BATCH_KEYS, LOCAL_BUFFER_BYTES, SHARES
from tensorlease.bench.opening import EngineChoice, default_max_bytes
from tensorlease.bench.sizes import MIB

if TYPE_CHECKING:
    from tensorlease.bench.report import Report

EXIT_FAILED = 1
# Writes lease nothing from Mooncake's pool; it must be there so that memory has to be registered.
_WRITES_LOCAL_BUFFER_BYTES = 64 * MIB


def run_reads(options: argparse.Namespace) -> int:
    _require_torch()
    from tensorlease.bench import plot, reads

    if options.plot is not None:
        plot.require_plottable(options.plot)
        _require_folder(options.plot)
    settings = reads.ReadsSettings(
        engine=_engine(options, options.modes, options.batch_keys),
        workloads=options.shapes,
        modes=options.modes,
        readers=options.readers,
        repetitions=options.reps,
        max_bytes=options.max_bytes or default_max_bytes(options.shapes),
        seed=options.seed,
    )
    report = reads.new_report(settings)
    status = _run_benchmark(options, reads, report, lambda: reads.run(settings, report))
    if options.plot is not None:
        plot.plot_reads(report, options.plot)
    return status


def run_sweep(options: argparse.Namespace) -> int:
    _require_torch()
    from tensorlease.bench import sweep

    settings = sweep.SweepSettings(
        engine=_engine(options, list(sweep.MODES)),
        workloads=options.shapes,
        batch_keys=options.batch_keys,
        readers=options.readers,
        repetitions=options.reps,
        max_bytes=options.max_bytes or default_max_bytes(options.shapes),
        seed=options.seed,
    )
    report = sweep.new_report(settings)
    return _run_benchmark(options, sweep, report, lambda: sweep.run(settings, report))


def run_rounds(options: argparse.Namespace) -> int:
    _require_torch()
    from tensorlease.bench import rounds

    settings = rounds.RoundsSettings(
        engine=EngineChoice(options.engine, options.owner, share=SHARES[0]),
        batch=options.batch,
        buffers_bytes=options.buffers,
        workloads=options.shapes,
        shares=options.shares,
        repetitions=options.reps,
        seed=options.seed,
    )
    report = rounds.new_report(settings)
    return _run_benchmark(options, rounds, report, lambda: rounds.run(settings, report))


def run_writes(options: argparse.Namespace) -> int:
    _require_torch()
    from tensorlease.bench import writes

    engine = EngineChoice(options.engine, options.owner)
    if engine.is_mooncake:
        # Over TCP nothing would have to be registered, and all kinds of values would be written the same way.
        engine = EngineChoice(
            options.engine, options.owner, share=SHARES[0], local_buffer_bytes=_WRITES_LOCAL_BUFFER_BYTES
        )
    settings = writes.WritesSettings(
        engine=engine,
        workloads=options.shapes,
        modes=options.modes,
        readers=options.readers,
        repetitions=options.reps,
        max_bytes=options.max_bytes or default_max_bytes(options.shapes),
        seed=options.seed,
    )
    report = writes.new_report(settings)
    return _run_benchmark(options, writes, report, lambda: writes.run(settings, report))


def run_pairs(options: argparse.Namespace) -> int:
    _require_torch()
    from tensorlease.bench import pairs

    if options.a == options.b:
        raise tl.ConfigError(f"--a and --b are both {options.a}; compare two different modes")
    settings = pairs.PairsSettings(
        engine=_engine(options, [options.a, options.b]),
        workloads=options.shapes,
        first=options.a,
        second=options.b,
        pairs=options.pairs,
        budgets_bytes=options.max_bytes,
        readers=options.readers,
        seed=options.seed,
    )
    report = pairs.new_report(settings)
    return _run_benchmark(options, pairs, report, lambda: pairs.run(settings, report))


def run_stack(options: argparse.Namespace) -> int:
    _require_torch()
    from tensorlease.bench import stack

    if options.shape.is_ragged:
        raise tl.ConfigError("--shape ragged can't be stacked by torch.stack; give COUNTxSIZE")
    settings = stack.StackSettings(
        EngineChoice(options.engine, options.owner),
        options.shape,
        options.reps,
        options.max_bytes,
        options.readers,
        options.seed,
    )
    report = stack.new_report(settings)
    return _run_benchmark(options, stack, report, lambda: stack.run(settings, report))


def run_keys(options: argparse.Namespace) -> int:
    _require_torch()
    from tensorlease.bench import key_costs

    if options.row_bytes % 4 != 0:
        raise tl.ConfigError(f"--row-bytes must be a multiple of 4, the size of a float32; it is {options.row_bytes}")
    settings = key_costs.KeyCostsSettings(
        EngineChoice(options.engine, options.owner),
        options.keys,
        options.row_bytes,
        options.reps,
        options.max_bytes,
        options.readers,
    )
    report = key_costs.new_report(settings)
    return _run_benchmark(options, key_costs, report, lambda: key_costs.run(settings, report))


def run_plot(options: argparse.Namespace) -> int:
    from tensorlease.bench import plot
    from tensorlease.bench.report import read_json

    report = read_json(options.report)
    if report.get("benchmark") != "reads":
        raise tl.ConfigError(f"{options.report} is no report of `tensorlease bench reads`; only those have a chart")
    plot.plot_reads(report, options.chart)
    return 0


def _run_benchmark(options: argparse.Namespace, benchmark: ModuleType, report: Report, run: Callable[[], None]) -> int:
    """Runs, keeps what was measured whatever happens, prints the table and the verdicts."""
    from tensorlease.bench.check import check
    from tensorlease.bench.report import write_json

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
    verdicts = check(report)
    print("\n" + "\n".join(verdict.line() for verdict in verdicts))
    return 0 if all(verdict.passed for verdict in verdicts) else EXIT_FAILED


def _is_not_counted(record: logging.LogRecord) -> bool:
    """A fallback that a mode brings about on purpose is a number in the table, not a warning."""
    return "leave the fast path" not in record.getMessage()


def _engine(options: argparse.Namespace, modes: list[str], batch_keys: int = BATCH_KEYS) -> EngineChoice:
    """With Mooncake's own pool where a mode reads through it."""
    if "store-pool" in modes:
        share = options.share or SHARES[0]
        return EngineChoice(options.engine, options.owner, share, LOCAL_BUFFER_BYTES, batch_keys)
    if options.share is not None:
        raise tl.ConfigError("--share is the share of store-pool; name that mode, or leave --share out")
    return EngineChoice(options.engine, options.owner, batch_keys=batch_keys)


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise tl.ConfigError("tensorlease bench needs torch, which is not installed: pip install torch")


def _require_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise tl.ConfigError(f"{path} can't be written: there is no folder {path.parent}")
