"""A progress bar on standard error, on a terminal only: logs and pipes stay clean."""

import sys
import time
from typing import Self, TextIO

_WIDTH = 28
_REDRAW_SECONDS = 0.1


class Progress:
    """Counts steps. Used in a `with`, so that the line is wiped also after an error."""

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self._steps, self._done = max(steps, 1), 0
        self._stream = sys.stderr if stream is None else stream
        self._start, self._drawn = time.monotonic(), 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._show("")

    def step(self, doing: str) -> None:
        """One step is done; `doing` names what it was."""
        self._done += 1
        if self._done >= self._steps or time.monotonic() - self._drawn >= _REDRAW_SECONDS:
            self.note(doing)

    def note(self, doing: str) -> None:
        """Shows what goes on without a step."""
        self._drawn = time.monotonic()
        fraction = min(self._done / self._steps, 1.0)
        filled = round(fraction * _WIDTH)
        left = f"{(self._drawn - self._start) * (1 / fraction - 1):.0f} s left" if fraction > 0 else "starting"
        self._show(f"{'━' * filled}{'╌' * (_WIDTH - filled)} {fraction:4.0%}  {left}  {doing}")

    def _show(self, line: str) -> None:
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{line}")
            self._stream.flush()
