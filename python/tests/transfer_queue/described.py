"""Values and columns as plain data that can be compared and sent between processes: kind, dtype, shape and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDictBase

Described = Any


def describe(value: object) -> Described:
    """Equal for values of the same kind with the same contents, to the last bit."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        contents = [describe(item) for item in value.flat] if value.dtype.hasobject else value.tobytes()
        return ("array", str(value.dtype), value.shape, contents)
    if isinstance(value, NonTensorStack):
        return ("stack", [describe(item) for item in value.tolist()])
    if isinstance(value, TensorDictBase):
        return (
            "tensordict",
            tuple(value.batch_size),
            {name: describe(value.get(name)) for name in sorted(value.keys())},
        )
    if isinstance(value, dict):
        return ("dict", [(describe(key), describe(item)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [describe(item) for item in value])
    return (type(value).__name__, repr(value))


def rows_of(column: object) -> list[Described]:
    """The rows of a column, as far as every client promises them.

    A 0-d row counts as one of one element and a tuple as a list, because TransferQueue returns them so.
    """
    if isinstance(column, torch.Tensor):
        return [describe(row.reshape(1) if row.dim() == 0 else row) for row in column.unbind()]
    items = column.tolist() if isinstance(column, NonTensorStack) else column
    assert isinstance(items, list), type(items)
    return [describe(_listed(item)) for item in items]


def _tensor(value: torch.Tensor) -> Described:
    if value.is_nested:
        layout = "jagged" if value.layout == torch.jagged else "strided"
        return (layout, str(value.dtype), [describe(row) for row in value.unbind()])
    whole = value.detach().cpu().contiguous().flatten()
    return ("tensor", str(value.dtype), tuple(value.shape), whole.view(torch.uint8).numpy().tobytes())


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value.reshape(1) if isinstance(value, torch.Tensor) and value.dim() == 0 else value
