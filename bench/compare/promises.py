"""What the comparison has to show, and what it did not."""

from __future__ import annotations

from bench.compare.contenders import ARENA, LEASED, REFERENCE, RELEASED
from tensorlease.bench.report import Report, Row

#: `leased` reads, times as fast as the released client, and as the reference's design; segment in the same process.
LEASED_MIN = {
    "64x16MiB": {RELEASED: 6.0, REFERENCE: 3.0},
    "1024x1MiB": {RELEASED: 5.0, REFERENCE: 3.0},
    "4096x1MiB": {RELEASED: 5.0, REFERENCE: 2.2},
    "16384x64KiB": {RELEASED: 3.5, REFERENCE: 1.8},
    "ragged": {RELEASED: 4.0, REFERENCE: 2.0},
}
#: Between two processes: on objects of 1 MiB and more, and on smaller ones.
BETWEEN_PROCESSES_MIN = 1.3
BETWEEN_PROCESSES_SMALL_MIN = 1.0
LARGE_BYTES = 1 << 20


def broken_promises(report: Report) -> list[str]:
    """A line for each promise that does not hold."""
    same = report["settings"]["owner"] == "same"
    broken = [_slower(row, report) for row in report["rows"] if row["kind"] == "write" and row["mode"] == ARENA]
    broken = [line for line in broken if line]
    for row in report["rows"]:
        for other, least in _promised(row, same).items():
            ratio = row[f"ratio_to_{other}"]
            if ratio < least:
                broken.append(
                    f"MISSED  {row['kind']} {row['shape']} {row['mode']}: {ratio:.2f}x {other}, promised {least}x"
                )
    return broken


def _slower(row: Row, report: Report) -> str:
    """Writes of tensors in the arena are not slower than the released client by more than its own times differ from one another."""
    (released,) = (
        other
        for other in report["rows"]
        if (other["kind"], other["shape"], other["mode"]) == (row["kind"], row["shape"], RELEASED)
    )
    least, ratio = 1 - released["stdev_ms"] / released["median_ms"], row[f"ratio_to_{RELEASED}"]
    if least <= ratio:
        return ""
    return f"MISSED  write {row['shape']} {ARENA}: {ratio:.2f}x {RELEASED}, promised not slower by more than its deviation, {least:.2f}x"


def _promised(row: Row, same: bool) -> dict[str, float]:
    if row["kind"] == "write" or row["mode"] != LEASED:
        return {}
    if same:
        return LEASED_MIN.get(row["shape"], {})
    large = row["bytes"] / row["keys"] >= LARGE_BYTES
    return {RELEASED: BETWEEN_PROCESSES_MIN if large else BETWEEN_PROCESSES_SMALL_MIN}
