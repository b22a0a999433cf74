"""The rows of a workload with contents that can be made again, so that a read is checked against what was written."""

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
        start = index * _STRIDE % _POOL_SLACK
        row = self._pool[start : start + self.workload.lengths[index]].clone()
        row[:1] = index
        return row

    def put(self, store: tl.Store) -> None:
        """Writes every row, a bounded number of bytes at a time, so that no second copy of the column is ever held."""
        rows: dict[str, torch.Tensor] = {}
        pending_bytes = 0
        for index, key in enumerate(self.keys):
            rows[key] = self.row(index)
            pending_bytes += rows[key].nbytes
            if pending_bytes >= _PUT_BYTES or index + 1 == len(self.keys):
                store.put(list(rows), list(rows.values()))
                rows, pending_bytes = {}, 0

    def check(self, rows: Sequence[torch.Tensor] | torch.Tensor, rng: random.Random, samples: int = 3) -> None:
        """Compares a few random rows of a `get` or a `get_batch`, each in full."""
        if isinstance(rows, torch.Tensor) and rows.is_nested:
            rows = rows.unbind()
        if len(rows) != len(self.keys):
            raise WrongContents(f"{self.workload.name}: {len(rows)} rows came back for {len(self.keys)} keys")
        for index in rng.sample(range(len(self.keys)), min(samples, len(self.keys))):
            if not torch.equal(rows[index], self.row(index)):
                raise WrongContents(f"{self.workload.name}: row {index} is not what was written")
