"""torch tensors on their way into the store, and jagged batches on their way out. Only imported where torch is installed."""

import logging
from typing import Any

import torch

from tensorlease.errors import ConfigError, Error, OutOfMemory, is_out_of_memory


def prepare(tensor: Any, name: str) -> Any:
    """A plain tensor of the same value: on the CPU, contiguous, detached. `name` says in errors which key it is of."""
    try:
        return _prepare(tensor, name)
    except Error:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            copied = f"{name} is a tensor that has to be copied first"
            raise OutOfMemory(f"{copied}, and this process has no memory left") from error
        # Subclasses and tensors inside torch's transforms may raise anything.
        raise ConfigError(f"{name} is a tensor whose values can't be read: {error}; put a plain tensor") from error


def _refusal(tensor: Any) -> str | None:
    """What keeps a tensor from being stored, and what to put instead. None: nothing does."""
    if _is_a("DTensor", tensor):
        parts = "put tensor.to_local() for this process's part, or tensor.full_tensor() for the whole"
        return f"is a DTensor, a part of a tensor that is spread over processes; {parts}"
    if tensor.is_nested:
        return "is a nested tensor; put its rows under a key each: put(keys, list(tensor.unbind()))"
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"is a tensor of layout {layout}; put tensor.to_dense(), or its parts under a key each"
    if tensor.is_quantized:
        dense = "tensor.int_repr() and keep scale and zero point beside it, or tensor.dequantize()"
        return f"is a quantized tensor; put {dense}"
    if _is_a("FakeTensor", tensor):
        return "is a fake tensor, which has no values; put a real one"
    if tensor.device.type == "meta":
        return "is on the meta device, where tensors have no values; put one with values, on the CPU"
    return None if tensor.device.type == "cpu" else f"is on {tensor.device}; move it first: tensor.cpu()"


def _prepare(tensor: Any, name: str) -> Any:
    if (refusal := _refusal(tensor)) is not None:
        raise ConfigError(f"{name} {refusal}")
    plain = _as_plain(tensor.detach()).resolve_conj().resolve_neg()
    _require_memory(plain, name)
    return plain.contiguous()


def _require_memory(tensor: Any, name: str) -> None:
    """Refuses a tensor whose storage does not hold all of its elements: torch itself would read past it."""
    if tensor.numel() == 0:
        return
    last = tensor.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    needed = (last + 1) * tensor.element_size()
    storage = tensor.untyped_storage()
    if storage.nbytes() < needed or storage.data_ptr() == 0:
        raise ConfigError(
            f"{name} is a tensor whose storage has {storage.nbytes()} bytes where its shape needs {needed} (a resize_ that failed, or a storage "
            "that was freed, as by FSDP, or a tensor of torch's transforms); put one whose memory is there"
        )


def bytes_of(tensor: Any) -> Any:
    """The memory of a plain tensor as an array of bytes, whatever its dtype."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def jagged(values: Any, offsets: Any, length_min: int, length_max: int) -> Any:
    """One nested tensor over `values`, without a copy."""
    # torch's first nested tensor imports its tracer, which then warns about a function that nobody here calls.
    logger = logging.getLogger("torch.fx._symbolic_trace")
    # Of a filter for another logger nothing passes.
    quiet = logging.Filter("nothing")
    logger.addFilter(quiet)
    try:
        # Without the lengths, padding would pad to the length of all rows together.
        return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=length_min, max_seqlen=length_max)
    finally:
        logger.removeFilter(quiet)


def written(tensors: list[Any]) -> None:
    """Tells autograd that the values have changed, as an in-place operation does."""
    changed = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor) and not tensor.is_inference()]
    torch.autograd.graph.increment_version(changed)


def _is_a(name: str, tensor: Any) -> bool:
    # By name: importing the class costs a second where it has not been used.
    return any(kind.__name__ == name for kind in type(tensor).__mro__)


def _as_plain(tensor: Any) -> Any:
    if type(tensor) is torch.Tensor:
        return tensor
    try:
        return tensor.as_subclass(torch.Tensor)
    except RuntimeError:
        return tensor
