"""One daemon per host: starting one where none runs, serving as one, and what it says about its clients."""

import contextlib
import errno
import fcntl
import logging
import os
import resource
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tensorlease._core import (
    HostDaemon,
    host_holder,
    host_listens,
    host_make_folder,
    host_report,
    host_silent_seconds,
    host_socket,
)
from tensorlease.errors import ConfigError, EngineUnavailable
from tensorlease.processes import above_standard_streams, end_process, fill_standard_streams
from tensorlease.sizes import format_bytes

#: What a URL of this user's daemon, started where none runs, begins with.
HOST_URL = "host://"
#: A daemon that has had no client and no object for so long ends.
IDLE_SECONDS = 5.0
#: A daemon that has not welcomed a client by then is silent.
SILENT_SECONDS = host_silent_seconds()
#: A started daemon must listen by then.
START_SECONDS = 30.0
#: A daemon that holds its lock and does not listen starts or ends just now. After so long its socket was removed.
HIDDEN_SECONDS = 3.0
#: Pause between two looks whether it does: of who starts it, and of those who only wait, who may be many.
START_PAUSE = 0.01
TURN_PAUSE = 0.05
#: What holds the objects where nobody says: the daemon itself.
OWN_STORE = "embedded://"
#: Last words of a daemon, and of one whose engine has not closed in time, with the exit status of that.
ENDED = "tensorlease: the daemon has ended"
HANGS = "tensorlease: the daemon has ended, and its engine has not closed: a call on it hangs, or whom it asks (Mooncake's master) does not answer"
EXIT_HANGS = 1
#: Longest line of a daemon, bytes: a pipe that takes anything takes so much at once.
LINE_BYTES_MAX = 4000
#: A daemon that serves looks this often for a signal.
SIGNAL_SECONDS = 0.1


class _Started(subprocess.Popen[bytes]):
    """A daemon. It may outlive the process that starts it, which is nothing to warn about."""

    def __del__(self, *_: Any) -> None:
        pass


#: Daemons that this process started, with their sockets.
_started: list[tuple[str, _Started]] = []


def starts_daemon(url: str) -> bool:
    """Is this the URL of the user's own daemon, which is started where none runs? One with a path never is."""
    return url == HOST_URL or url.startswith(f"{HOST_URL}?")


def ensure_daemon() -> None:
    """Returns when this user's daemon listens. Of all processes that find none, one starts it."""
    socket = host_socket(None)
    if host_listens(socket):
        return
    host_make_folder(socket)
    until = time.monotonic() + START_SECONDS
    with _opened(Path(f"{socket}.start"), os.O_RDWR) as turn:
        while not host_listens(socket):
            if _takes(turn):
                try:
                    _start_unless_there(socket, until)
                finally:
                    # Closing it would leave the turn with a child that was forked meanwhile.
                    fcntl.flock(turn, fcntl.LOCK_UN)
                return
            if until < time.monotonic():
                raise EngineUnavailable(f"another process starts the host's daemon at {socket}, and does not get done")
            time.sleep(TURN_PAUSE)


def _start_unless_there(socket: str, until: float) -> None:
    """The process that had the turn before may have started it. One whose socket was removed is named by `open`."""
    hidden_until = time.monotonic() + HIDDEN_SECONDS
    while not host_listens(socket):
        if host_holder(socket) is None:
            _start(socket, until)
            return
        if hidden_until < time.monotonic():
            return
        time.sleep(TURN_PAUSE)


