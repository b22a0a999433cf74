"""A daemon of its own for a measurement: it never meets the user's, and ends with the measurement."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tensorlease.processes import end_process

END_SECONDS = 10.0


@dataclass(frozen=True)
class Daemon:
    """A daemon that listens."""

    pid: int
    socket: str

    @property
    def url(self) -> str:
        return f"host://{self.socket}"


@contextmanager
def serving(max_bytes: int) -> Iterator[Daemon]:
    """A daemon whose memory is bounded by `max_bytes`."""
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        socket = str(Path(folder) / "host.sock")
        command = [sys.executable, "-m", "tensorlease", "serve", "--socket", socket, "--max-bytes", str(max_bytes)]
        process = subprocess.Popen([*command, "--keep"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            if not process.stdout.readline().startswith("tensorlease: serving"):
                raise SystemExit("the daemon did not start; what it said stands above")
            yield Daemon(process.pid, socket)
        finally:
            end_process(process, END_SECONDS)
            process.stdout.close()
