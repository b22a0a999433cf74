"""Processes that this one has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

END_SECONDS = 5.0
#: State of a listening socket in the kernel's tables.
_LISTEN = "0A"


def end_process(process: subprocess.Popen[Any], seconds: float = END_SECONDS) -> None:
    """Ends it in order, or by force after so many seconds. Idempotent."""
    if process.poll() is not None:
        return
    # A stopped process takes no SIGTERM before it goes on.
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def stop_process(process: subprocess.Popen[Any], seconds: float = END_SECONDS) -> None:
    """SIGSTOP. Returns once each of its threads stands still; SIGCONT lets them go on.

    :raises TimeoutError: one does not within so many seconds
    """
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + seconds
    while not all(state == "T" for state in _thread_states(process.pid)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {process.pid} does not stop")
        time.sleep(0.001)


def _thread_states(pid: int) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            # The state stands behind the name, which ends with the last bracket.
            yield (thread / "stat").read_text().rpartition(")")[2].split()[0]


def listens_at(process: subprocess.Popen[Any], port: int) -> bool:
    """Is it this process that takes TCP connections at the port? Somebody else may, where it could not."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    folder = f"/proc/{process.pid}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{descriptor}") in sockets:
                return True
    return False


def _listening(port: int) -> list[str]:
    """The kernel's numbers of the sockets that take TCP connections at a port."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            for line in lines:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.append(fields[9])
    return found
