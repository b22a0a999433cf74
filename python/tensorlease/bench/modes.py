"""The ways of reading a column that are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

import tensorlease as tl
from tensorlease.bench.column import Column

MODES = ("register-per-call", "copied", "leased", "batch", "loop", "auto")
BASELINE = "register-per-call"

Rows: TypeAlias = list[torch.Tensor] | torch.Tensor
Read = Callable[[], Rows]

# `loop` is the plain program `out = store.get(...)` in a loop, so it takes the default delivery.
_DELIVERIES = {
    "register-per-call": "register-per-call",
    "copied": "copied",
    "leased": "leased",
    "loop": "auto",
    "auto": "auto",
}


def read_of(mode: str, store: tl.Store, column: Column) -> Read:
    """A call that reads the whole column once in the given mode."""
    keys, shapes, dtype = column.keys, column.workload.shapes, column.dtype
    if mode == "batch":
        batch_shape = shapes if column.workload.is_ragged else shapes[0]
        return lambda: store.get_batch(keys, batch_shape, dtype)
    delivery = _DELIVERIES[mode]
    dtypes = [dtype] * len(keys)
    return lambda: store.get(keys, shapes, dtypes, delivery=delivery)


def keeps_last(mode: str) -> bool:
    """Does the result of the read before stay alive during the next one?"""
    return mode == "loop"
