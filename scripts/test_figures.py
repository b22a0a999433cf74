"""The table of figures comes from the report, and only the marked block of the document changes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import figures


def row(mode: str, median_ms: float, ratio: float | None, registrations: float) -> dict[str, Any]:
    names = {"shape": "64x16MiB", "mode": mode, "median_ms": median_ms, "ratio": ratio}
    return names | {"register_calls": registrations, "ratio_to_memcpy": median_ms / 100}


REPORT = {
    "engine": "embedded://",
    "machine": {"cores": 2},
    "settings": {"readers": 4, "repetitions": 10},
    "memcpy_ms_per_gib": 96.4,
    "rows": [row("leased", 50.0, 8.0, 0), row("register-per-call", 400.0, 1.0, 3)],
}


def test_the_block_is_filled_and_the_rest_stays() -> None:
    before = "# Title\n<!-- figures -->\nold\n<!-- /figures -->\nafter\n"
    after = figures.filled(before, REPORT)
    assert after.startswith("# Title\n<!-- figures -->\n| values read | registered per read, ms | leased, ms |")
    assert "| 64x16MiB | 400.0 | 50.0 | 8.0x | 0 | 0.50 |" in after
    assert "old" not in after and after.endswith("<!-- /figures -->\nafter\n")
    assert figures.filled(after, REPORT) == after


def test_a_document_without_the_block_is_refused() -> None:
    with pytest.raises(SystemExit, match="has no block"):
        figures.filled("# Title\n", REPORT)


def test_rows_of_several_reports_make_one_table() -> None:
    other = REPORT | {"rows": [row("leased", 300.0, 7.0, 0) | {"shape": "4096x1MiB"}]}
    assert "| 4096x1MiB | - | 300.0 | 7.0x | 0 | 3.00 |" in figures.table(figures.merged([REPORT, other]))
    with pytest.raises(SystemExit, match="make bench"):
        figures.merged([])
