"""A progress bar on standard error, on a terminal only: logs and pipes stay clean."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

_WIDTH = 28
_REDRAW_SECONDS = 0.1


class Progress:
    """Counts steps. Use as a context manager, so that the line is wiped also after an error."""

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self._steps = max(steps, 1)
        self._done = 0
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._start = time.monotonic()
        self._drawn = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def step(self, doing: str) -> None:
        """One step is done; `doing` names what it was."""
        self._done += 1
        self._draw(doing)

    def note(self, doing: str) -> None:
        """Shows what goes on without a step."""
        self._drawn = 0.0
        self._draw(doing)

    def _draw(self, doing: str) -> None:
        now = time.monotonic()
        if not self._shown or (self._done < self._steps and now - self._drawn < _REDRAW_SECONDS):
            return
        self._drawn = now
        fraction = min(self._done / self._steps, 1.0)
        filled = round(fraction * _WIDTH)
        bar = "━" * filled + "╌" * (_WIDTH - filled)
        left = f"{(now - self._start) * (1 / fraction - 1):.0f} s left" if fraction > 0 else "starting"
        self._stream.write(f"\r\x1b[K{bar} {fraction:4.0%}  {left}  {doing}")
        self._stream.flush()
