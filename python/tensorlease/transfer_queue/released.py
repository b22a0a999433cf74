"""What is used of the installed TransferQueue, looked up once, by name."""

from __future__ import annotations

import functools
import importlib
import logging
from types import SimpleNamespace

from tensorlease.errors import ConfigError

#: Versions that the tests have run with.
TESTED = ("0.1.9", "0.1.10", "0.1.11")
INSTALL = "pip install TransferQueue"

_SERIAL = "transfer_queue.utils.serial_utils"
_ZMQ = "transfer_queue.utils.zmq_utils"
#: Name here: (module, name there).
_NEEDED = {
    "client": ("transfer_queue.storage.clients.mooncake_client", "MooncakeStoreClient"),
    "client_base": ("transfer_queue.storage.clients.base", "StorageKVClient"),
    "client_factory": ("transfer_queue.storage.clients.base", "StorageClientFactory"),
    "manager": ("transfer_queue.storage.managers.mooncake_manager", "MooncakeStorageManager"),
    "manager_factory": ("transfer_queue.storage.managers.base", "StorageManagerFactory"),
    "bootstrap": ("transfer_queue.storage.bootstrap.mooncake_bootstrap", "initialize_mooncake_storage"),
    "bootstrap_provider": ("transfer_queue.storage.bootstrap.provider", "StorageBootstrapProvider"),
    "encode": (_SERIAL, "encode"),
    "decode": (_SERIAL, "decode"),
    "ZMQMessage": (_ZMQ, "ZMQMessage"),
    "ZMQRequestType": (_ZMQ, "ZMQRequestType"),
    "create_zmq_socket": (_ZMQ, "create_zmq_socket"),
    "get_node_ip_address": (_ZMQ, "get_node_ip_address"),
}

_logger = logging.getLogger("tensorlease")


class TransferQueueMissing(ConfigError, ImportError):
    """TransferQueue is not installed."""


@functools.cache
def load() -> SimpleNamespace:
    """The names, and `version`. A ConfigError where TransferQueue is not installed, or lacks something that is needed."""
    version = _version()
    found = SimpleNamespace(version=version)
    for ours, (module, name) in _NEEDED.items():
        try:
            setattr(found, ours, getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"TransferQueue {version} has no {module}.{name}, which tensorlease.transfer_queue needs ({error}); "
                f"install one of the tested versions: {', '.join(TESTED)}"
            ) from error
    # Older versions have no class for it.
    found.key_not_found = getattr(importlib.import_module("transfer_queue"), "StorageKeyNotFoundError", None)
    if version not in TESTED:
        told = "found TransferQueue %s; tensorlease.transfer_queue is tested with %s and goes on"
        _logger.warning(told, version, ", ".join(TESTED))
    return found


def _version() -> str:
    try:
        package = importlib.import_module("transfer_queue")
    except ModuleNotFoundError as error:
        if error.name != "transfer_queue":
            raise
        raise TransferQueueMissing(f"tensorlease.transfer_queue needs TransferQueue: {INSTALL}") from error
    return str(getattr(package, "__version__", "of an unknown version"))
