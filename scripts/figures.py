#!/usr/bin/env python3
"""Fills the table of figures in README.md from the reports docs/benchmarks/reads-pinned*.json of `tensorlease bench reads --json`.

Usage: scripts/figures.py [--check]. With --check nothing is written; exit status 1 when README.md is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- figures -->\n).*?(<!-- /figures -->)", re.DOTALL)
# The modes of a read, in the order of the columns, with the words for their headings.
MODES = {"register-per-call": "registered per read", "copied": "copied", "leased": "leased", "batch": "get_batch"}


def table(report: dict[str, Any]) -> str:
    """One line per shape: the median of each mode, then what the leased read gains."""
    rows = {(row["shape"], row["mode"]): row for row in report["rows"]}
    shapes = list(dict.fromkeys(row["shape"] for row in report["rows"]))
    modes = [mode for mode in MODES if any((shape, mode) in rows for shape in shapes)]
    lines = [
        "| values read | "
        + " | ".join(f"{MODES[mode]}, ms" for mode in modes)
        + " | leased: times as fast | registrations | of one memcpy |",
        "| --- |" + " ---: |" * (len(modes) + 3),
    ]
    for shape in shapes:
        medians = [_median(rows.get((shape, mode))) for mode in modes]
        lines.append(f"| {shape} | " + " | ".join(medians) + f" | {_gain(rows.get((shape, 'leased')))} |")
    return "\n".join([*lines, "", _conditions(report)])


def _median(row: dict[str, Any] | None) -> str:
    return "-" if row is None else f"{row['median_ms']:.1f}"


def _gain(leased: dict[str, Any] | None) -> str:
    if leased is None:
        return "- | - | -"
    ratio = "-" if leased["ratio"] is None else f"{leased['ratio']:.1f}x"
    return f"{ratio} | {leased['register_calls']:g} | {leased['ratio_to_memcpy']:.2f}"


def _conditions(report: dict[str, Any]) -> str:
    machine, settings = report["machine"], report["settings"]
    reads = f"`{report['engine']}`, {settings['readers']} readers, median of {settings['repetitions']} reads in random order"
    return f"{reads}, on {machine['cores']} cores. The memcpy: one thread, warm, {report['memcpy_ms_per_gib']:.0f} ms per GiB."


def filled(readme: str, report: dict[str, Any]) -> str:
    """README's text with the marked block replaced."""
    if not BLOCK.search(readme):
        sys.exit("README.md has no block between <!-- figures --> and <!-- /figures -->")
    return BLOCK.sub(lambda block: f"{block.group(1)}{table(report)}\n{block.group(2)}", readme)


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One report with the rows of all: shapes may have been measured in runs of their own."""
    if not reports:
        sys.exit("docs/benchmarks has no reads-pinned*.json; run `make bench` and `make figures`")
    return {**reports[0], "rows": [row for report in reports for row in report["rows"]]}


def main(arguments: list[str]) -> int:
    paths = sorted((ROOT / "docs/benchmarks").glob("reads-pinned*.json"))
    report = merged([json.loads(path.read_text(encoding="utf-8")) for path in paths])
    path = ROOT / "README.md"
    before = path.read_text(encoding="utf-8")
    after = filled(before, report)
    if "--check" in arguments:
        if after != before:
            print("README.md: the figures are not those of docs/benchmarks; run scripts/figures.py")
        return int(after != before)
    path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
