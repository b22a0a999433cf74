"""The ways through which a job puts, gets and clears: every public interface of TransferQueue, behind the same three calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import ray
import torch
import transfer_queue as tq
from kinds import ROWS
from tensordict import NonTensorStack, TensorDict
from transfer_queue import BatchMeta

KEYS = [f"row {number}" for number in range(ROWS)]


class Way(Protocol):
    """One interface, for batches of `ROWS` rows."""

    def put(self, partition: str, batch: TensorDict, by_row: bool) -> list[int]:
        """Stores it, row by row if so asked; the global indexes of the rows."""

    def get(self, partition: str) -> TensorDict:
        """All rows, in the order of the put."""

    def clear(self, partition: str) -> None:
        """All rows."""


class SyncKv:
    """`kv_put`, `kv_batch_put`, `kv_batch_get`, `kv_clear`."""

    def put(self, partition: str, batch: TensorDict, by_row: bool) -> list[int]:
        if by_row:
            for row, key in enumerate(KEYS):
                tq.kv_put(key, partition, fields=row_of(batch, row), tag={"row": row})
        else:
            tq.kv_batch_put(KEYS, partition, fields=batch, tags=[{"row": row} for row in range(ROWS)])
        return indexes(partition)

    def get(self, partition: str) -> TensorDict:
        return tq.kv_batch_get(KEYS, partition)

    def clear(self, partition: str) -> None:
        tq.kv_clear(KEYS, partition)


class AsyncKv:
    """The same calls as coroutines, each on an event loop of its own, as callers from different loops make them."""

    def put(self, partition: str, batch: TensorDict, by_row: bool) -> list[int]:
        if by_row:
            for row, key in enumerate(KEYS):
                fresh_loop(lambda key=key, row=row: tq.async_kv_put(key, partition, fields=row_of(batch, row)))
        else:
            fresh_loop(lambda: tq.async_kv_batch_put(KEYS, partition, fields=batch))
        return indexes(partition)

    def get(self, partition: str) -> TensorDict:
        found: TensorDict = fresh_loop(lambda: tq.async_kv_batch_get(KEYS, partition))
        return found

    def clear(self, partition: str) -> None:
        fresh_loop(lambda: tq.async_kv_clear(KEYS, partition))


class LowLevel:
    """`put`, `get_meta`, `get_data` and `clear_samples` of the client."""

    def __init__(self) -> None:
        self._stored: dict[str, BatchMeta] = {}

    def put(self, partition: str, batch: TensorDict, by_row: bool) -> list[int]:
        client = tq.get_client()
        pieces = [batch[row : row + 1] for row in range(ROWS)] if by_row else [batch]
        self._stored[partition] = BatchMeta.concat([client.put(piece, partition_id=partition) for piece in pieces])
        return list(self._stored[partition].global_indexes)

    def get(self, partition: str) -> TensorDict:
        stored = self._stored[partition]
        task = f"reader of {partition}"
        fetched = tq.get_client().get_meta(stored.field_names, ROWS, partition, task_name=task)
        # It comes in the order of the indexes, and those of cleared rows are used again.
        fetched.reorder([fetched.global_indexes.index(number) for number in stored.global_indexes])
        return tq.get_client().get_data(fetched)

    def clear(self, partition: str) -> None:
        tq.get_client().clear_samples(self._stored.pop(partition))


class Actors:
    """A process that writes and another one that reads.

    :param producer_switched: False: it stays on TransferQueue's own client, also in a job that tensorlease.transfer_queue switches
    :param consumer_switched: the same of the one that reads
    """

    def __init__(self, *, producer_switched: bool = True, consumer_switched: bool = True) -> None:
        self._producer = _worker(producer_switched)
        self._consumer = _worker(consumer_switched)

    def put(self, partition: str, batch: TensorDict, by_row: bool) -> list[int]:
        found: list[int] = ray.get(self._producer.put.remote(partition, batch, by_row))
        return found

    def get(self, partition: str) -> TensorDict:
        # What it read crosses back through Ray, which must not be what fails: jagged tensors lose their layout there.
        return self._consumer.get.remote(partition)

    def clear(self, partition: str) -> None:
        ray.get(self._consumer.clear.remote(partition))

    def clients(self) -> list[str]:
        """The class of the storage client in each process."""
        return ray.get([worker.client.remote() for worker in (self._producer, self._consumer)])


@ray.remote(num_cpus=0)
class Worker:
    """An actor that attaches to the job's queue."""

    def __init__(self) -> None:
        tq.init()

    def put(self, partition: str, batch: TensorDict, by_row: bool) -> list[int]:
        return SyncKv().put(partition, batch, by_row)

    def get(self, partition: str) -> Any:
        from described import describe, rows_of

        found = SyncKv().get(partition)
        return describe(found), {name: rows_of(found.get(name)) for name in found.keys()}  # noqa: SIM118 - a TensorDict

    def clear(self, partition: str) -> None:
        SyncKv().clear(partition)

    def client(self) -> str:
        return storage_client_name()


def _worker(switched: bool) -> Any:
    if switched:
        return Worker.remote()
    return Worker.options(runtime_env={"env_vars": {"TENSORLEASE_TRANSFER_QUEUE": "0"}}).remote()


def storage_client_name() -> str:
    """Of this process."""
    return type(tq.get_client().storage_manager.storage_client).__name__


def indexes(partition: str) -> list[int]:
    """Under which the rows are stored."""
    return list(tq.get_client().kv_retrieve_meta(KEYS, partition).global_indexes)


def row_of(batch: TensorDict, row: int) -> dict[str, Any]:
    """One row as `kv_put` takes it: tensors without the batch dimension."""
    columns = {name: batch.get(name) for name in batch.keys()}  # noqa: SIM118 - a TensorDict
    return {
        name: column.tolist()[row] if isinstance(column, NonTensorStack) else torch.as_tensor(column[row])
        for name, column in columns.items()
    }


def fresh_loop(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Runs the coroutine on an event loop that nothing else has used."""
    return asyncio.run(make())
