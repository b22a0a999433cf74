"""From the options of `python -m bench` to a run. What measures needs torch, and is imported when it runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import tensorlease as tl
from bench.engine import Engine
from bench.lending import BATCH_KEYS, LOCAL_BUFFER_BYTES
from tensorlease.bench.command import SHARES, require_torch, run_benchmark, share_of
from tensorlease.bench.opening import default_max_bytes
from tensorlease.sizes import MIB

if TYPE_CHECKING:
    from tensorlease.bench.report import Report, Verdict

# Writes lease nothing from Mooncake's pool; it must be there so that memory has to be registered.
_WRITES_LOCAL_BUFFER_BYTES = 64 * MIB


def run_sweep(options: argparse.Namespace) -> int:
    require_torch("bench")
    from bench import sweep

    settings = sweep.SweepSettings(
        engine=engine_of(options, list(sweep.MODES)),
        workloads=options.shapes,
        batch_keys=options.batch_keys,
        readers=options.readers,
        repetitions=options.reps,
        max_bytes=options.max_bytes or default_max_bytes(options.shapes),
        seed=options.seed,
    )
    return run_benchmark(options, sweep, settings, sweep.new_report(settings))


def run_rounds(options: argparse.Namespace) -> int:
    require_torch("bench")
    from bench import rounds

    settings = rounds.RoundsSettings(
        engine=Engine(options.engine, SHARES[0], owner=options.owner),
        batch=options.batch,
        buffers_bytes=options.buffers,
        workloads=options.shapes,
        shares=options.shares,
        repetitions=options.reps,
        seed=options.seed,
    )
    return run_benchmark(options, rounds, settings, rounds.new_report(settings))


def run_writes(options: argparse.Namespace) -> int:
    require_torch("bench")
    from bench import writes

    engine = Engine(options.engine, owner=options.owner)
    if engine.is_mooncake:
        # Over TCP nothing would have to be registered, and all kinds of values would be written the same way.
        engine = Engine(options.engine, SHARES[0], _WRITES_LOCAL_BUFFER_BYTES, owner=options.owner)
    settings = writes.WritesSettings(
        engine=engine,
        workloads=options.shapes,
        modes=options.modes,
        readers=options.readers,
        repetitions=options.reps,
        max_bytes=options.max_bytes or default_max_bytes(options.shapes),
        seed=options.seed,
    )
    return run_benchmark(options, writes, settings, writes.new_report(settings))


def run_pairs(options: argparse.Namespace) -> int:
    require_torch("bench")
    from bench import pairs

    if options.a == options.b:
        raise tl.ConfigError(f"--a and --b are both {options.a}; compare two different modes")
    settings = pairs.PairsSettings(
        engine=engine_of(options, [options.a, options.b]),
        workloads=options.shapes,
        first=options.a,
        second=options.b,
        pairs=options.pairs,
        budgets_bytes=options.max_bytes,
        readers=options.readers,
        seed=options.seed,
    )
    return run_benchmark(options, pairs, settings, pairs.new_report(settings))


def run_stack(options: argparse.Namespace) -> int:
    require_torch("bench")
    from bench import stack

    if options.shape.is_ragged:
        raise tl.ConfigError("--shape ragged can't be stacked by torch.stack; give COUNTxSIZE")
    settings = stack.StackSettings(
        Engine(options.engine, owner=options.owner),
        options.shape,
        options.reps,
        options.max_bytes,
        options.readers,
        options.seed,
    )
    return run_benchmark(options, stack, settings, stack.new_report(settings))


def run_keys(options: argparse.Namespace) -> int:
    require_torch("bench")
    from bench import key_costs

    if options.row_bytes % 4 != 0:
        raise tl.ConfigError(f"--row-bytes must be a multiple of 4, the size of a float32; it is {options.row_bytes}")
    settings = key_costs.KeyCostsSettings(
        Engine(options.engine, owner=options.owner),
        options.keys,
        options.row_bytes,
        options.reps,
        options.max_bytes,
        options.readers,
    )
    return run_benchmark(options, key_costs, settings, key_costs.new_report(settings))


def run_plot(options: argparse.Namespace) -> int:
    from bench.stored_report import read_json
    from tensorlease.bench import plot

    report = read_json(options.report)
    if report.get("benchmark") != "reads":
        raise tl.ConfigError(f"{options.report} is no report of `python -m bench reads`; only those have a chart")
    plot.plot_reads(report, options.chart)
    return 0


def run_demo(options: argparse.Namespace) -> int:
    require_torch("demo")
    from bench.demo.story import DemoSettings, tell

    tell(DemoSettings(options.engine, options.steps, options.samples, options.out, options.seed))
    return 0


def run_demo_mooncake(options: argparse.Namespace) -> int:
    require_torch("demo-mooncake")
    from bench.demo.apart import Job
    from bench.demo.mooncake import tell

    tell(Job(options.steps, options.samples, options.seed))
    return 0


def engine_of(options: argparse.Namespace, modes: list[str], batch_keys: int = BATCH_KEYS) -> Engine:
    """With Mooncake's own pool where a mode reads through it."""
    return Engine(options.engine, share_of(options, modes), LOCAL_BUFFER_BYTES, batch_keys, options.owner)


def verdicts_of(report: Report) -> list[Verdict]:
    """Is what was measured what is promised?"""
    from bench.check import check

    return check(report)
