"""Daemons of the host engine for tests, each at a socket of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorlease import host

#: Clients don't need torch or numpy to come and go.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


@dataclass
class Served:
    """A daemon in a process of its own."""

    process: subprocess.Popen[bytes]
    socket: str
    log: Path

    @property
    def url(self) -> str:
        return f"host://{self.socket}"

    def report(self) -> dict[str, Any]:
        return host.report(self.socket)

    def clients(self) -> list[dict[str, Any]]:
        """All but the one that asks."""
        return [client for client in self.report()["clients"] if client["pid"] != os.getpid()]

    def end(self) -> str:
        """Asks it to end; what it printed."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        return self.log.read_text()


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder for sockets, whose path is short enough for one."""
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def served(socket: Path, *arguments: str, under: Sequence[str] = ()) -> Iterator[Served]:
    """A daemon that listens. `under`: a command that starts it with other limits or rights, for example."""
    command = [*under, sys.executable, "-m", "tensorlease", "serve", "--socket", str(socket), *arguments]
    # No pipe: an engine behind it may have a lot to say, and would wait for somebody who listens.
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        said = Path(log.name)
        try:
            while "tensorlease: serving host://" not in said.read_text():
                assert process.poll() is None, f"the daemon ended: {said.read_text()}"
                time.sleep(0.01)
            yield Served(process, str(socket), said)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def client(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has printed `ready` and waits to be killed, or for the end of its standard input."""
    text = f"{WITHOUT_TORCH}import tensorlease as tl\n{code}\nprint('ready', flush=True)\nsys.stdin.read()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", text, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def eventually(what: str, holds: Callable[[], bool]) -> None:
    """Waits for what other processes bring about."""
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until, f"{what} did not come about"
        time.sleep(0.01)
