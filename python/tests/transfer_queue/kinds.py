"""Every kind of value that a TransferQueue job stores, as columns of a few rows, and as single values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict

ROWS = 4
#: Rows of a ragged column; one of them is not the longest, first or last.
LENGTHS = (3, 1, 4, 2)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
Columns = dict[str, Any]


def dense(seed: int) -> Columns:
    """One of the columns does not lie as its shape says."""
    return {
        "matrix": _numbers(seed, (ROWS, 3, 5)),
        "transposed": _numbers(seed + 1, (7, ROWS)).t(),
        "wide": _numbers(seed + 2, (ROWS, 5000)),
    }


def one_dimensional(seed: int) -> Columns:
    return {"reward": _numbers(seed, (ROWS,)), "index": torch.arange(ROWS) + seed}


def scalar(seed: int) -> Columns:
    """Put row by row, each a tensor without dimensions."""
    return {"score": _numbers(seed, (ROWS,)), "done": torch.arange(ROWS) % 2 == seed % 2}


def ragged(seed: int) -> Columns:
    return {
        "tokens": torch.nested.as_nested_tensor(
            [torch.arange(length) + seed for length in LENGTHS], layout=torch.jagged
        ),
        "hidden": torch.nested.as_nested_tensor(
            [_numbers(seed + length, (length, 6)) for length in LENGTHS], layout=torch.jagged
        ),
        "images": torch.nested.as_nested_tensor(
            [_numbers(seed + length, (length, 6 - length)) for length in LENGTHS], layout=torch.strided
        ),
    }


def mixed_dtypes(seed: int) -> Columns:
    return {str(dtype).removeprefix("torch."): _numbers(seed, (ROWS, 3), dtype) for dtype in DTYPES}


def zero_element(seed: int) -> Columns:
    """Whole columns without elements, and rows without any between others."""
    return {
        "nothing": torch.empty(ROWS, 0),
        "sometimes": torch.nested.as_nested_tensor(
            [torch.arange(length) + seed for length in (3, 0, 2, 0)], layout=torch.jagged
        ),
        "always": _numbers(seed, (ROWS, 2)),
    }


def strings(seed: int) -> Columns:
    return {"text": NonTensorStack("", f"row {seed}", "ü€𝄞", "long " * 4000)}


def dicts(seed: int) -> Columns:
    rows = [{"id": seed + row, "score": row / 3, "tags": {"a": None, "b": [True, b"\0\1"]}} for row in range(ROWS)]
    return {"record": NonTensorStack(*rows)}


def numpy_arrays(seed: int) -> Columns:
    rows = [
        np.arange(6, dtype=np.float32).reshape(2, 3) + seed,
        np.array([], dtype=np.int16),
        np.array([["a", "bcd"]]),
        np.array([{"object": seed}, None], dtype=object),
    ]
    return {"array": NonTensorStack(*rows)}


def nested_containers(seed: int) -> Columns:
    """Tensors and arrays deep inside, and a TensorDict in a value."""
    rows = [
        {"images": [_numbers(seed, (2, 3)), _numbers(seed, (1,))], "sizes": ((2, 3), (1,))},
        {"deep": {"deeper": [{"mask": torch.ones(3, dtype=torch.bool)}]}, "count": np.arange(3)},
        [TensorDict({"x": _numbers(seed, (2, 2))}, batch_size=[2]), None, "end"],
        {"ragged": torch.nested.as_nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)},
    ]
    return {"sample": NonTensorStack(*({"value": row} for row in rows))}


KINDS: dict[str, Callable[[int], Columns]] = {
    "dense": dense,
    "one-dimensional": one_dimensional,
    "scalar": scalar,
    "ragged": ragged,
    "mixed-dtypes": mixed_dtypes,
    "zero-element": zero_element,
    "strings": strings,
    "dicts": dicts,
    "numpy": numpy_arrays,
    "nested-containers": nested_containers,
}
#: Kinds whose rows are put one by one.
BY_ROW = {"scalar"}
#: Kinds that Mooncake has no object for, so that the released client fails.
NOT_RELEASED = {"zero-element"}


def batch(kind: str, seed: int) -> TensorDict:
    """The columns of a kind as a job hands them over."""
    return TensorDict(KINDS[kind](seed), batch_size=[ROWS])


def single_values(kind: str, seed: int) -> list[Any]:
    """All rows of all columns of a kind, as a client takes them."""
    values: list[Any] = []
    for column in KINDS[kind](seed).values():
        values += column.tolist() if isinstance(column, NonTensorStack) else column.unbind()
    return values


def _numbers(seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random, and the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex or dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, shape, generator=generator).to(dtype)
