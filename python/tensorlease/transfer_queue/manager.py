"""The storage manager that takes the place of TransferQueue's for MooncakeStore."""

import asyncio
import importlib
import inspect
import logging
from contextvars import ContextVar
from typing import Any

import torch

from tensorlease.errors import ConfigError
from tensorlease.transfer_queue import partition_fields, released
from tensorlease.transfer_queue.client import TensorleaseStoreClient
from tensorlease.transfer_queue.columns import SCALAR_ROW, Column
from tensorlease.transfer_queue.packing import Opaque
from tensorlease.transfer_queue.partition_fields import VALUES
from tensorlease.transfer_queue.settings import dense_columns

_Base: Any = released.load().manager

#: So many fields of partitions are remembered: jobs make a partition for each step.
KINDS_MAX = 4096

_logger = logging.getLogger("tensorlease")
#: The fields of the put that runs in this context whose rows are 0-dimensional.
_scalar_fields: ContextVar[frozenset[str]] = ContextVar("scalar_fields", default=frozenset())


class TensorleaseStorageManager(_Base):  # type: ignore[misc]
    """TransferQueue's manager for MooncakeStore. Reading and clearing leave the event loop free; a column is read back to back; what is
    cleared is cleared with all of its fields."""

    async def put_data(self, data: Any, metadata: Any, *args: Any, **kwargs: Any) -> None:
        """Stores a batch and tells the controller.

        :raises ConfigError: a column is of another kind than the rows that its field has; nothing is stored then
        """
        await self._refuse_second_kind(data, metadata)
        tensors = {name: column for name, column in data.items() if isinstance(column, torch.Tensor)}
        scalar = frozenset(name for name, column in tensors.items() if not column.is_nested and column.dim() == 1)
        token = _scalar_fields.set(scalar)
        try:
            await super().put_data(data, metadata, *args, **kwargs)
        finally:
            _scalar_fields.reset(token)
        for row in metadata._custom_backend_meta:
            _mark_scalars(row, scalar)

    async def _refuse_second_kind(self, data: Any, metadata: Any) -> None:
        """The controller keeps one dtype for a field, that of its first rows, and takes others without a word: they would be read as what they
        are not."""
        kinds = {name: column.dtype if isinstance(column, torch.Tensor) else VALUES for name, column in data.items()}
        partition = metadata.partition_ids[0] if metadata.partition_ids else ""
        schemas = getattr(metadata, "field_schema", None) or {}
        known = {name: partition_fields.kind_of(schemas.get(name)) for name in kinds}
        # The description of new keys has no fields. What was put from here before tells where the controller has to be asked.
        before = self.__dict__.setdefault("_kinds_put", {})
        if any(known[name] is None and before.get((partition, name), kind) != kind for name, kind in kinds.items()):
            who = (self.controller_info, self.storage_manager_id)
            there = await asyncio.to_thread(partition_fields.kinds_in_partition, *who, partition)
            known = {name: known[name] if known[name] is not None else there.get(name) for name in kinds}
        for name, kind in kinds.items():
            if known[name] is not None and known[name] != kind:
                raise ConfigError(
                    f"field {name!r} of partition {partition!r} holds {known[name]}, and this put has {kind}; TransferQueue keeps one dtype for "
                    "all rows of a field: convert the rows, or put them under a field of another name; nothing was stored"
                )
            before[partition, name] = kind
        while len(before) > KINDS_MAX:
            del before[next(iter(before))]

    def _generate_values(self, data: Any) -> list[Any]:
        """The values in the order of the keys; tensors of a column that is no tensor are values like its others."""
        values: list[Any] = super()._generate_values(data)
        if not isinstance(self.storage_client, TensorleaseStoreClient):
            return values
        rows = data.batch_size[0]
        for index, field in enumerate(sorted(data.keys())):
            if not isinstance(data[field], torch.Tensor):
                column = slice(index * rows, (index + 1) * rows)
                values[column] = [
                    Opaque(value) if isinstance(value, torch.Tensor) else value for value in values[column]
                ]
        return values

    async def notify_data_update(self, *args: Any, **kwargs: Any) -> None:
        """Tells the controller what has been put, with what readers need to know of each row."""
        notify = super().notify_data_update
        rows = inspect.signature(notify).bind(*args, **kwargs).arguments.get("custom_backend_meta")
        for row in (rows or {}).values():
            _mark_scalars(row, _scalar_fields.get())
        await notify(*args, **kwargs)

    async def get_data(self, metadata: Any) -> Any:
        if not metadata.field_names or not metadata.global_indexes:
            return await super().get_data(metadata)
        return await asyncio.to_thread(self._read, metadata)

    async def clear_data(self, metadata: Any) -> None:
        """Removes the samples with every field that they have, also those that other samples of the batch lack."""
        await asyncio.to_thread(self._clear, metadata)

    def close(self) -> None:
        """Also ends the storage client, which TransferQueue leaves to the collector."""
        super().close()
        client = self.__dict__.get("storage_client")
        if client is None:
            return
        try:
            client.close()
        except Exception as error:
            _logger.warning("the storage client did not close: %s", error)

    def _read(self, metadata: Any) -> Any:
        client = self.storage_client
        if not (isinstance(client, TensorleaseStoreClient) and client.reads_columns):
            return self._read_values(metadata)
        columns = [self._column(metadata, field) for field in sorted(metadata.field_names)]
        merged = client.read_columns(columns, dense_columns(client.tuning))
        batch: Any = importlib.import_module("tensordict").TensorDict
        return batch(merged, batch_size=len(metadata.global_indexes))

    def _read_values(self, metadata: Any) -> Any:
        """As TransferQueue does it, for clients that are not ours alone."""
        keys = self._generate_keys(metadata.field_names, metadata.global_indexes)
        columns = [self._column(metadata, field) for field in sorted(metadata.field_names)]
        values = self.storage_client.get(
            keys=keys,
            shapes=[shape for column in columns for shape in column.shapes],
            dtypes=[column.dtype for column in columns for _ in column.keys],
            custom_backend_meta=[meta for column in columns for meta in column.metas],
        )
        return self._merge_tensors_to_tensordict(metadata, values)

    def _column(self, metadata: Any, field: str) -> Column:
        keys = self._generate_keys([field], metadata.global_indexes)
        dtypes = metadata.get_dtypes(field)
        metas = [row.get(field) for row in metadata._custom_backend_meta]
        return Column(field, keys, dtypes[0] if dtypes else None, metadata.get_shapes(field), metas)

    def _clear(self, metadata: Any) -> None:
        fields = set(metadata.field_names)
        for partition in dict.fromkeys(metadata.partition_ids):
            fields |= partition_fields.of_partition(self.controller_info, self.storage_manager_id, partition)
        if not fields:
            return
        names = sorted(fields)
        keys = self._generate_keys(names, metadata.global_indexes)
        metas = [row.get(name) for name in names for row in metadata._custom_backend_meta]
        self.storage_client.clear(keys=keys, custom_backend_meta=metas)


def _mark_scalars(row: dict[str, Any], fields: frozenset[str]) -> None:
    for field in fields & row.keys():
        if row[field] is None:
            row[field] = dict(SCALAR_ROW)
