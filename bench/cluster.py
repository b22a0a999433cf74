"""A Mooncake cluster on this machine's loopback, for the demo, the benchmarks and the tests: a master, and processes that own segments.

It never touches a master that somebody else started: it takes free ports, and stops by pid what it started itself.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tensorlease.errors import ConfigError, EngineUnavailable
from tensorlease.mooncake_master import HOST, free_port, listens, master_binary
from tensorlease.processes import end_process, is_stopped, listens_at

START_SECONDS = 30.0
STOP_SECONDS = 5.0
#: How many times a master is started: a port that was free may be another's by the time it listens there.
STARTS_MAX = 3
#: How many lines of a process's log an error shows.
_LOG_LINES = 8
#: How much of each; one of a master's metrics has thousands.
_LINE_CHARACTERS = 300
PORT_MAX = 65535


class Master:
    """A ``mooncake_master`` on free ports. ``with Master() as master: tl.open(master.url(segment="1GiB"))``.

    :param lease_ttl_ms: how long a read may take before its object may go, milliseconds
    :param root_fs_dir: a folder: every object is also written there (Mooncake's disk replicas)
    :param port: of the address, 1 to 65535; None: a free one
    :param arguments: more flags of ``mooncake_master``
    :raises ConfigError: the port is none, or there is no ``mooncake_master``
    :raises EngineUnavailable: it ends three times, or does not listen within 30 s; the message has the end of its log
    """

    def __init__(
        self,
        *,
        lease_ttl_ms: int = 10_000,
        root_fs_dir: str | Path | None = None,
        port: int | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        if port is not None and not 1 <= port <= PORT_MAX:
            raise ConfigError(f"port={port} is no port; give 1 to {PORT_MAX}, or leave it out for a free one")
        disk = [f"-root_fs_dir={root_fs_dir}", "-cluster_id=tensorlease"] if root_fs_dir else []
        more = ["-rpc_thread_num=2", f"-default_kv_lease_ttl={lease_ttl_ms}", *disk, *arguments]
        for starts_left in reversed(range(STARTS_MAX)):
            self.port = free_port() if port is None else port
            self.metrics_port = free_port()
            self._start(more)
            try:
                self._wait_until_it_listens()
                return
            except BaseException as error:
                ended = isinstance(error, EngineUnavailable) and self.process.poll() is not None
                self.stop()
                self._log.close()
                if not (ended and starts_left):
                    raise

    def _start(self, more: Sequence[str]) -> None:
        command = [
            *_ends_with_this_process(),
            str(master_binary()),
            f"-rpc_address={HOST}",
            f"-rpc_port={self.port}",
            f"-metrics_host={HOST}",
            f"-metrics_port={self.metrics_port}",
            *more,
        ]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process that writes it
        self._ended = threading.Event()
        self.process = _started_to_stay(command, self._log, self._ended)

    @property
    def address(self) -> str:
        """``HOST:PORT``."""
        return f"{HOST}:{self.port}"

    def url(self, **options: object) -> str:
        """A store URL of this cluster with the given options."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"mooncake://{self.address}" + (f"?{query}" if query else "")

    def stop(self) -> None:
        """Ends it, by its pid. Idempotent."""
        end_process(self.process)
        self._ended.set()

    def _wait_until_it_listens(self) -> None:
        """That it does itself: another's listener at the port would take a connection too."""
        deadline = time.monotonic() + START_SECONDS
        while not listens_at(self.process, self.port):
            if self.process.poll() is not None:
                why = f"; something else listens on {self.address}" if listens((HOST, self.port)) else ""
                raise EngineUnavailable(
                    f"mooncake_master ended with {self.process.returncode}{why}: {_tail(self._log)}"
                )
            if time.monotonic() > deadline:
                raise EngineUnavailable(f"mooncake_master does not listen on {self.address}: {_tail(self._log)}")
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class SegmentOwner:
    """A process of its own that contributes memory to the cluster, and ends when this process does.

    :param url: of a store, with ``segment``
    :raises EngineUnavailable: it is not ready within 30 s; the message has the end of its log
    """

    def __init__(self, url: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process that writes it
        # This file imports nothing of its own folder, which is kept off the path: `host` and `data` there are not modules for all.
        command = [sys.executable, "-P", __file__, url]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, process_group=0
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.stdout.readline().strip() == b"ready":
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise EngineUnavailable(f"the process that owns the segment did not start: {_tail(self._log)}")

    def pause(self) -> None:
        """SIGSTOP: its transfers hang. Returns once it has stopped."""
        stop_process(self.process)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: its objects are gone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends it in order. Idempotent."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        end_process(self.process)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def stop_process(process: subprocess.Popen[Any], seconds: float = STOP_SECONDS) -> None:
    """SIGSTOP. Returns once each of its threads stands still; SIGCONT lets them go on.

    :raises TimeoutError: one does not within so many seconds
    """
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + seconds
    while not is_stopped(process.pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {process.pid} does not stop")
        time.sleep(0.001)


@contextlib.contextmanager
def native_messages_aside() -> Iterator[None]:
    """Mooncake writes to the standard error of the process whatever it is told: here that goes to nobody, and Python's own messages go on.

    For programs of this package whose output people read; a library must not take a process's standard error away.
    """
    kept = os.dup(2)
    before = sys.stderr
    with open(os.devnull, "wb") as nowhere, open(kept, "w", buffering=1, closefd=True) as own:
        os.dup2(nowhere.fileno(), 2)
        sys.stderr = own
        try:
            yield
        finally:
            sys.stderr = before
            os.dup2(own.fileno(), 2)


def _ends_with_this_process() -> list[str]:
    """A command before another one that ends it when the thread that started it does, also by SIGKILL; nothing where util-linux is missing."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []


def _started_to_stay(command: Sequence[str], log: IO[bytes], ended: threading.Event) -> subprocess.Popen[bytes]:
    """Starts it from a thread that lives until it has ended: what is to end with its parent ends with the thread that started it."""

    def start() -> subprocess.Popen[bytes]:
        # A group of its own: Ctrl-C in a terminal must not end the master before the stores that close.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)

    if threading.current_thread() is threading.main_thread():
        return start()
    made: concurrent.futures.Future[subprocess.Popen[bytes]] = concurrent.futures.Future()

    def start_and_stay() -> None:
        try:
            made.set_result(start())
        except BaseException as error:
            made.set_exception(error)
        else:
            ended.wait()

    threading.Thread(target=start_and_stay, name="mooncake_master", daemon=True).start()
    return made.result()


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    return " / ".join(line[:_LINE_CHARACTERS] for line in lines[-_LOG_LINES:]) or "it wrote nothing"


def _own(url: str) -> None:
    """The segment owner's own process: until its standard input ends."""
    import tensorlease as tl

    with tl.open(url, max_bytes="16MiB", readers=1):
        print("ready", flush=True)
        sys.stdin.buffer.read()


if __name__ == "__main__":
    _own(sys.argv[1])
