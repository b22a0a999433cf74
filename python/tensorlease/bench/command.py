"""`tensorlease bench`: its benchmarks and their options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tensorlease.bench import launch
from tensorlease.bench.arguments import list_of, one_of, size, whole, workload, workloads
from tensorlease.bench.lending import ONE_BATCH, SHARES
from tensorlease.bench.sizes import GIB

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

# The names of `bench.modes.MODES` and `bench.writes.MODES`, repeated because those modules need torch and `--help` must not.
MODE_NAMES = ("register-per-call", "copied", "store-pool", "leased", "batch", "loop", "auto")
WRITE_MODE_NAMES = ("register-per-call", "foreign", "arena", "packed-register-per-call", "packed")
_DEFAULT_MODES = "register-per-call,copied,leased,batch,loop"
_DEFAULT_BATCHES = "50,100,200,400,800,1600,3200"
_FOUR_SHAPES = "64x16MiB,1024x1MiB,4096x1MiB,16384x64KiB"
_ALL_SHAPES = f"{_FOUR_SHAPES},ragged"

_mode = one_of(MODE_NAMES, "mode")
_share = one_of(SHARES, "share")


def add_bench(commands: Commands) -> None:
    """Adds `bench` and its benchmarks to the command."""
    bench = commands.add_parser("bench", help="measure this machine")
    benchmarks = bench.add_subparsers(required=True, metavar="BENCHMARK")
    _add_reads(benchmarks)
    _add_sweep(benchmarks)
    _add_rounds(benchmarks)
    _add_writes(benchmarks)
    _add_pairs(benchmarks)
    _add_stack(benchmarks)
    _add_keys(benchmarks)
    _add_plot(benchmarks)


def _add_reads(benchmarks: Commands) -> None:
    reads = benchmarks.add_parser("reads", help="each way of reading a column, on each shape")
    _add_shared(reads)
    _add_shapes(reads, _ALL_SHAPES)
    reads.add_argument(
        "--modes",
        type=list_of(_mode),
        default=_DEFAULT_MODES,
        metavar="LIST",
        help=f"of {', '.join(MODE_NAMES)} (default {_DEFAULT_MODES})",
    )
    _add_repetitions(reads, 10, "timed reads per mode")
    _add_budget(reads)
    _add_share(reads)
    reads.add_argument(
        "--batch-keys",
        type=whole(1),
        default=400,
        metavar="N",
        help="keys of one batch in register-per-call and store-pool (default 400)",
    )
    reads.add_argument("--plot", type=Path, metavar="FILE.png", help="draw a chart")
    reads.set_defaults(run=launch.run_reads)


def _add_sweep(benchmarks: Commands) -> None:
    sweep = benchmarks.add_parser(
        "sweep", help="register-per-call and store-pool for more and more keys per batch, on Mooncake"
    )
    _add_shared(sweep, engine="mooncake")
    _add_shapes(sweep, "1024x1MiB")
    sweep.add_argument(
        "--batch-keys",
        type=list_of(whole(1)),
        default=_DEFAULT_BATCHES,
        metavar="LIST",
        help=f"default {_DEFAULT_BATCHES}",
    )
    _add_repetitions(sweep, 10, "timed reads per mode and number of keys")
    _add_budget(sweep)
    _add_share(sweep)
    sweep.set_defaults(run=launch.run_sweep)


def _add_rounds(benchmarks: Commands) -> None:
    rounds = benchmarks.add_parser("rounds", help="leases of Mooncake's own pool per read, counted by reading")
    _add_shared(rounds, engine="mooncake", readers=False)
    rounds.add_argument(
        "--batch",
        type=workload,
        default=ONE_BATCH,
        metavar="SHAPE",
        help=f"read with each buffer (default {ONE_BATCH})",
    )
    rounds.add_argument(
        "--buffers",
        type=list_of(size),
        default="64MiB,256MiB,1GiB,4GiB",
        metavar="LIST",
        help="local buffers (default 64MiB,256MiB,1GiB,4GiB)",
    )
    _add_shapes(rounds, _FOUR_SHAPES)
    rounds.add_argument(
        "--shares", type=list_of(_share), default=",".join(SHARES), metavar="LIST", help=f"default {','.join(SHARES)}"
    )
    _add_repetitions(rounds, 3, "counted reads each")
    rounds.set_defaults(run=launch.run_rounds)


def _add_writes(benchmarks: Commands) -> None:
    writes = benchmarks.add_parser("writes", help="each kind of value against registering its memory for the write")
    _add_shared(writes)
    _add_shapes(writes, _ALL_SHAPES.replace("4096x1MiB,", ""))
    writes.add_argument(
        "--modes",
        type=list_of(one_of(WRITE_MODE_NAMES, "mode")),
        default=",".join(WRITE_MODE_NAMES),
        metavar="LIST",
        help=f"default {','.join(WRITE_MODE_NAMES)}",
    )
    _add_repetitions(writes, 10, "timed writes per mode")
    _add_budget(writes)
    writes.set_defaults(run=launch.run_writes)


def _add_pairs(benchmarks: Commands) -> None:
    pairs = benchmarks.add_parser("pairs", help="two modes in alternating pairs; the ratio b / a")
    _add_shared(pairs)
    pairs.add_argument(
        "--shapes", "--shape", type=workloads, default=_ALL_SHAPES, metavar="LIST", help=f"default {_ALL_SHAPES}"
    )
    pairs.add_argument("--a", type=_mode, default="auto", metavar="MODE", help="default auto")
    pairs.add_argument("--b", type=_mode, default="register-per-call", metavar="MODE", help="default register-per-call")
    pairs.add_argument(
        "--pairs", type=whole(1), default=15, metavar="N", help="pairs per shape and budget (default 15)"
    )
    pairs.add_argument(
        "--max-bytes", type=list_of(size), default="1GiB,64MiB", metavar="LIST", help="budgets (default 1GiB,64MiB)"
    )
    _add_share(pairs)
    pairs.set_defaults(run=launch.run_pairs)


def _add_stack(benchmarks: Commands) -> None:
    stack = benchmarks.add_parser("stack", help="get_batch against get + torch.stack")
    _add_shared(stack)
    stack.add_argument("--shape", type=workload, default="4096x64KiB", metavar="SHAPE", help="default 4096x64KiB")
    _add_repetitions(stack, 11, "timed reads each")
    stack.add_argument("--max-bytes", type=size, default=GIB, metavar="SIZE", help="default 1GiB")
    stack.set_defaults(run=launch.run_stack)


def _add_keys(benchmarks: Commands) -> None:
    keys = benchmarks.add_parser("keys", help="costs per key, for more and more keys")
    _add_shared(keys)
    keys.add_argument(
        "--keys",
        type=list_of(whole(1)),
        default="16384,100000,1000000",
        metavar="LIST",
        help="default 16384,100000,1000000",
    )
    keys.add_argument("--row-bytes", type=size, default=64, metavar="SIZE", help="default 64")
    _add_repetitions(keys, 5, "timed reads each")
    keys.add_argument("--max-bytes", type=size, default=GIB, metavar="SIZE", help="default 1GiB")
    keys.set_defaults(run=launch.run_keys)


def _add_plot(benchmarks: Commands) -> None:
    plot = benchmarks.add_parser("plot", help="draw the chart of a JSON file that `bench reads` wrote")
    plot.add_argument("report", type=Path, metavar="FILE.json")
    plot.add_argument("chart", type=Path, metavar="FILE.png")
    plot.set_defaults(run=launch.run_plot)


def _add_shared(parser: argparse.ArgumentParser, engine: str = "embedded://", *, readers: bool = True) -> None:
    parser.add_argument(
        "--engine",
        default=engine,
        metavar="URL",
        help=f"a URL, or mooncake: a cluster on this machine, started and stopped here (default {engine})",
    )
    parser.add_argument(
        "--owner",
        choices=("same", "other"),
        default="same",
        help="with --engine mooncake: objects in this process, or in another one (default same)",
    )
    if readers:
        parser.add_argument("--readers", type=whole(1), default=4, metavar="N", help="threads that read (default 4)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of contents and order (default 0)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures; kept in part when the run is interrupted"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the promised figures; exit status 1 on a miss"
    )


def _add_shapes(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--shapes",
        type=workloads,
        default=default,
        metavar="LIST",
        help=f"COUNTxSIZE or ragged (default {default})",
    )


def _add_repetitions(parser: argparse.ArgumentParser, default: int, what: str) -> None:
    parser.add_argument("--reps", type=whole(1), default=default, metavar="N", help=f"{what} (default {default})")


def _add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-bytes", type=size, metavar="SIZE", help="budget of the store (default 1.4 times the largest shape)"
    )


def _add_share(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--share",
        type=_share,
        metavar="SHARE",
        help="of store-pool: half (the reference) or quarter (its first submission) (default half)",
    )
