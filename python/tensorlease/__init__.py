"""Tensors between the processes of an RL post-training job, without copies, page faults or registrations on the hot path.

>>> import tensorlease as tl
>>> store = tl.open("embedded://")
>>> store.put(["a"], [tensor])
>>> (a,) = store.get(["a"], [(2, 3)], [torch.float32])
"""

from importlib import metadata as _metadata

from tensorlease.errors import (
    ArenaExhausted,
    Closed,
    CodecError,
    ConfigError,
    EngineUnavailable,
    Error,
    FallbackError,
    Interrupted,
    KeyFailure,
    KeyNotFound,
    OutOfMemory,
    OutOfStack,
    SizeMismatch,
    StoreFull,
    Timeout,
    TransferError,
)
from tensorlease.store import Store, open, warm_up_jagged  # noqa: A004 - see there

try:
    __version__ = _metadata.version("tensorlease")
except _metadata.PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0"

__all__ = [
    "ArenaExhausted",
    "Closed",
    "CodecError",
    "ConfigError",
    "EngineUnavailable",
    "Error",
    "FallbackError",
    "Interrupted",
    "KeyFailure",
    "KeyNotFound",
    "OutOfMemory",
    "OutOfStack",
    "SizeMismatch",
    "Store",
    "StoreFull",
    "Timeout",
    "TransferError",
    "__version__",
    "open",
    "warm_up_jagged",
]
