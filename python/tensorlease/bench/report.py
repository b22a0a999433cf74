"""Reports as JSON files and as tables of text, verdicts on them, and how far a run is."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TextIO

from tensorlease.sizes import format_bytes

_WIDTH = 28
_REDRAW_SECONDS = 0.1

Report = dict[str, Any]
Row = dict[str, Any]


class TableColumn(NamedTuple):
    """One column of a table; left out where `shown` holds for no row."""

    heading: str
    cell: Callable[[Row], str]
    shown: Callable[[Row], object] = lambda _: True


def write_json(report: Report, path: Path) -> None:
    """Whole or not at all: an interrupted write leaves the file that was there."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left_columns: int) -> str:
    """Columns of text; the first `left_columns` are set flush left, the others flush right. A row without cells is a blank line."""
    widths = [max(map(len, column)) for column in zip(headings, *filter(None, rows), strict=True)]
    lines = [headings, ["─" * width for width in widths], *rows]
    sides = ["<" if index < left_columns else ">" for index in range(len(headings))]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=False)).rstrip()
        for line in lines
    )


def table_of(rows: Sequence[Row], columns: Sequence[TableColumn], groups: tuple[str, str]) -> str:
    """A table of rows, whose first two columns are the fields `groups`: a blank line where the first changes."""
    shown = [column for column in columns if any(column.shown(row) for row in rows)]
    lines: list[list[str]] = []
    before = None
    for row in rows:
        group, name = (str(row[field]) for field in groups)
        if before is not None and group != before:
            lines.append([])
        lines.append([group if group != before else "", name, *(column.cell(row) for column in shown)])
        before = group
    return table([*groups, *(column.heading for column in shown)], lines, left_columns=2)


def count(number: float) -> str:
    """A counter per read: whole numbers with separators, averages with one decimal."""
    return f"{number:,.0f}" if number == round(number) else f"{number:,.1f}"


def times(ratio: float | None) -> str:
    """`5.2x`, or a dash where there is nothing to compare with."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def engine_line(report: Report) -> str:
    """The engine, where its objects are, and Mooncake's pool, in one line."""
    settings = report["settings"]
    parts = [report["engine"]]
    if "owner" in settings:
        parts.append(f"TCP, segment in {'this' if settings['owner'] == 'same' else 'another'} process")
    if "share" in settings:
        parts.append(f"pool of {format_bytes(settings['local_buffer_bytes'])}, share {settings['share']}")
    return ", ".join(parts)


def machine_line(report: Report) -> str:
    """The machine and torch in one line."""
    machine, versions = report["machine"], report["versions"]
    torch = f", torch {versions['torch']}" if "torch" in versions else ""
    cores = f"{machine['cores']} core{'s' if machine['cores'] != 1 else ''}"
    return f"{machine['cpu']}, {cores}, {machine['memory_bytes'] / (1 << 30):.0f} GiB, Linux {machine['kernel']}{torch}"


class Verdict(NamedTuple):
    """One promise and what was measured."""

    passed: bool
    text: str

    def line(self) -> str:
        return f"{'pass' if self.passed else 'MISS'}  {self.text}"


def at_least(value: float, limit: float, what: str) -> Verdict:
    return Verdict(value >= limit, f"{what}: {value:.4g} (at least {limit:g})")


def at_most(value: float, limit: float, what: str) -> Verdict:
    return Verdict(value <= limit, f"{what}: {value:.4g} (at most {limit:.3g})")


def judged(report: Report, verdicts: list[Verdict]) -> list[Verdict]:
    """The verdicts on a report. One that is unfinished, or promises nothing, is a miss."""
    if not report["complete"]:
        return [*verdicts, Verdict(False, "the run did not finish")]
    nothing = "nothing in this report has a promised figure; run the shapes and modes that have one"
    return verdicts or [Verdict(False, nothing)]


class Progress:
    """A progress bar on standard error, on a terminal only: logs and pipes stay clean. Counts steps. Used in a `with`, so that the line is wiped also after an error."""

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
