"""Processes that this one has started, what they do, and the standard streams that they begin with."""

import contextlib
import fcntl
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

END_SECONDS = 5.0
#: The first descriptor that is no standard stream.
FIRST = 3
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


def is_stopped(pid: int) -> bool:
    """Does each of its threads stand still (SIGSTOP)?"""
    states = []
    for thread in _listed(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            # The state stands behind the name, which ends with the last bracket.
            states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return set(states) == {"T"}


def holds_open(pid: int, path: Path) -> bool:
    """Has the process this very file open? Also one that was removed since."""
    facts = None
    with contextlib.suppress(OSError):
        facts = os.stat(path)
    for descriptor in _listed(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if facts is not None and os.path.samestat(os.stat(descriptor), facts):
                return True
            if os.readlink(descriptor) == f"{path} (deleted)":
                return True
    return False


def _listed(folder: str) -> list[Path]:
    """What is in a folder; nothing where it can't be read."""
    with contextlib.suppress(OSError):
        return list(Path(folder).iterdir())
    return []


def listens_at(process: subprocess.Popen[Any], port: int) -> bool:
    """Is it this process that takes TCP connections at the port? Somebody else may, where it could not."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            for fields in map(str.split, lines):
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    for descriptor in _listed(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(descriptor) in sockets:
                return True
    return False


def fill_standard_streams() -> None:
    """Opens the null device for each standard stream that is closed, in a process of this package's own: nothing opened later takes its number."""
    while (opened := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < FIRST:
        os.set_inheritable(opened, True)
    os.close(opened)


def above_standard_streams(descriptor: int) -> int:
    """The same open file under a number of `FIRST` or more."""
    if descriptor >= FIRST:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST)
    finally:
        os.close(descriptor)
