"""The rows of a column as a job hands them over: parts of one batch."""

from __future__ import annotations

import torch

from tensorlease.bench.column import Column


def rows_of_one_batch(column: Column) -> list[torch.Tensor]:
    """All rows, back to back in one tensor, made anew."""
    lengths = list(column.workload.lengths)
    rows = list(torch.empty(sum(lengths), dtype=column.dtype).split(lengths))
    for index, row in enumerate(rows):
        row.copy_(column.row(index))
    return rows
