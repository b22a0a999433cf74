"""One daemon per host: starting one where none runs, serving as one, and what it says about its clients."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tensorlease._core import HostDaemon, host_listens, host_make_folder, host_report, host_socket
from tensorlease.errors import EngineUnavailable

#: What a URL of this user's daemon, started where none runs, begins with.
HOST_URL = "host://"
#: A daemon that has had no client and no object for so long ends.
IDLE_SECONDS = 5.0
#: A started daemon must listen by then.
START_SECONDS = 30.0
#: Pause between two looks whether it does: of who starts it, and of those who only wait, who may be many.
START_PAUSE = 0.01
TURN_PAUSE = 0.05
#: A daemon that serves looks this often for a signal.
SIGNAL_SECONDS = 0.1

#: Seconds that a daemon which is told to end may take.
END_SECONDS = 5.0

#: Daemons that this process started, with their sockets: kept so that none is waited for, or warned about, before its time.
_started: list[tuple[str, subprocess.Popen[bytes]]] = []


def starts_daemon(url: str) -> bool:
    """Is this the URL of the user's own daemon, which is started where none runs? One with a path never is."""
    return url == HOST_URL or url.startswith(f"{HOST_URL}?")


def ensure_daemon() -> None:
    """Returns when this user's daemon listens. Of all processes that find none, one starts it.

    :raises ConfigError: others could write to the folder of its socket
    :raises EngineUnavailable: it did not start; the message has what it said
    """
    socket = host_socket(None)
    if host_listens(socket):
        return
    host_make_folder(socket)
    until = time.monotonic() + START_SECONDS
    with Path(f"{socket}.start").open("w") as turn:
        while not host_listens(socket):
            if _takes(turn):
                # Whoever had the turn before may have started it.
                if not host_listens(socket):
                    _start(socket, until)
                return
            if until < time.monotonic():
                raise EngineUnavailable(f"another process starts the host's daemon at {socket}, and does not get done")
            time.sleep(TURN_PAUSE)


def _takes(turn: Any) -> bool:
    """Takes the lock, which ends with the file or the process."""
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(socket: str, until: float) -> None:
    # Those that have ended are no more than that.
    _started[:] = [started for started in _started if started[1].poll() is None]
    log = Path(socket).with_suffix(".log")
    command = [sys.executable, "-m", "tensorlease", "serve", "--socket", socket]
    with log.open("ab") as output:
        # A session of its own: what ends the terminal, or this process, does not end the others' daemon.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
            env=_environment(),
        )
    _started.append((socket, process))
    while not host_listens(socket):
        status = process.poll()
        if status is not None or until < time.monotonic():
            what = "did not listen in time" if status is None else f"ended with status {status}"
            raise EngineUnavailable(f"the host's daemon {what}; its log {log} ends with: {_tail(log)}")
        time.sleep(START_PAUSE)


def end_started(socket: str) -> None:
    """Ends the daemons at `socket` that this process started, with all that they hold. Others' daemons are theirs."""
    for _, process in [started for started in _started if started[0] == socket]:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """As here, with this very package, wherever it was imported from: the daemon runs in another folder."""
    package = str(Path(__file__).resolve().parent.parent)
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_text(errors="replace")[-500:].strip() or "(nothing)"
    return "(it can't be read)"


def serve(*, socket: str | None, max_bytes: int | None, keep: bool) -> None:
    """Runs a daemon in this process until it is told to end (SIGTERM, Ctrl-C), or nobody needs it and `keep` is False.

    :param socket: where it listens; None: this user's place
    :param max_bytes: bound of all memory that it hands out; None: half of what the machine has left
    :raises ConfigError: the socket or the size can't be had; the message says why
    :raises EngineUnavailable: one runs there already
    """
    _allow_clients()
    with _told_to_end() as told:
        daemon = HostDaemon.start(socket=socket, max_bytes=max_bytes, idle_seconds=None if keep else IDLE_SECONDS)
        print(f"tensorlease: serving {HOST_URL}{daemon.socket}", flush=True)
        try:
            while not told and not daemon.wait(SIGNAL_SECONDS):
                pass
        finally:
            daemon.stop()
    print("tensorlease: the daemon has ended", flush=True)


def _allow_clients() -> None:
    """Two descriptors per client: as many as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.contextmanager
def _told_to_end() -> Iterator[list[int]]:
    """A list that gets the signal which asks the process to end."""
    told: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        told.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def report(socket: str | None) -> dict[str, Any]:
    """Who holds what of a host's arena: numbers of the daemon, and under ``clients`` a dict for each.

    :raises EngineUnavailable: no daemon listens there
    """
    return host_report(host_socket(socket))


def report_text(report: dict[str, Any]) -> str:
    """A report as people read it."""
    lines = [
        f"daemon {report['pid']}, for {report['age_seconds']:.0f} s: "
        f"{_mib(report['held_bytes'])} of {_mib(report['capacity_bytes'])} held, "
        f"{report['objects']} objects of {_mib(report['object_bytes'])}",
        f"{'process':>9} {'since':>8} {'arena':>12} {'pinned':>12} {'in flight':>12} {'read':>14} {'written':>14}  state",
    ]
    for client in report["clients"]:
        age = max(client["age_seconds"], 0.001)
        lines.append(
            f"{client['pid']:>9} {client['age_seconds']:>6.0f} s {_mib(client['arena_bytes']):>12} "
            f"{_mib(client['pinned_bytes']):>12} {_mib(client['in_flight_bytes']):>12} "
            f"{_mib(client['read_bytes'] / age) + '/s':>14} {_mib(client['written_bytes'] / age) + '/s':>14}  "
            + ("cut off, waits for the end of its process" if client["cut_off"] else "connected")
        )
    return "\n".join(lines)


def _mib(count: float) -> str:
    return f"{count / (1 << 20):.1f} MiB"
