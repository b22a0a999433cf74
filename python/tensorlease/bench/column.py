"""The rows of a workload with contents that can be made again, so that a read is checked against what was written."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

import tensorlease as tl
from tensorlease.bench.workload import Workload
from tensorlease.sizes import MIB

_PUT_BYTES = 128 * MIB
_POOL_SLACK = 1 << 16
_STRIDE = 7919


class WrongContents(tl.Error):
    """A read gave other bytes than were written."""


class Column:
    """Row i is a piece of a random pool, starting at a place of its own, with i as its first element."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload = workload
        self.dtype: torch.dtype = getattr(torch, workload.dtype_name)
        self.keys = [f"{workload.name}/{index}" for index in range(len(workload.lengths))]
        generator = torch.Generator().manual_seed(seed)
        length = max(workload.lengths) + _POOL_SLACK
        if self.dtype.is_floating_point:
            self._pool = torch.rand(length, generator=generator, dtype=self.dtype)
        else:
            self._pool = torch.randint(0, 150_000, (length,), generator=generator, dtype=self.dtype)

    def row(self, index: int) -> torch.Tensor:
        """Row `index`, made anew."""
        start = index * _STRIDE % _POOL_SLACK
        row = self._pool[start : start + self.workload.lengths[index]].clone()
        row[:1] = index
        return row

    def batch(self) -> torch.Tensor:
        """All rows back to back in one tensor, made anew."""
        batch = torch.empty(sum(self.workload.lengths), dtype=self.dtype)
        for index, part in enumerate(batch.split(list(self.workload.lengths))):
            part.copy_(self.row(index))
        return batch

    def put(self, store: tl.Store) -> None:
        """Writes every row, a bounded number of bytes at a time, so that no second copy of the column is ever held."""
        item_bytes = self.dtype.itemsize
        keys: list[str] = []
        rows: list[torch.Tensor] = []
        pending_bytes = 0
        for index, key in enumerate(self.keys):
            keys.append(key)
            rows.append(self.row(index))
            pending_bytes += self.workload.lengths[index] * item_bytes
            if pending_bytes >= _PUT_BYTES:
                store.put(keys, rows)
                keys, rows, pending_bytes = [], [], 0
        if keys:
            store.put(keys, rows)

    def check(self, rows: Sequence[torch.Tensor] | torch.Tensor, rng: random.Random, samples: int = 3) -> None:
        """Compares a few random rows of a read, each in full.

        Takes the list of a `get` or the tensor of a `get_batch`.
        """
        if isinstance(rows, torch.Tensor) and rows.is_nested:
            rows = rows.unbind()
        if len(rows) != len(self.keys):
            raise WrongContents(f"{self.workload.name}: {len(rows)} rows came back for {len(self.keys)} keys")
        for index in rng.sample(range(len(self.keys)), min(samples, len(self.keys))):
            if not torch.equal(rows[index], self.row(index)):
                raise WrongContents(f"{self.workload.name}: row {index} is not what was written")