def _opened(path: Path, flags: int) -> BinaryIO:
    """A file of this user's beside the socket, made where there is none; a link there is not followed."""
    try:
        opened = above_standard_streams(os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        advice = "make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "remove it"
        raise ConfigError(f"cannot use {path} ({error.strerror}); {advice}, or set XDG_RUNTIME_DIR") from error
    return os.fdopen(opened, "r+b", buffering=0)


def _takes(turn: Any) -> bool:
    """Takes the lock, which ends with the file or the process."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _start(socket: str, until: float) -> None:
    # Those that have ended are no more than that.
    _started[:] = [started for started in _started if started[1].poll() is None]
    log = Path(socket).with_suffix(".log")
    command = [sys.executable, "-m", "tensorlease", "serve", "--socket", socket]
    # The daemon runs in another folder, with this very package, wherever it was imported from.
    package = str(Path(__file__).resolve().parent.parent)
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with _opened(log, os.O_RDWR | os.O_APPEND) as output:
        # The daemon could not say why it does not start.
        unwritable = None
        try:
            output.write(f"tensorlease: process {os.getpid()} starts a daemon\n".encode())
        except OSError as error:
            unwritable = error.strerror
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        # A session of its own: what ends the terminal, or this process, does not end the others' daemon.
        try:
            process = _Started(command, **streams, cwd="/", start_new_session=True, env=environment)
        # Python is embedded in another program, was moved, or no process may be started.
        except OSError as error:
            raise EngineUnavailable(
                f"the host's daemon can't be started with sys.executable, {sys.executable!r} ({error.strerror}); "
                f"start it yourself: tensorlease serve --socket {shlex.quote(socket)}"
            ) from error
    _started.append((socket, process))
    try:
        while not host_listens(socket):
            status = process.poll()
            if status is not None or until < time.monotonic():
                what = "did not listen in time" if status is None else f"ended with status {status}"
                said = f"its log {log} ends with: {_tail(log)}"
                if unwritable is not None:
                    said = f"its log {log} can't be written: {unwritable}; make room there, or set XDG_RUNTIME_DIR"
                raise EngineUnavailable(f"the host's daemon {what}; {said}")
            time.sleep(START_PAUSE)
    finally:
        # Once it has ended its entry in the table of processes waits for its parent.
        threading.Thread(target=process.wait, name="tensorlease-daemon-end", daemon=True).start()


def end_started(socket: str) -> None:
    """Ends the daemons at `socket` that this process started, with all that they hold. Others' daemons are theirs."""
    for _, process in [started for started in _started if started[0] == socket]:
        end_process(process)


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_text(errors="replace")[-500:].strip() or "(nothing)"
    return "(it can't be read)"


def serve(*, socket: str | None, max_bytes: int | None, keep: bool, engine: str = OWN_STORE) -> None:
    """Runs a daemon in this process until SIGTERM, Ctrl-C or SIGHUP, where that is not ignored, or nobody needs it and `keep` is False.

    :param socket: where it listens; None: this user's place
    :param max_bytes: bound of all memory that it hands out; None: half of what the machine has left
    :param engine: URL of what holds the objects. With another than the daemon's own store it stays until it is told to end: it can't know whether
        others need the objects that it has a part in
    """
    fill_standard_streams()
    _raise_limits()
    idle = None if keep or engine != OWN_STORE else IDLE_SECONDS
    output = DaemonLog(1)
    with _told_to_end() as told, DaemonLog(2).of_this_package():
        daemon = HostDaemon.start(socket=socket, max_bytes=max_bytes, idle_seconds=idle, engine=engine)
        output.say(f"tensorlease: serving {HOST_URL}{daemon.socket}")
        try:
            while not told and not daemon.wait(SIGNAL_SECONDS):
                pass
        finally:
            daemon.stop_or_exit(EXIT_HANGS, HANGS)
    output.say(ENDED)


class DaemonLog(logging.Handler):
    """What a daemon says, as lines on a descriptor: a full disk, or an output that is closed or not read, ends no daemon. What can't be written at once is dropped; the next line that can be says how many were."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(logging.WARNING)
        self._descriptor = descriptor
        self.dropped = 0

    def say(self, line: str) -> None:
        """Writes one line, or drops it. Never waits, and never raises."""
        text = os.fsencode(line)[:LINE_BYTES_MAX] + b"\n"
        with self.lock or contextlib.nullcontext():
            if self.dropped:
                text = b"tensorlease: %d lines before this one could not be written\n" % self.dropped + text
            self.dropped = 0 if self._written(text) else self.dropped + 1

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.say(self.format(record))
        except Exception:  # noqa: BLE001 - what `logging` asks of a handler
            self.handleError(record)

    @contextlib.contextmanager
    def of_this_package(self) -> Iterator[None]:
        """Warnings and errors of this package go here."""
        logger = logging.getLogger("tensorlease")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)

    def _written(self, text: bytes) -> bool:
        try:
            looked = select.poll()
            looked.register(self._descriptor, select.POLLOUT)
            # A pipe that nobody reads would hold the daemon until somebody does.
            if not any(events & select.POLLOUT for _, events in looked.poll(0)):
                return False
            return os.write(self._descriptor, text) == len(text)
        except OSError:
            return False


def _raise_limits() -> None:
    """To what this process may have: two descriptors and a thread per client, and mappings, files in memory and locked pages as long as the arena.
    The process that starts the daemon may have lowered them for itself, and the daemon serves all."""
    for name in ("NOFILE", "AS", "FSIZE", "DATA", "MEMLOCK", "NPROC", "CPU"):
        limit = getattr(resource, f"RLIMIT_{name}")
        _, most = resource.getrlimit(limit)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (most, most))


@contextlib.contextmanager
def _told_to_end() -> Iterator[list[int]]:
    """A list that gets the signal which asks the process to end. What the process was started with blocked is not any more."""
    told: list[int] = []
    asking = [signal.SIGTERM, signal.SIGINT]
    # `nohup` means that one.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asking.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: told.append(number)) for number in asking}
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def report(socket: str | None) -> dict[str, Any]:
    """Who holds what of a host's arena: numbers of the daemon, and under ``clients`` a dict for each connection but the one that asks."""
    return host_report(host_socket(socket))


def is_own_store(report: dict[str, Any]) -> bool:
    """Does the daemon of a report hold the objects itself?"""
    return bool(report["engine"] == OWN_STORE.partition(":")[0])


def is_absent(place: str) -> bool:
    """Does no daemon run there? One whose socket was removed does."""
    return host_holder(place) is None and not host_listens(place)


def report_text(report: dict[str, Any]) -> str:
    if is_own_store(report):
        objects = f"{counted(report['objects'], 'object')} of {format_bytes(report['object_bytes'])}"
    else:
        objects = f"objects in {report['engine']}, which knows this memory by {counted(report['register_calls'], 'registration')}"
    lines = [
        f"daemon {report['pid']}, for {report['age_seconds']:.0f} s: "
        f"{format_bytes(report['held_bytes'])} of {format_bytes(report['capacity_bytes'])} held, {objects}",
        f"{'process':>9} {'since':>8} {'arena':>12} {'pinned':>12} {'in flight':>12} {'quarantined':>12} {'read':>14} {'written':>14}  state",
    ]
    if report["quarantined_bytes"]:
        quarantined, late = format_bytes(report["quarantined_bytes"]), format_bytes(report["late_bytes"])
        lines.insert(1, f"quarantined: {quarantined} of clients that are gone, {late} of it until the daemon ends")
    for client in report["clients"]:
        age = max(client["age_seconds"], 0.001)
        held = [format_bytes(client[f"{what}_bytes"]) for what in ("arena", "pinned", "in_flight", "late")]
        rates = [format_bytes(client[f"{what}_bytes"] / age) + "/s" for what in ("read", "written")]
        sizes = " ".join([f"{size:>12}" for size in held] + [f"{rate:>14}" for rate in rates])
        state = "cut off, waits for the end of its process" if client["cut_off"] else "connected"
        lines.append(f"{client['pid']:>9} {client['age_seconds']:>6.0f} s {sizes}  {state}")
    if report["namespaces"]:
        lines.append(f"{'objects':>9} {'bytes':>21}  namespace")
        lines += [f"{objects:>9} {format_bytes(count):>21}  {name}" for name, objects, count in namespace_rows(report)]
    return "\n".join(lines)


def counted(number: int, what: str) -> str:
    """`1 object`, `2 objects`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def namespace_rows(report: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Name, objects and bytes of each namespace of a report, in words where it has no name."""
    rows = [(row["namespace"] or "(none)", row["objects"], row["object_bytes"]) for row in report["namespaces"]]
    # Counted a moment before or after the others.
    others = report["objects"] - sum(objects for _, objects, _ in rows)
    if others > 0:
        rows.append(("(others)", others, max(report["object_bytes"] - sum(count for _, _, count in rows), 0)))
    return rows
