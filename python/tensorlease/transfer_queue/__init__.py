"""TransferQueue's MooncakeStore backend over tensorlease: importing this module is the switch.

>>> import tensorlease.transfer_queue
>>> ray.init(runtime_env=tensorlease.transfer_queue.runtime_env())
>>> transfer_queue.init(config)

TransferQueue's API and configuration stay as they are, and so do the keys and bytes in the store: processes with and without this module read
each other's data. Our own settings lie under `backend.MooncakeStore.tensorlease`. With the environment variable
`TENSORLEASE_TRANSFER_QUEUE=0` importing installs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorlease.transfer_queue.plugin import install, installed, on_import, runtime_env, setup_worker, uninstall
from tensorlease.transfer_queue.released import TransferQueueMissing

if TYPE_CHECKING:
    from tensorlease.transfer_queue.bootstrap import initialize_mooncake_storage
    from tensorlease.transfer_queue.client import TensorleaseStoreClient
    from tensorlease.transfer_queue.manager import TensorleaseStorageManager

__all__ = [
    "TensorleaseStorageManager",
    "TensorleaseStoreClient",
    "TransferQueueMissing",
    "initialize_mooncake_storage",
    "install",
    "installed",
    "runtime_env",
    "setup_worker",
    "uninstall",
]

#: Where what needs TransferQueue lies: imported when it is asked for.
_LATER = {
    "TensorleaseStorageManager": "manager",
    "TensorleaseStoreClient": "client",
    "initialize_mooncake_storage": "bootstrap",
}


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


on_import()
