"""The ways of reading a column that are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

import tensorlease as tl
from tensorlease.bench.column import Column

MODES = ("register-per-call", "copied", "store-pool", "leased", "batch", "loop", "auto")
BASELINE = "register-per-call"
#: The reference's way: leased from Mooncake's own pool, copied into fresh memory.
STORE_POOL = "store-pool"
#: What goes through Mooncake's pool, too, where a store has one: it would be `store-pool` under another name.
THROUGH_THE_POOL = ("copied", "loop", "auto")

Rows: TypeAlias = list[torch.Tensor] | torch.Tensor
Read = Callable[[], Rows]

# `loop` is the plain program `out = store.get(...)` in a loop, so it takes the default delivery.
_DELIVERIES = {
    "register-per-call": "register-per-call",
    "copied": "copied",
    STORE_POOL: "copied",
    "leased": "leased",
    "loop": "auto",
    "auto": "auto",
}


def require_comparable(modes: Sequence[str]) -> None:
    """All modes of a comparison read from one store, and one with Mooncake's pool serves only some of them."""
    others = [mode for mode in modes if mode in THROUGH_THE_POOL]
    if STORE_POOL in modes and others:
        raise tl.ConfigError(
            f"{STORE_POOL} reads through Mooncake's pool, and so would {' and '.join(others)} on the same store; "
            f"measure them in a run without {STORE_POOL}"
        )


def read_of(mode: str, store: tl.Store, column: Column) -> Read:
    """A call that reads the whole column once in the given mode."""
    keys, shapes, dtype = column.keys, column.workload.shapes, column.dtype
    if mode == "batch":
        batch_shape = shapes if column.workload.is_ragged else shapes[0]
        # A batch is leased by default, but not where a store has Mooncake's pool.
        return lambda: store.get_batch(keys, batch_shape, dtype, delivery="leased")
    delivery = _DELIVERIES[mode]
    dtypes = [dtype] * len(keys)
    return lambda: store.get(keys, shapes, dtypes, delivery=delivery)


def keeps_last(mode: str) -> bool:
    """Does the result of the read before stay alive during the next one?"""
    return mode == "loop"
