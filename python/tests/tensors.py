"""Tensors for tests: every dtype, filled with bytes that differ from place to place, and a comparison by bytes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from tensorlease._core import dtype_names

DTYPES = [getattr(torch, name) for name in dtype_names()]
SHAPES = [(), (0,), (3,), (2, 0), (5, 7), (1, 1, 1, 1, 3)]
_seeds = itertools.count(1)


def filled(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of random bytes, valid for its dtype."""
    generator = torch.Generator().manual_seed(next(_seeds))
    count = math.prod(shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    item_bytes = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (count * item_bytes,), generator=generator, dtype=torch.int64).to(torch.uint8)
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def raw_bytes(tensor: Any) -> bytes:
    """The bytes of a tensor of any dtype."""
    if tensor.numel() == 0:
        return b""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def assert_same(found: Any, expected: torch.Tensor) -> None:
    """Equal class, dtype, shape and bytes (so that NaN is equal to itself)."""
    assert isinstance(found, torch.Tensor)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert raw_bytes(found) == raw_bytes(expected)
