"""Another process, asked by lines of JSON: one side of a measurement. It times its own calls, so that asking costs nothing that is measured."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

ANSWER_SECONDS = 300.0
END_SECONDS = 10.0


class Asked:
    """The other process, which runs `python -m MODULE ARGUMENTS` and there `answer`. Use it in a `with`."""

    def __init__(
        self, module: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self._module = module
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._answers = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
            bufsize=0,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, call: str, *arguments: Any) -> Any:
        """What the call returned there."""
        self.tell(call, *arguments)
        return self.answer()

    def tell(self, call: str, *arguments: Any) -> None:
        """Asks, and leaves the answer for `answer`: several processes work at a time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([call, *arguments]).encode() + b"\n")
        except BrokenPipeError:
            raise SystemExit(self._what_it_said()) from None

    def answer(self) -> Any:
        """To the last call that was told."""
        assert self._process.stdout is not None
        until = time.monotonic() + ANSWER_SECONDS
        while b"\n" not in self._answers:
            ready, _, _ = select.select([self._process.stdout], [], [], max(until - time.monotonic(), 0.0))
            more = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not more:
                raise SystemExit(self._what_it_said())
            self._answers += more
        line, _, self._answers = self._answers.partition(b"\n")
        return json.loads(line)

    def __enter__(self) -> Asked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _what_it_said(self) -> str:
        # An end takes a moment to be seen.
        try:
            state = f"ended with {self._process.wait(1.0)}"
        except subprocess.TimeoutExpired:
            state = f"did not answer within {ANSWER_SECONDS:.0f} s"
        self._log.seek(0)
        return f"the process of {self._module} {state}:\n{self._log.read().decode(errors='replace')[-4000:]}"


def answer(calls: object) -> None:
    """In the other process: the methods of `calls`, until standard input ends. What anybody prints there goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(getattr(calls, name)(*arguments)), file=answers, flush=True)
