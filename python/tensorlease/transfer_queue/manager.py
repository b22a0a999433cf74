"""The storage manager that takes the place of TransferQueue's for MooncakeStore."""

import asyncio
import importlib
import inspect
import logging
import uuid
from contextvars import ContextVar
from typing import Any

import torch

from tensorlease.errors import ConfigError
from tensorlease.transfer_queue import released
from tensorlease.transfer_queue.client import TensorleaseStoreClient
from tensorlease.transfer_queue.columns import SCALAR_ROW, Column
from tensorlease.transfer_queue.packing import Opaque
from tensorlease.transfer_queue.settings import dense_columns

_Base: Any = released.load().manager

#: How long the controller may take to say which fields a partition has.
ANSWER_SECONDS = 30.0
#: The kind of a field whose rows are no tensors.
VALUES = "values that are no tensors"
#: So many fields of partitions are remembered: jobs make a partition for each step.
KINDS_MAX = 4096

_logger = logging.getLogger("tensorlease")
#: The fields of the put that runs in this context whose rows are 0-dimensional.
_scalar_fields: ContextVar[frozenset[str]] = ContextVar("scalar_fields", default=frozenset())


class TensorleaseStorageManager(_Base):  # type: ignore[misc]
    """TransferQueue's manager for MooncakeStore. Reading and clearing leave the event loop free; a column is read back to back; what is
    cleared is cleared with all of its fields."""

    async def put_data(self, data: Any, metadata: Any, *args: Any, **kwargs: Any) -> None:
        """Stores a batch and tells the controller. Nothing is stored where a column is of another kind than the rows that its field has."""
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
        known = {name: kind_of(schemas.get(name)) for name in kinds}
        # The description of new keys has no fields. What was put from here before tells where the controller has to be asked.
        before = self.__dict__.setdefault("_kinds_put", {})
        if any(known[name] is None and before.get((partition, name), kind) != kind for name, kind in kinds.items()):
            who = (self.controller_info, self.storage_manager_id)
            there = await asyncio.to_thread(kinds_in_partition, *who, partition)
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
            fields |= fields_of_partition(self.controller_info, self.storage_manager_id, partition)
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


def fields_of_partition(controller: Any, sender: str, partition: str) -> set[str]:
    """Names of the fields that any sample of the partition has. Empty, and logged, where the controller does not answer."""
    # Clearing what the batch itself names is better than failing.
    left = ": fields that only some of the cleared samples have stay in the store"
    metadata = _asked(controller, sender, partition, left)
    return set() if metadata is None else set(metadata.field_names)


def kind_of(schema: Any) -> Any:
    """What the controller reads the rows of a field as: tensors of a dtype, or values. None: it has no rows."""
    schema = schema or {}
    dtype = schema.get("dtype")
    return VALUES if dtype is None and schema.get("is_non_tensor") else dtype


def kinds_in_partition(controller: Any, sender: str, partition: str) -> dict[str, Any]:
    """The kind of each field of the partition. Empty where the controller does not answer: it then refuses the put by itself."""
    schemas = getattr(_asked(controller, sender, partition, ""), "field_schema", None) or {}
    return {name: kind_of(schema) for name, schema in schemas.items()}


def _asked(controller: Any, sender: str, partition: str, otherwise: str) -> Any:
    """What the controller says; None, and logged with what comes of it, where it does not answer."""
    try:
        return _ask(controller, sender, partition)
    except Exception as error:
        _logger.warning("the controller did not say which fields partition %r has (%s)%s", partition, error, otherwise)
        return None


def _ask(controller: Any, sender: str, partition: str) -> Any:
    """The description of no key: it has every field, and no samples to send."""
    zmq: Any = importlib.import_module("zmq")
    theirs = released.load()
    kinds = theirs.ZMQRequestType
    request = theirs.ZMQMessage.create(
        request_type=kinds.KV_RETRIEVE_META,
        sender_id=sender,
        receiver_id=controller.id,
        body={"keys": [], "partition_id": partition, "create": False},
    )
    with zmq.Context() as context:
        identity = f"{sender}-fields-{uuid.uuid4().hex[:8]}".encode()
        socket = theirs.create_zmq_socket(context, zmq.DEALER, controller.ip, identity)
        try:
            socket.connect(controller.to_addr("request_handle_socket"))
            socket.send_multipart(request.serialize())
            if not socket.poll(ANSWER_SECONDS * 1000):
                raise TimeoutError(f"no answer within {ANSWER_SECONDS:g} s")
            answer = theirs.ZMQMessage.deserialize(socket.recv_multipart(copy=False))
        finally:
            socket.close(linger=0)
    if answer.request_type != kinds.KV_RETRIEVE_META_RESPONSE:
        raise RuntimeError(str(answer.body.get("message", answer.request_type)))
    return answer.body["metadata"]
