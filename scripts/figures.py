#!/usr/bin/env python3
"""Fills the marked tables of README.md and docs/benchmarks.md from the reports in docs/benchmarks.

A block stands between `<!-- figures: NAME -->` (README's: `<!-- figures -->`) and `<!-- /figures -->`. Reports whose names begin with that of
another one, as reads-pinned-4g does with reads-pinned, give their rows to it: shapes may be measured in runs of their own.

Usage: scripts/figures.py [--check]. With --check nothing is written; exit status 1 when a document is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from figure_tables import BLOCKS
from markdown_tables import Report, Reports

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "docs/benchmarks"
DOCUMENTS = ("README.md", "docs/benchmarks.md")
BLOCK = re.compile(r"(<!-- figures(?:: (?P<name>[a-z-]+))? -->\n).*?(<!-- /figures -->)", re.DOTALL)
#: Reports that may come in several files.
IN_PARTS = ("reads-pinned", "mooncake-sweep")


def filled(document: str, text: str, reports: Reports) -> str:
    """The text of a document with its marked blocks replaced."""
    if not BLOCK.search(text):
        sys.exit(f"{document} has no block between <!-- figures --> and <!-- /figures -->")

    def block(found: re.Match[str]) -> str:
        name = found["name"] or ""
        if name not in BLOCKS:
            sys.exit(f"{document}: there are no figures {name!r}; known are {', '.join(filter(None, BLOCKS))}")
        return f"{found.group(1)}{BLOCKS[name].text(reports, REPORTS)}\n{found.group(3)}"

    return BLOCK.sub(block, text)


def gathered(files: Iterable[tuple[str, Report]]) -> Reports:
    """Reports by name; those in parts are one report with the rows of all."""
    reports: Reports = {}
    for name, report in sorted(files, key=lambda file: file[0]):
        whole = next((part for part in IN_PARTS if name.startswith(f"{part}-") and part in reports), None)
        if whole is None:
            reports[name] = report
        else:
            reports[whole] = reports[whole] | {"rows": [*reports[whole]["rows"], *report["rows"]]}
    return reports


def main(arguments: list[str]) -> int:
    paths = REPORTS.glob("*.json")
    reports = gathered((path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in paths)
    stale = False
    for document in DOCUMENTS:
        path = ROOT / document
        before = path.read_text(encoding="utf-8")
        after = filled(document, before, reports)
        if after == before:
            continue
        stale = True
        if "--check" in arguments:
            print(f"{document}: the figures are not those of docs/benchmarks; run scripts/figures.py")
        else:
            path.write_text(after, encoding="utf-8")
    return int(stale and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
