"""The `tensorlease` command."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorlease as tl
from tensorlease import host
from tensorlease._core import host_socket
from tensorlease.bench.command import add_reads
from tensorlease.option_values import size, whole
from tensorlease.processes import fill_standard_streams
from tensorlease.store import URL_VARIABLE

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_SOCKET: dict[str, Any] = {
    "metavar": "PATH",
    "help": "where it listens (default: the PATH of host:///PATH in TENSORLEASE_URL, else this user's place)",
}
_JSON: dict[str, Any] = {"action": "store_true", "help": "print one JSON object"}


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
        return status
    except BrokenPipeError:
        # The reader of our output went away; the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (tl.Error, OSError) as error:
        return _complain(str(error), EXIT_USAGE if isinstance(error, tl.ConfigError) else EXIT_FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", EXIT_INTERRUPTED)


def _complain(message: str, status: int) -> int:
    print(f"tensorlease: {message}", file=sys.stderr)
    return status


def parser() -> argparse.ArgumentParser:
    about = "Move tensors between the processes of a training job."
    made = argparse.ArgumentParser(prog="tensorlease", description=about)
    made.add_argument("--version", action="version", version=f"tensorlease {tl.__version__}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[Any], int], told: str, **more: Any) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=told, **more)
        added.set_defaults(run=run)
        return added

    command("version", _run_version, "print the version")
    looks = command("doctor", _run_doctor, "what would keep a store from working here, and the command that fixes it")
    looks.add_argument("url", nargs="?", metavar="URL", help="default: $TENSORLEASE_URL, else host://")
    budget = "budget of the store (default 1GiB)"
    looks.add_argument("--max-bytes", type=size, default=1 << 30, metavar="SIZE", help=budget)
    port = "of the Mooncake master, to learn how much memory is free"
    looks.add_argument("--metrics-port", type=whole(1, 65535), metavar="PORT", help=port)
    looks.add_argument("--json", **_JSON)
    serve = command("serve", _run_serve, "the daemon of this host, whose arena and store all its processes share")
    bound = "bound of all its memory (default: half of what is left here)"
    serve.add_argument("--max-bytes", type=size, metavar="SIZE", help=bound)
    place = "where it listens (default: this user's place for host://, whatever TENSORLEASE_URL says)"
    serve.add_argument("--socket", metavar="PATH", help=place)
    engine = "what holds the objects: embedded:// (the daemon itself, the default) or mooncake://HOST:PORT?OPTIONS"
    serve.add_argument("--engine", default="embedded://", metavar="URL", help=engine)
    serve.add_argument("--keep", action="store_true", help="stay, however long there is no client and no object")
    described = "What the clients of this host's daemon hold and do. A process's own counters are store.stats() there."
    stats = command("stats", _run_stats, "what the clients of this host's daemon hold and do", description=described)
    stats.add_argument("--host", action="store_true", help="of the host's daemon; must be said")
    stats.add_argument("--socket", **_SOCKET)
    stats.add_argument("--json", **_JSON)
    stop = command("stop", _run_stop, "end this host's daemon, after saying what is lost with it")
    stop.add_argument("--socket", **_SOCKET)
    stop.add_argument("--yes", action="store_true", help="ask nothing")
    bench = commands.add_parser("bench", help="measure this machine")
    add_reads(bench.add_subparsers(required=True, metavar="BENCHMARK"))
    return made


def _run_version(_: argparse.Namespace) -> int:
    print(f"tensorlease {tl.__version__}")
    return 0


def _run_doctor(options: argparse.Namespace) -> int:
    from tensorlease.doctor.examination import examine

    report = examine(options.url, max_bytes=options.max_bytes, metrics_port=options.metrics_port)
    print(json.dumps(report.as_json(), indent=2) if options.json else report.text())
    return EXIT_FAILED if report.problems else 0


def _run_serve(options: argparse.Namespace) -> int:
    host.serve(socket=options.socket, max_bytes=options.max_bytes, keep=options.keep, engine=options.engine)
    return 0


def _run_stats(options: argparse.Namespace) -> int:
    if not options.host:
        one = "the counters of one process are store.stats() in that process"
        raise tl.ConfigError(f"say `tensorlease stats --host` for this host's daemon; {one}")
    place = _asked_place(options.socket, "tensorlease stats --host")
    try:
        report = host.report(place)
    except tl.EngineUnavailable as error:
        if host.is_absent(place):
            raise tl.EngineUnavailable(f"nothing to show: no daemon runs at {place}") from error
        raise
    print(json.dumps(report, indent=2) if options.json else host.report_text(report))
    return 0


def _run_stop(options: argparse.Namespace) -> int:
    from tensorlease.host_end import stop

    place = _asked_place(options.socket, "tensorlease stop")
    return 0 if stop(place, asks=not options.yes) else EXIT_FAILED


def _asked_place(socket: str | None, command: str) -> str:
    """The socket of the daemon that `command` is about: where the user says, else that of the store that ``tensorlease.open()`` opens here."""
    url = os.environ.get(URL_VARIABLE)
    if socket is not None or not url or host.starts_daemon(url):
        return host_socket(socket)
    path = url.removeprefix(host.HOST_URL).partition("?")[0].rstrip("/")
    # Another daemon than that of the user's job is not what was meant.
    if not url.startswith(host.HOST_URL) or not path:
        raise tl.ConfigError(
            f"{URL_VARIABLE} is {url!r}, which names no daemon of this host; say --socket PATH, or unset the variable for this user's own "
            f"daemon: env -u {URL_VARIABLE} {command}"
        )
    try:
        return host_socket(path)
    except tl.ConfigError as error:
        raise tl.ConfigError(f"{URL_VARIABLE} is {url!r}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
