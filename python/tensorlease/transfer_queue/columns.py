"""Columns of a batch: the rows of each are read back to back, so that merging them copies nothing where TransferQueue's rules allow it."""

import contextlib
import importlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorlease.store import Store
from tensorlease.transfer_queue import packing

#: What our manager says of rows that were 0-dimensional: the controller takes a column of shape (n,) for one of (n, 1).
SCALAR_ROW = {"scalar_row": True}


@dataclass(frozen=True)
class Column:
    """The rows of one field that are to be read, as the controller describes them."""

    field: str
    keys: list[str]
    #: torch's dtype; None: values that are no tensors.
    dtype: Any
    #: Of each row; the same object in every place where all rows have one shape.
    shapes: list[Any]
    #: What the storage client returned when each row was put.
    metas: list[Any]


def read_columns(store: Store, columns: Sequence[Column], dense: bool) -> dict[str, Any]:
    """Every column as TransferQueue merges it, in at most two reads."""
    shapes = [(column, _batch_shape(column, dense)) for column in columns]
    batches = {column.field: (column.keys, shape, column.dtype) for column, shape in shapes if shape is not None}
    others = [column for column, shape in shapes if shape is None]
    merged = store.get_batches(batches) if batches else {}
    if others:
        merged.update(_read_rows(store, others))
    return merged


def _batch_shape(column: Column, dense: bool) -> Any:
    """How `get_batches` is asked for the column; None: its rows make no batch."""
    if column.dtype is None:
        return None
    first = _shape(column, 0)
    # The controller repeats one object where it knows one shape alone.
    uniform = all(shape is column.shapes[0] for shape in column.shapes)
    rows = [first] * len(column.keys) if uniform else [_shape(column, at) for at in range(len(column.keys))]
    if all(row == first for row in rows):
        if not first:
            return ()
        if not dense:
            return rows
        was_scalar = all(isinstance(meta, dict) and meta.get("scalar_row") is True for meta in column.metas)
        return () if first == (1,) and was_scalar else first
    # The rows of a jagged batch differ in the first dimension alone.
    return rows if all(row and first and row[1:] == first[1:] for row in rows) else None


def _shape(column: Column, at: int) -> tuple[int, ...]:
    shape = column.shapes[at]
    if shape is None:
        raise ValueError(f"the controller has no shape of key {column.keys[at]!r}; was it put?")
    return tuple(shape)


def _read_rows(store: Store, columns: list[Column]) -> dict[str, Any]:
    """Columns whose rows are read one by one, in one read."""
    wanted = [row for column in columns for row in _rows(column)]
    keys, shapes, dtypes = (list(part) for part in zip(*wanted, strict=True))
    values = iter(store.get(keys, shapes, dtypes))
    merged: dict[str, Any] = {}
    for column in columns:
        rows = list(itertools.islice(values, len(column.keys)))
        if column.dtype is None:
            rows = [packing.decode(*row) for row in zip(column.keys, rows, strict=True)]
        merged[column.field] = _merged(rows)
    return merged


def _rows(column: Column) -> list[tuple[str, Any, Any]]:
    """Key, shape and dtype of each row; those of packed values are bytes."""
    if column.dtype is not None:
        return [(key, _shape(column, at), column.dtype) for at, key in enumerate(column.keys)]
    sizes = [packing.size_of(*row) for row in zip(column.keys, column.metas, strict=True)]
    return [(key, (size,), torch.uint8) for key, size in zip(column.keys, sizes, strict=True)]


def _merged(rows: list[Any]) -> Any:
    """One column of values that came one by one, as TransferQueue decides it: by the first and the last."""
    stack: Any = importlib.import_module("tensordict").NonTensorStack
    if not (isinstance(rows[0], torch.Tensor) and isinstance(rows[-1], torch.Tensor)):
        return stack(*rows)
    if all(isinstance(row, torch.Tensor) and row.dim() == 0 for row in rows):
        return torch.stack(rows)
    for layout in (torch.jagged, torch.strided):
        with contextlib.suppress(RuntimeError, TypeError):
            return torch.nested.as_nested_tensor(rows, layout=layout)
    return stack(*rows)
