"""What the controller says of the fields of a partition: the description of a batch names only those that all of its samples have."""

import importlib
import logging
import uuid
from typing import Any

from tensorlease.transfer_queue import released

ANSWER_SECONDS = 30.0
#: The kind of a field whose rows are no tensors.
VALUES = "values that are no tensors"

_logger = logging.getLogger("tensorlease")


def of_partition(controller: Any, sender: str, partition: str) -> set[str]:
    """Names of the fields that any sample of the partition has. Empty, and logged, where the controller does not answer."""
    # Clearing what the batch itself names is better than failing.
    metadata = _asked(
        controller, sender, partition, ": fields that only some of the cleared samples have stay in the store"
    )
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
