"""Puts our client, manager and bootstrap in the place of TransferQueue's, through its public factories, and takes them out again."""

import logging
import threading
from typing import Any

from tensorlease.transfer_queue import released, settings

CLIENT_NAME = "MooncakeStoreClient"
MANAGER_NAME = "MooncakeStore"
#: What a client class must leave as it is for ours to be put over it.
_OURS = ("__init__", "put", "get", "clear", "close")

_logger = logging.getLogger("tensorlease")
_lock = threading.RLock()
#: What we took the place of: client class, manager class, bootstrap.
_before: tuple[Any, Any, Any] | None = None


def install(*, dense: bool | None = None) -> None:
    """TransferQueue's MooncakeStore backend uses tensorlease from now on, in this process. Idempotent.

    Clients that exist already stay as they are: call it before `transfer_queue.init()`.

    :param dense: True: columns come back dense where all rows agree, and False: as TransferQueue merges them, in this process; None leaves it to
        `backend.MooncakeStore.tensorlease.dense`
    :raises TransferQueueMissing: TransferQueue is not installed (also an `ImportError`)
    :raises ConfigError: this version of TransferQueue lacks something that is needed; the message names both
    """
    global _before
    theirs = released.load()
    from tensorlease.transfer_queue.bootstrap import initialize_mooncake_storage
    from tensorlease.transfer_queue.manager import TensorleaseStorageManager

    with _lock:
        settings.set_dense(dense)
        if installed():
            return
        client = _client_over(theirs.client_factory._registry.get(CLIENT_NAME))
        if client is None:
            return
        _before = (
            theirs.client_factory._registry.get(CLIENT_NAME),
            theirs.manager_factory._registry.get(MANAGER_NAME),
            theirs.bootstrap_provider.get_provider(MANAGER_NAME),
        )
        theirs.client_factory.register(CLIENT_NAME)(client)
        theirs.manager_factory.register(MANAGER_NAME)(TensorleaseStorageManager)
        theirs.bootstrap_provider.register_provider(MANAGER_NAME)(initialize_mooncake_storage)
        _logger.info("TransferQueue %s: its MooncakeStore backend uses tensorlease in this process", theirs.version)


def uninstall() -> None:
    """TransferQueue's own classes are back, for clients made from now on. Idempotent."""
    global _before
    with _lock:
        if _before is None:
            return
        theirs = released.load()
        client, manager, bootstrap = _before
        _before = None
        # Whoever has registered another class since then keeps it.
        if _is_ours(theirs.client_factory._registry.get(CLIENT_NAME)):
            theirs.client_factory.register(CLIENT_NAME)(client or theirs.client)
        if _is_ours(theirs.manager_factory._registry.get(MANAGER_NAME)):
            theirs.manager_factory.register(MANAGER_NAME)(manager or theirs.manager)
        if _is_our_bootstrap(theirs.bootstrap_provider.get_provider(MANAGER_NAME)):
            theirs.bootstrap_provider.register_provider(MANAGER_NAME)(bootstrap or theirs.bootstrap)
        settings.set_dense(None)


def installed() -> bool:
    """Does TransferQueue make our client in this process?"""
    if _before is None:
        return False
    return _is_ours(released.load().client_factory._registry.get(CLIENT_NAME))


def _is_ours(kind: Any) -> bool:
    from tensorlease.transfer_queue.client import TensorleaseStoreClient
    from tensorlease.transfer_queue.manager import TensorleaseStorageManager

    return isinstance(kind, type) and issubclass(kind, TensorleaseStoreClient | TensorleaseStorageManager)


def _is_our_bootstrap(provider: Any) -> bool:
    from tensorlease.transfer_queue.bootstrap import initialize_mooncake_storage

    # TransferQueue wraps what it is given.
    return getattr(provider, "__wrapped__", provider) is initialize_mooncake_storage


def _client_over(registered: Any) -> Any:
    """Our client; over a class that overrides private methods of TransferQueue's, one that keeps calling those. None: leave it alone."""
    from tensorlease.transfer_queue.client import TensorleaseStoreClient

    theirs = released.load().client
    if registered is None or registered is theirs or _is_ours(registered):
        return TensorleaseStoreClient
    changes_more = any(getattr(registered, name, None) is not getattr(theirs, name) for name in _OURS)
    if not (isinstance(registered, type) and issubclass(registered, theirs)) or changes_more:
        name = f"{registered.__module__}.{registered.__qualname__}"
        _logger.warning("another class is registered as %s (%s) and stays; tensorlease is not used", CLIENT_NAME, name)
        return None
    return type("TensorleaseStoreClient", (TensorleaseStoreClient, registered), {"__module__": __name__})
