"""Tables in Markdown, and the numbers in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Report = dict[str, Any]
Row = dict[str, Any]
#: Reports by the names of their files, without the ending.
Reports = dict[str, Report]


def lines_of(headings: Sequence[str], rows: Sequence[Sequence[str]], left_columns: int = 1) -> str:
    """A table in Markdown."""
    rule = ["---"] * left_columns + ["---:"] * (len(headings) - left_columns)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [headings, rule, *rows])


def spread(row: Row | None) -> str:
    """Median and standard deviation."""
    return "-" if row is None else f"{row['median_ms']:.1f} ± {row['stdev_ms']:.1f}"


def times(ratio: float | None, digits: int = 2) -> str:
    """Times as fast; slower in bold."""
    if ratio is None:
        return "-"
    text = f"{ratio:.{digits}f}x"
    return f"**{text}**" if ratio < 1 else text
