"""Risky looks, each in a process of its own: what hangs or crashes there neither holds up the doctor nor takes it along."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from tensorlease.doctor.looks import BEGUN

#: How long Python may take to start, which on a busy machine is long; and how long a look may take from then on.
START_SECONDS = 60.0
LIMIT_SECONDS = 30.0
#: How long a process may take to be gone after SIGKILL; one that hangs inside the kernel is left to its end.
_GONE_SECONDS = 5.0
_CHUNK_BYTES = 1 << 16
#: What is shown of what a trial wrote: its last lines, and of those no more than this many characters.
_STDERR_LINES = 5
_STDERR_CHARACTERS = 800

End = Literal["done", "raised", "died", "hung"]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    end: End
    #: What it found, with `done`.
    values: dict[str, Any] = field(default_factory=dict)
    #: The exception's class, with `raised`.
    error: str = ""
    message: str = ""
    #: The end of what it wrote to stderr, which nobody else sees.
    stderr: str = ""

    @property
    def why(self) -> str:
        return f"{self.message}{self.wrote}"

    @property
    def wrote(self) -> str:
        """The end of stderr as the end of a sentence; nothing where it wrote nothing."""
        return f" (stderr ended with: {self.stderr})" if self.stderr else ""


class Trial:
    """Runs one function of ``tensorlease.doctor.looks`` in a process of its own, from the moment it is made. Use it in a ``with``."""

    def __init__(
        self, look: str, arguments: Mapping[str, str | float], *, limit_seconds: float = LIMIT_SECONDS
    ) -> None:
        self._limit_seconds = limit_seconds
        self._start_deadline = time.monotonic() + START_SECONDS
        with contextlib.ExitStack() as files:
            self._stderr = files.enter_context(tempfile.TemporaryFile())
            reading, writing = os.pipe()
            self._answer = files.enter_context(open(reading, "rb", buffering=0))
            told = [look, json.dumps(dict(arguments)), str(writing), str(limit_seconds)]
            command = [sys.executable, "-m", "tensorlease.doctor.looks", *told]
            streams: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.DEVNULL,
                "stderr": self._stderr,
            }
            try:
                self._process = subprocess.Popen(command, pass_fds=(writing,), **streams)
            finally:
                os.close(writing)
            self._files = files.pop_all()

    def outcome(self) -> Outcome:
        """Waits for its end, at most until its limit."""
        begun = self._read(len(BEGUN), self._start_deadline)
        if begun is None:
            return Outcome("hung", message=f"Python had not started after {START_SECONDS:g} s")
        # From here on: where several trials started slowly, the last has its time too.
        answer = self._read_to_end(time.monotonic() + self._limit_seconds) if begun else b""
        code = None
        if answer is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_GONE_SECONDS)
        if answer is None or code is None or code == -signal.SIGALRM:
            return Outcome("hung", message=f"it had not ended after {self._limit_seconds:g} s")
        if code != 0 or not answer:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            return Outcome("died", message=how, stderr=self._said())
        told = json.loads(answer)
        if "error" in told:
            return Outcome("raised", error=told["error"], message=told["message"], stderr=self._said())
        return Outcome("done", values=told["values"], stderr=self._said())

    def _read(self, most: int, deadline: float) -> bytes | None:
        """What comes next, nothing at the end; None: not by the deadline."""
        ready, _, _ = select.select([self._answer], [], [], max(deadline - time.monotonic(), 0.0))
        return self._answer.read(most) if ready else None

    def _read_to_end(self, deadline: float) -> bytes | None:
        """All until the process ends; None: not by the deadline."""
        whole = b""
        while part := self._read(_CHUNK_BYTES, deadline):
            whole += part
        return None if part is None else whole

    def _said(self) -> str:
        # A character has at most four bytes.
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(end - 4 * _STDERR_CHARACTERS, 0))
        lines = self._stderr.read().decode(errors="replace").split("\n")
        told = [line.strip() for line in lines if line.strip()]
        return " / ".join(told[-_STDERR_LINES:])[-_STDERR_CHARACTERS:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GONE_SECONDS)
        self._files.close()
