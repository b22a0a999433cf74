"""The `tensorlease` command."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import tensorlease as tl
from tensorlease.bench.sizes import GIB, parse_bytes
from tensorlease.bench.workload import Workload, parse_workload

if TYPE_CHECKING:
    from tensorlease.bench.report import Report

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# The names of `bench.modes.MODES`, repeated because that module needs torch and `--help` must not.
MODE_NAMES = ("register-per-call", "copied", "leased", "batch", "loop", "auto")
_ALL_SHAPES = "64x16MiB,1024x1MiB,4096x1MiB,16384x64KiB,ragged"

Value = TypeVar("Value")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status. 1: it failed or a check was missed, 2: wrong usage, 130: Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except tl.ConfigError as error:
        return _complain(str(error), EXIT_USAGE)
    except tl.Error as error:
        return _complain(str(error), EXIT_FAILED)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # The reader of our output went away; the interpreter must not complain about it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAILED
        return _complain(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", EXIT_INTERRUPTED)
    return status


def _complain(message: str, status: int) -> int:
    print(f"tensorlease: {message}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tensorlease", description="Move tensors between the processes of a training job."
    )
    parser.add_argument("--version", action="version", version=f"tensorlease {tl.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_run_version)
    _add_demo(commands)
    _add_demo_mooncake(commands)
    bench = commands.add_parser("bench", help="measure this machine")
    benchmarks = bench.add_subparsers(required=True, metavar="BENCHMARK")
    _add_reads(benchmarks)
    _add_pairs(benchmarks)
    _add_stack(benchmarks)
    _add_keys(benchmarks)
    _add_plot(benchmarks)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser("demo", help="rollout and trainer threads over one store, and what each delivery costs")
    demo.add_argument("--steps", type=_whole(1), default=6, metavar="N", help="training steps (default 6)")
    demo.add_argument(
        "--samples", type=_whole(2), default=512, metavar="N", help="samples per step, 2 to 6000 (default 512)"
    )
    demo.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where the chart goes (default out)")
    demo.add_argument("--engine", default="embedded://", metavar="URL", help="default embedded://")
    demo.add_argument("--seed", type=_whole(0), default=0, metavar="N")
    demo.set_defaults(run=_run_demo)


def _add_demo_mooncake(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser("demo-mooncake", help="the same over a Mooncake cluster that it starts and stops")
    demo.add_argument("--steps", type=_whole(1), default=4, metavar="N", help="training steps (default 4)")
    demo.add_argument(
        "--samples", type=_whole(2), default=256, metavar="N", help="samples per step, 2 to 6000 (default 256)"
    )
    demo.add_argument("--seed", type=_whole(0), default=0, metavar="N")
    demo.set_defaults(run=_run_demo_mooncake)


def _add_reads(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    reads = benchmarks.add_parser("reads", help="each way of reading a column, on each shape")
    _add_shared(reads)
    reads.add_argument(
        "--shapes",
        type=_workloads,
        default=_ALL_SHAPES,
        metavar="LIST",
        help=f"COUNTxSIZE or ragged (default {_ALL_SHAPES})",
    )
    default_modes = ",".join(MODE_NAMES[:5])
    reads.add_argument(
        "--modes",
        type=_list_of(_mode),
        default=default_modes,
        metavar="LIST",
        help=f"of {', '.join(MODE_NAMES)} (default {default_modes})",
    )
    reads.add_argument("--reps", type=_whole(1), default=10, metavar="N", help="timed reads per mode (default 10)")
    reads.add_argument(
        "--max-bytes", type=_size, metavar="SIZE", help="budget of the store (default 1.4 times the largest shape)"
    )
    reads.add_argument("--plot", type=Path, metavar="FILE.png", help="draw a chart")
    reads.set_defaults(run=_run_reads)


def _add_pairs(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    pairs = benchmarks.add_parser("pairs", help="two modes in alternating pairs; the ratio b / a")
    _add_shared(pairs)
    pairs.add_argument(
        "--shapes", "--shape", type=_workloads, default=_ALL_SHAPES, metavar="LIST", help=f"default {_ALL_SHAPES}"
    )
    pairs.add_argument("--a", type=_mode, default="auto", metavar="MODE", help="default auto")
    pairs.add_argument("--b", type=_mode, default="register-per-call", metavar="MODE", help="default register-per-call")
    pairs.add_argument(
        "--pairs", type=_whole(1), default=15, metavar="N", help="pairs per shape and budget (default 15)"
    )
    pairs.add_argument(
        "--max-bytes", type=_list_of(_size), default="1GiB,64MiB", metavar="LIST", help="budgets (default 1GiB,64MiB)"
    )
    pairs.set_defaults(run=_run_pairs)


def _add_stack(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    stack = benchmarks.add_parser("stack", help="get_batch against get + torch.stack")
    _add_shared(stack)
    stack.add_argument(
        "--shape", type=_checked(parse_workload), default="4096x64KiB", metavar="SHAPE", help="default 4096x64KiB"
    )
    stack.add_argument("--reps", type=_whole(1), default=11, metavar="N", help="timed reads each (default 11)")
    stack.add_argument("--max-bytes", type=_size, default=GIB, metavar="SIZE", help="default 1GiB")
    stack.set_defaults(run=_run_stack)


def _add_keys(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    keys = benchmarks.add_parser("keys", help="costs per key, for more and more keys")
    _add_shared(keys)
    keys.add_argument(
        "--keys",
        type=_list_of(_whole(1)),
        default="16384,100000,1000000",
        metavar="LIST",
        help="default 16384,100000,1000000",
    )
    keys.add_argument("--row-bytes", type=_size, default=64, metavar="SIZE", help="default 64")
    keys.add_argument("--reps", type=_whole(1), default=5, metavar="N", help="timed reads each (default 5)")
    keys.add_argument("--max-bytes", type=_size, default=GIB, metavar="SIZE", help="default 1GiB")
    keys.set_defaults(run=_run_keys)


def _add_plot(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plot = benchmarks.add_parser("plot", help="draw the chart of a JSON file that `bench reads` wrote")
    plot.add_argument("report", type=Path, metavar="FILE.json")
    plot.add_argument("chart", type=Path, metavar="FILE.png")
    plot.set_defaults(run=_run_plot)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", default="embedded://", metavar="URL", help="default embedded://")
    parser.add_argument("--readers", type=_whole(1), default=4, metavar="N", help="threads that read (default 4)")
    parser.add_argument("--seed", type=_whole(0), default=0, metavar="N", help="of contents and order (default 0)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures; kept in part when the run is interrupted"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the promised figures; exit status 1 on a miss"
    )


def _run_version(_: argparse.Namespace) -> int:
    print(f"tensorlease {tl.__version__}")
    return 0


def _run_demo(options: argparse.Namespace) -> int:
    _require_torch("demo")
    from tensorlease.demo.story import DemoSettings, tell

    tell(DemoSettings(options.engine, options.steps, options.samples, options.out, options.seed))
    return 0


def _run_demo_mooncake(options: argparse.Namespace) -> int:
    _require_torch("demo-mooncake")
    from tensorlease.demo.mooncake import MooncakeDemoSettings, tell

    tell(MooncakeDemoSettings(options.steps, options.samples, options.seed))
    return 0


def _run_reads(options: argparse.Namespace) -> int:
    _require_torch("bench")
    from tensorlease.bench import plot, reads
    from tensorlease.bench.opening import default_max_bytes

    if options.plot is not None:
        plot.require_plottable(options.plot)
        _require_folder(options.plot)
    settings = reads.ReadsSettings(
        engine=options.engine,
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


def _run_pairs(options: argparse.Namespace) -> int:
    _require_torch("bench")
    from tensorlease.bench import pairs

    if options.a == options.b:
        raise tl.ConfigError(f"--a and --b are both {options.a}; compare two different modes")
    settings = pairs.PairsSettings(
        engine=options.engine,
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


def _run_stack(options: argparse.Namespace) -> int:
    _require_torch("bench")
    from tensorlease.bench import stack

    if options.shape.is_ragged:
        raise tl.ConfigError("--shape ragged can't be stacked by torch.stack; give COUNTxSIZE")
    settings = stack.StackSettings(
        options.engine, options.shape, options.reps, options.max_bytes, options.readers, options.seed
    )
    report = stack.new_report(settings)
    return _run_benchmark(options, stack, report, lambda: stack.run(settings, report))


def _run_keys(options: argparse.Namespace) -> int:
    _require_torch("bench")
    from tensorlease.bench import key_costs

    if options.row_bytes % 4 != 0:
        raise tl.ConfigError(f"--row-bytes must be a multiple of 4, the size of a float32; it is {options.row_bytes}")
    settings = key_costs.KeyCostsSettings(
        options.engine, options.keys, options.row_bytes, options.reps, options.max_bytes, options.readers
    )
    report = key_costs.new_report(settings)
    return _run_benchmark(options, key_costs, report, lambda: key_costs.run(settings, report))


def _run_plot(options: argparse.Namespace) -> int:
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
    try:
        run()
    finally:
        if options.json is not None:
            write_json(report, options.json)
        if report["rows"]:
            print(benchmark.render(report))
    if not options.check:
        return 0
    verdicts = check(report)
    print("\n" + "\n".join(verdict.line() for verdict in verdicts))
    return 0 if all(verdict.passed for verdict in verdicts) else EXIT_FAILED


def _require_torch(command: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise tl.ConfigError(f"tensorlease {command} needs torch, which is not installed: pip install torch")


def _require_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise tl.ConfigError(f"{path} can't be written: there is no folder {path.parent}")


def _checked(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """argparse hides the text of a ValueError and shows that of an ArgumentTypeError."""

    def checked(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def _list_of(parse: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    return lambda text: [parse(part.strip()) for part in dict.fromkeys(text.split(","))]


def _whole(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
        return int(text)

    return whole


def _mode(text: str) -> str:
    if text not in MODE_NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} is no mode; the modes are {', '.join(MODE_NAMES)}")
    return text


_size = _checked(parse_bytes)


def _workloads(text: str) -> list[Workload]:
    return _list_of(_checked(parse_workload))(text)


if __name__ == "__main__":
    sys.exit(main())
