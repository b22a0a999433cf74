"""The figures that this project promises of reads on the embedded engine, compared with a report."""

from __future__ import annotations

from tensorlease.bench.report import Report, Row, Verdict, at_least, at_most

LEASED_AGAINST_REGISTER_MIN = {"64x16MiB": 4.5, "1024x1MiB": 4.0, "4096x1MiB": 4.0, "16384x64KiB": 3.5, "ragged": 4.0}
LEASED_AGAINST_MEMCPY_MAX = {"64x16MiB": 0.9, "1024x1MiB": 0.9, "16384x64KiB": 1.1}


def check_reads(report: Report) -> list[Verdict]:
    """A verdict per promise that the report says anything about."""
    verdicts = []
    for row in report["rows"]:
        if row["mode"] == "leased":
            verdicts.append(at_most(row["register_calls"], 0, f"{row['shape']}: registrations per leased read"))
            verdicts += _check_leased(report["engine"], row)
    return verdicts


def _check_leased(engine: str, row: Row) -> list[Verdict]:
    shape = row["shape"]
    if "registration=pinned" in engine:
        if shape in LEASED_AGAINST_REGISTER_MIN and row["ratio"] is not None:
            return [
                at_least(row["ratio"], LEASED_AGAINST_REGISTER_MIN[shape], f"{shape}: leased against register-per-call")
            ]
    elif engine.startswith("embedded:") and shape in LEASED_AGAINST_MEMCPY_MAX:
        return [
            at_most(row["ratio_to_memcpy"], LEASED_AGAINST_MEMCPY_MAX[shape], f"{shape}: leased against one memcpy")
        ]
    return []
