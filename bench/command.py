"""`python -m bench`: the benchmarks and the demo, with their options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench import launch
from bench.lending import ONE_BATCH
from tensorlease.bench.command import FOUR_SHAPES, SHARES, add_options, add_reads, mode_name, share_name, workload
from tensorlease.cli import run
from tensorlease.option_values import list_of, one_of, size, whole
from tensorlease.sizes import GIB

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

# The names of `bench.writes.MODES`, repeated because that module needs torch and `--help` must not.
WRITE_MODE_NAMES = ("register-per-call", "foreign", "arena", "packed-register-per-call", "packed")
_DEFAULT_BATCHES = "50,100,200,400,800,1600,3200"
_ALL_SHAPES = f"{FOUR_SHAPES},ragged"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one benchmark or a demo. The exit status is that of `tensorlease`'s commands."""
    return run(parser(), arguments)


def parser() -> argparse.ArgumentParser:
    """All benchmarks and demos."""
    made = argparse.ArgumentParser(prog="python -m bench", description="Measure this machine, and show what it does.")
    commands = made.add_subparsers(required=True, metavar="BENCHMARK")
    _add_reads(commands)
    _add_sweep(commands)
    _add_rounds(commands)
    _add_writes(commands)
    _add_pairs(commands)
    _add_stack(commands)
    _add_keys(commands)
    _add_plot(commands)
    _add_demo(commands)
    _add_demo_mooncake(commands)
    return made


def _add_reads(commands: Commands) -> None:
    reads = add_reads(commands)
    _add_owner(reads)
    add_options(reads, shapes=_ALL_SHAPES, engine_of=launch.engine_of, verdicts_of=launch.verdicts_of)


def _add_sweep(commands: Commands) -> None:
    sweep = commands.add_parser(
        "sweep", help="register-per-call and store-pool for more and more keys per batch, on Mooncake"
    )
    _add_shared(sweep, "--shapes", "--reps", "--max-bytes", "--share", engine="mooncake", shapes="1024x1MiB")
    sweep.add_argument(
        "--batch-keys",
        type=list_of(whole(1)),
        default=_DEFAULT_BATCHES,
        metavar="LIST",
        help=f"default {_DEFAULT_BATCHES}",
    )
    sweep.set_defaults(run=launch.run_sweep)


def _add_rounds(commands: Commands) -> None:
    rounds = commands.add_parser("rounds", help="leases of Mooncake's own pool per read, counted by reading")
    add_options(rounds, "--engine", "--seed", "--json", "--check", "--shapes", "--reps", engine="mooncake", reps=3)
    _add_owner(rounds)
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
    rounds.add_argument(
        "--shares",
        type=list_of(share_name),
        default=",".join(SHARES),
        metavar="LIST",
        help=f"default {','.join(SHARES)}",
    )
    rounds.set_defaults(run=launch.run_rounds, verdicts_of=launch.verdicts_of)


def _add_writes(commands: Commands) -> None:
    writes = commands.add_parser("writes", help="each kind of value against registering its memory for the write")
    _add_shared(writes, "--shapes", "--reps", "--max-bytes", shapes=_ALL_SHAPES.replace("4096x1MiB,", ""))
    writes.add_argument(
        "--modes",
        type=list_of(one_of(WRITE_MODE_NAMES, "mode")),
        default=",".join(WRITE_MODE_NAMES),
        metavar="LIST",
        help=f"default {','.join(WRITE_MODE_NAMES)}",
    )
    writes.set_defaults(run=launch.run_writes)


def _add_pairs(commands: Commands) -> None:
    pairs = commands.add_parser("pairs", help="two modes in alternating pairs; the ratio b / a")
    _add_shared(pairs, "--share")
    pairs.add_argument(
        "--shapes", "--shape", type=list_of(workload), default=_ALL_SHAPES, metavar="LIST", help="default %(default)s"
    )
    pairs.add_argument("--a", type=mode_name, default="auto", metavar="MODE", help="default auto")
    pairs.add_argument(
        "--b", type=mode_name, default="register-per-call", metavar="MODE", help="default register-per-call"
    )
    pairs.add_argument(
        "--pairs", type=whole(1), default=15, metavar="N", help="pairs per shape and budget (default 15)"
    )
    pairs.add_argument(
        "--max-bytes", type=list_of(size), default="1GiB,64MiB", metavar="LIST", help="budgets (default 1GiB,64MiB)"
    )
    pairs.set_defaults(run=launch.run_pairs)


def _add_stack(commands: Commands) -> None:
    stack = commands.add_parser("stack", help="get_batch against get + torch.stack")
    _add_shared(stack, "--reps", reps=11)
    stack.add_argument("--shape", type=workload, default="4096x64KiB", metavar="SHAPE", help="default 4096x64KiB")
    stack.add_argument("--max-bytes", type=size, default=GIB, metavar="SIZE", help="default 1GiB")
    stack.set_defaults(run=launch.run_stack)


def _add_keys(commands: Commands) -> None:
    keys = commands.add_parser("keys", help="costs per key, for more and more keys")
    _add_shared(keys, "--reps", reps=5)
    keys.add_argument(
        "--keys",
        type=list_of(whole(1)),
        default="16384,100000,1000000",
        metavar="LIST",
        help="default 16384,100000,1000000",
    )
    keys.add_argument("--row-bytes", type=size, default=64, metavar="SIZE", help="default 64")
    keys.add_argument("--max-bytes", type=size, default=GIB, metavar="SIZE", help="default 1GiB")
    keys.set_defaults(run=launch.run_keys)


def _add_plot(commands: Commands) -> None:
    plot = commands.add_parser("plot", help="draw the chart of a JSON file that `reads` wrote")
    plot.add_argument("report", type=Path, metavar="FILE.json")
    plot.add_argument("chart", type=Path, metavar="FILE.png")
    plot.set_defaults(run=launch.run_plot)


def _add_demo(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="rollout and trainer over one store, and what each delivery costs")
    _add_job(demo, steps=6, samples=512)
    demo.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where the chart goes (default out)")
    demo.add_argument("--engine", default="host://", metavar="URL", help="default host://, with a daemon of its own")
    demo.set_defaults(run=launch.run_demo)


def _add_demo_mooncake(commands: Commands) -> None:
    demo = commands.add_parser("demo-mooncake", help="the same over a Mooncake cluster that it starts and stops")
    _add_job(demo, steps=4, samples=256)
    demo.set_defaults(run=launch.run_demo_mooncake)


def _add_job(demo: argparse.ArgumentParser, *, steps: int, samples: int) -> None:
    demo.add_argument("--steps", type=whole(1), default=steps, metavar="N", help=f"training steps (default {steps})")
    told = f"samples per step, 2 to 6000 (default {samples})"
    demo.add_argument("--samples", type=whole(2), default=samples, metavar="N", help=told)
    demo.add_argument("--seed", type=whole(0), default=0, metavar="N")


def _add_shared(parser: argparse.ArgumentParser, *more: str, **defaults: object) -> None:
    """Options of every benchmark, and more of those that `reads` has."""
    shared = ("--engine", "--readers", "--seed", "--json", "--check")
    add_options(parser, *shared, *more, verdicts_of=launch.verdicts_of, **defaults)
    _add_owner(parser)


def _add_owner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--owner",
        choices=("same", "other"),
        default="same",
        help="with --engine mooncake, a cluster on this machine that is started and stopped here: objects in this process, or in "
        "another one (default same)",
    )
