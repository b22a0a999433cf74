"""The workload `ragged`: int64 rows as long as real conversations."""

from __future__ import annotations

from bench.data import conversation_lengths
from tensorlease.bench.workload import Workload

RAGGED_BYTES = 629_803_304


def ragged() -> Workload:
    """630 MB in 6,000 rows."""
    workload = Workload("ragged", "int64", tuple(row.tokens for row in conversation_lengths()))
    if workload.size_bytes != RAGGED_BYTES:
        raise ValueError(
            f"conversation_lengths.csv gives {workload.size_bytes} bytes, not {RAGGED_BYTES}: it was changed"
        )
    return workload
