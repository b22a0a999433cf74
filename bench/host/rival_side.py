"""One process of the comparison, a Ray actor: the same process has our store, Ray's object store and TransferQueue's client, and times each call."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict

import tensorlease as tl
from bench.transfer_queue_small import ControllerWatch
from tensorlease.bench.workload import Workload, parse_workload

CHECKED_ROWS = 16
PARTITION = "bench"


class RivalSide:
    """Writes, or reads. Milliseconds."""

    def __init__(self, url: str, max_bytes: int) -> None:
        self.store = tl.open(url, max_bytes=max_bytes)
        tq.init()
        self.watch = ControllerWatch(tq.get_client())
        self.rng = random.Random(0)
        self.values: np.ndarray[Any, Any] = np.empty((0, 0), np.float32)

    def pid(self) -> int:
        """So that it can be seen that writer and reader are two processes."""
        return os.getpid()

    def make(self, shape: str) -> None:
        """Row number i is all i."""
        workload = parse_workload(shape)
        self.values = np.empty((len(workload.lengths), workload.lengths[0]), np.float32)
        self.values[:] = np.arange(len(workload.lengths), dtype=np.float32)[:, None]

    # ---- writing

    def put_ours(self, shape: str) -> dict[str, float]:
        keys, rows = keys_of(shape), list(self.values)
        return timed(lambda: self.store.put(keys, rows))[1]

    def put_ray(self, _: str) -> tuple[dict[str, float], list[Any]]:
        """Ray has no call for several objects."""
        rows = list(self.values)
        refs, taken = timed(lambda: [ray.put(row) for row in rows])
        return taken, refs

    def put_simple_storage(self, shape: str) -> dict[str, float]:
        """One column, all its rows in one call."""
        keys = keys_of(shape)
        fields = TensorDict({"column": torch.from_numpy(self.values)}, batch_size=[len(keys)])
        gc.collect()
        _, taken = self.watch.measure(lambda: tq.kv_batch_put(keys, PARTITION, fields=fields))
        return {"ms": taken["total_ms"], "controller_ms": taken["controller_ms"]}

    # ---- reading

    def get_ours(self, shape: str, way: str) -> dict[str, float]:
        workload, keys = parse_workload(shape), keys_of(shape)
        dtypes = [torch.float32] * len(keys)
        if way == "view":
            rows, taken = timed(lambda: self.store.get(keys, view=True))
        else:
            rows, taken = timed(lambda: self.store.get(keys, workload.shapes, dtypes, delivery=way))
        self._check(rows)
        return taken

    def get_ray(self, refs: list[Any]) -> dict[str, float]:
        """All in one call; arrays that lie in the object store."""
        rows, taken = timed(lambda: ray.get(refs))
        self._check(rows)
        return taken

    def get_simple_storage(self, shape: str) -> dict[str, float]:
        keys = keys_of(shape)
        gc.collect()
        found, taken = self.watch.measure(lambda: tq.kv_batch_get(keys, PARTITION))
        self._check(found["column"].unbind())
        return {"ms": taken["total_ms"], "controller_ms": taken["controller_ms"]}

    # ---- between

    def clear(self, shape: str, whose: str) -> None:
        """Room for the next one, as a job makes it between steps."""
        if whose == "ours":
            self.store.remove(keys_of(shape))
        elif whose == "SimpleStorage":
            tq.kv_clear(keys_of(shape), PARTITION)

    def close(self) -> None:
        """The queue is closed by whoever started it."""
        self.store.close()

    def _check(self, rows: Any) -> None:
        for at in self.rng.sample(range(len(rows)), min(CHECKED_ROWS, len(rows))):
            row = rows[at]
            if not float(row[0]) == float(row[len(row) // 2]) == float(row[-1]) == at:
                raise RuntimeError(f"row {at} is not what was written")


def timed(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Calls once."""
    gc.collect()
    start = time.perf_counter()
    result = call()
    return result, {"ms": (time.perf_counter() - start) * 1e3}


def keys_of(shape: str) -> list[str]:
    """As long as those of a job are."""
    workload: Workload = parse_workload(shape)
    return [f"step-0/{shape}/sample-{row}" for row in range(len(workload.lengths))]
