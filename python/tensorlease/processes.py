"""Processes that this one has started, what they do, and the standard streams that they begin with."""

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
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
    states = list(_thread_states(pid))
    return bool(states) and all(state == "T" for state in states)


def holds_open(pid: int, path: Path) -> bool:
    """Has the process this very file open? Also one that was removed since."""
    try:
        facts = os.stat(path)
    except OSError:
        facts = None
    for descriptor in _descriptors(pid):
        with contextlib.suppress(OSError):
            if facts is not None and os.path.samestat(os.stat(descriptor), facts):
                return True
            if os.readlink(descriptor) == f"{path} (deleted)":
                return True
    return False


def _descriptors(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    try:
        return [f"{folder}/{descriptor}" for descriptor in os.listdir(folder)]
    except OSError:
        return []


def _thread_states(pid: int) -> Iterator[str]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        with contextlib.suppress(OSError):
            # The state stands behind the name, which ends with the last bracket.
            yield Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


def listens_at(process: subprocess.Popen[Any], port: int) -> bool:
    """Is it this process that takes TCP connections at the port? Somebody else may, where it could not."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for descriptor in _descriptors(process.pid):
        with contextlib.suppress(OSError):
            if os.readlink(descriptor) in sockets:
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


def fill_standard_streams() -> None:
    """Opens the null device for each standard stream that is closed: nothing that is opened later takes its number.

    For processes of this package's own. Others may have closed theirs on purpose, to open something else there.
    """
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
