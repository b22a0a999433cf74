"""The clients that are compared. All of them use one Mooncake client object, so that they find the same objects in the same segment."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import mooncake.store
import torch

import tensorlease as tl
from bench.batches import rows_of_one_batch
from tensorlease.bench.column import Column

RELEASED = "released"
REFERENCE = "reference"
LEASED = "leased"
BATCH = "batch"
FOREIGN = "foreign"
ARENA = "arena"
#: Ways of reading a column. `reference`: leases of Mooncake's own pool, copied into fresh memory.
READS = (RELEASED, REFERENCE, LEASED, BATCH)
#: Ways of writing one: ordinary tensors by the released client and by ours, and tensors of `store.empty`.
WRITES = (RELEASED, FOREIGN, ARENA)

Rows: TypeAlias = "list[torch.Tensor] | torch.Tensor"


class SharedClient(mooncake.store.MooncakeDistributedStore):  # type: ignore[misc]
    """Set up by whoever comes first and closed by whoever goes last; counts what is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.users = 0
        self.register_calls = 0

    def setup(self, *arguments: Any) -> int:
        """The first call's arguments count."""
        code: int = 0 if self.users else super().setup(*arguments)
        self.users += code == 0
        return code

    def close(self) -> int:
        """0 while others still use it."""
        self.users -= 1
        return 0 if self.users else int(super().close())

    def register_buffer(self, address: int, size: int) -> int:
        """Counted, whoever calls."""
        self.register_calls += 1
        return int(super().register_buffer(address, size))


class Sharing:
    """Stands in for Mooncake's class: makes one client for all that ask."""

    def __init__(self) -> None:
        self.client: SharedClient | None = None

    def __call__(self) -> SharedClient:
        if self.client is None:
            self.client = SharedClient()
        return self.client


@contextmanager
def one_client() -> Iterator[Sharing]:
    """Meanwhile everybody who makes a Mooncake client in this process gets the same one."""
    from transfer_queue.storage.clients import mooncake_client

    sharing, real = Sharing(), mooncake.store.MooncakeDistributedStore
    for module in (mooncake.store, mooncake_client):
        module.MooncakeDistributedStore = sharing
    try:
        yield sharing
    finally:
        for module in (mooncake.store, mooncake_client):
            module.MooncakeDistributedStore = real


@contextmanager
def released_client() -> Iterator[Any]:
    """The client as TransferQueue releases it, on the shared Mooncake client."""
    from transfer_queue.storage.clients.mooncake_client import MooncakeStoreClient

    logging.getLogger("transfer_queue").setLevel(logging.WARNING)
    # The addresses are read and not used: the shared client is set up already.
    client = MooncakeStoreClient(
        {
            "client_name": "MooncakeStoreClient",
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": "127.0.0.1:1",
            "global_segment_size": 0,
            "local_buffer_size": 0,
            "protocol": "tcp",
            "device_name": "",
        }
    )
    try:
        yield client
    finally:
        client.close()


def reads_of(store: tl.Store, released: Any, column: Column) -> dict[str, Callable[[], Rows]]:
    """A call for each way of reading the whole column."""
    keys, shapes = column.keys, column.workload.shapes
    dtypes = [column.dtype] * len(keys)
    batch_shape = shapes if column.workload.is_ragged else shapes[0]
    return {
        RELEASED: lambda: released.get(keys, shapes, dtypes),
        REFERENCE: lambda: store.get(keys, shapes, dtypes, delivery="copied"),
        LEASED: lambda: store.get(keys, shapes, dtypes, delivery="leased"),
        BATCH: lambda: store.get_batch(keys, batch_shape, column.dtype, delivery="leased"),
    }


def writes_of(store: tl.Store, released: Any, column: Column) -> dict[str, Callable[[], object]]:
    """A call for each way of writing the whole column. The rows are those of one batch, as a job hands them over."""
    rows = rows_of_one_batch(column)
    return {
        RELEASED: functools.partial(released.put, column.keys, rows),
        FOREIGN: functools.partial(store.put, column.keys, rows),
        ARENA: functools.partial(store.put, column.keys, _in_the_arena(store, rows)),
    }


def _in_the_arena(store: tl.Store, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    values: list[torch.Tensor] = [store.empty(tuple(row.shape), row.dtype) for row in rows]
    for value, row in zip(values, rows, strict=True):
        value.copy_(row)
    return values
