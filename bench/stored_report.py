"""Reports that a benchmark wrote before."""

from __future__ import annotations

import json
from pathlib import Path

import tensorlease as tl
from tensorlease.bench.report import Report


def read_json(path: Path) -> Report:
    """A report. A ConfigError says what is wrong with the file."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise tl.ConfigError(f"{path} is no report: {error}") from error
    if not isinstance(report, dict):
        raise tl.ConfigError(f"{path} is no report: it holds no JSON object")
    return report
