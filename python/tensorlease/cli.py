"""The `tensorlease` command."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

import tensorlease as tl
from tensorlease.bench.command import add_reads
from tensorlease.option_values import size, whole
from tensorlease.standard_streams import fill_standard_streams

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
_WHICH_DAEMON = "where it listens (default: the PATH of host:///PATH in TENSORLEASE_URL, else this user's place)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status. 1: it failed or a check was missed, 2: wrong usage, 130: Ctrl-C."""
    return run(parser(), arguments)


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Runs what the command's parser names as `run`."""
    fill_standard_streams()
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        # None: the process was started without one.
        if sys.stdout is not None:
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


def parser() -> argparse.ArgumentParser:
    """All commands."""
    made = argparse.ArgumentParser(
        prog="tensorlease", description="Move tensors between the processes of a training job."
    )
    made.add_argument("--version", action="version", version=f"tensorlease {tl.__version__}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_run_version)
    _add_doctor(commands)
    _add_serve(commands)
    _add_stats(commands)
    _add_stop(commands)
    bench = commands.add_parser("bench", help="measure this machine")
    add_reads(bench.add_subparsers(required=True, metavar="BENCHMARK"))
    return made


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor", help="what would keep a store from working here, and the command that fixes it"
    )
    doctor.add_argument("url", nargs="?", metavar="URL", help="default: $TENSORLEASE_URL, else host://")
    doctor.add_argument(
        "--max-bytes", type=size, default=1 << 30, metavar="SIZE", help="budget of the store (default 1GiB)"
    )
    doctor.add_argument(
        "--metrics-port",
        type=whole(1, 65535),
        metavar="PORT",
        help="of the Mooncake master, to learn how much memory is free",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(run=_run_doctor)


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser("serve", help="the daemon of this host, whose arena and store all its processes share")
    serve.add_argument(
        "--max-bytes", type=size, metavar="SIZE", help="bound of all its memory (default: half of what is left here)"
    )
    serve.add_argument(
        "--socket",
        metavar="PATH",
        help="where it listens (default: this user's place for host://, whatever TENSORLEASE_URL says)",
    )
    serve.add_argument(
        "--engine",
        default="embedded://",
        metavar="URL",
        help="what holds the objects: embedded:// (the daemon itself, the default) or mooncake://HOST:PORT?OPTIONS",
    )
    serve.add_argument("--keep", action="store_true", help="stay, however long there is no client and no object")
    serve.set_defaults(run=_run_serve)


def _add_stats(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    stats = commands.add_parser(
        "stats",
        help="what the clients of this host's daemon hold and do",
        description="What the clients of this host's daemon hold and do. A process's own counters are store.stats() there.",
    )
    stats.add_argument("--host", action="store_true", help="of the host's daemon; must be said")
    stats.add_argument("--socket", metavar="PATH", help=_WHICH_DAEMON)
    stats.add_argument("--json", action="store_true", help="print one JSON object")
    stats.set_defaults(run=_run_stats)


def _add_stop(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    stop = commands.add_parser("stop", help="end this host's daemon, after saying what is lost with it")
    stop.add_argument("--socket", metavar="PATH", help=_WHICH_DAEMON)
    stop.add_argument("--yes", action="store_true", help="ask nothing")
    stop.set_defaults(run=_run_stop)


def _run_version(_: argparse.Namespace) -> int:
    print(f"tensorlease {tl.__version__}")
    return 0


def _run_doctor(options: argparse.Namespace) -> int:
    from tensorlease.doctor.examination import examine

    report = examine(options.url, max_bytes=options.max_bytes, metrics_port=options.metrics_port)
    print(json.dumps(report.as_json(), indent=2) if options.json else report.text())
    return EXIT_FAILED if report.problems else 0


def _run_serve(options: argparse.Namespace) -> int:
    from tensorlease import host

    host.serve(socket=options.socket, max_bytes=options.max_bytes, keep=options.keep, engine=options.engine)
    return 0


def _run_stats(options: argparse.Namespace) -> int:
    from tensorlease import host
    from tensorlease.host_asked import asked_place

    if not options.host:
        raise tl.ConfigError(
            "say `tensorlease stats --host` for this host's daemon; the counters of one process are store.stats() in that process"
        )
    place = asked_place(options.socket, "tensorlease stats --host")
    try:
        report = host.report(place)
    except tl.EngineUnavailable as error:
        if host.is_absent(place):
            raise tl.EngineUnavailable(f"nothing to show: no daemon runs at {place}") from error
        raise
    print(json.dumps(report, indent=2) if options.json else host.report_text(report))
    return 0


def _run_stop(options: argparse.Namespace) -> int:
    from tensorlease.host_asked import asked_place
    from tensorlease.host_end import stop

    place = asked_place(options.socket, "tensorlease stop")
    return 0 if stop(place, asks=not options.yes) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
