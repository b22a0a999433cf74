"""Faults of a machine, made on purpose in a process of their own, and the doctor run under them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Fault = Callable[[], None]

_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_CAP_IPC_LOCK = 14
_EPERM = 1
_IO_URING_SETUP = 425
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _instruction(code: int, jump_true: int, jump_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, value)


# Load the number of the system call; io_uring_setup is refused, all others are allowed.
_REFUSE_RINGS = ctypes.create_string_buffer(
    b"".join(
        [
            _instruction(0x20, 0, 0, 0),
            _instruction(0x15, 0, 1, _IO_URING_SETUP),
            _instruction(0x06, 0, 0, 0x00050000 | _EPERM),
            _instruction(0x06, 0, 0, 0x7FFF0000),
        ]
    )
)
_PROGRAM = _Program(4, ctypes.addressof(_REFUSE_RINGS))


def low_memlock() -> None:
    """64 KiB may be locked, and no capability lifts that. The hard limit stays, so that the limit can be raised again."""
    if _libc.prctl(_PR_CAPBSET_READ, _CAP_IPC_LOCK, 0, 0, 0) == 1 and os.geteuid() == 0:
        # What is not in the bounding set is gone after the next exec.
        assert _libc.prctl(_PR_CAPBSET_DROP, _CAP_IPC_LOCK, 0, 0, 0) == 0
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, most))


def refused_io_uring() -> None:
    """A seccomp filter answers EPERM, as that of a container does."""
    assert _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_PROGRAM), 0, 0) == 0


class Diagnosis:
    """What one run of the doctor said."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        assert done.stdout, f"rc {done.returncode}\n{done.stderr}"
        self.returncode = done.returncode
        self.report: dict[str, Any] = json.loads(done.stdout)
        self.text = done.stdout

    @property
    def problems(self) -> list[str]:
        return [finding["subject"] for finding in self.report["findings"] if finding["state"] == "PROBLEM"]

    def of(self, subject: str) -> dict[str, Any]:
        """The first finding about it."""
        found = [finding for finding in self.report["findings"] if finding["subject"] == subject]
        assert found, self.text
        return found[0]


def environment(**changes: str) -> dict[str, str]:
    """This one, with the interpreter's own commands first on the path and no store of somebody else's."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    kept = {name: value for name, value in os.environ.items() if name != "TENSORLEASE_URL"}
    return kept | {"PATH": path} | changes


def doctor(
    url: str | None,
    *more: str,
    fault: Fault | None = None,
    first: str = "true",
    changes: dict[str, str] | None = None,
) -> Diagnosis:
    """Runs the command as a user does, after the shell line `first`, under a fault."""
    command = [sys.executable, "-m", "tensorlease.cli", "doctor", *([url] if url else []), "--json", *more]
    done = subprocess.run(
        ["bash", "-c", f'{first}\nexec "$@"', "bash", *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment(**(changes or {})),
        preexec_fn=fault,
        timeout=55,
    )
    return Diagnosis(done)


@contextmanager
def silent_listener() -> Iterator[int]:
    """The port of something that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@contextmanager
def answering_listener(answer: bytes) -> Iterator[int]:
    """The port of something that answers whoever connects with the same bytes."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(1 << 10)
                connection.sendall(answer)

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield listening.getsockname()[1]
        finally:
            # Closing alone leaves a thread in accept.
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()
