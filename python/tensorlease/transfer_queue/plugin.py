"""Puts our client, manager and bootstrap in the place of TransferQueue's, through its public factories, and takes them out again.

Ray's workers, and those of a DataLoader, install by themselves.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from tensorlease.errors import ConfigError
from tensorlease.transfer_queue import released, settings

#: What importing `tensorlease.transfer_queue` does: `OFF` nothing; `ON_IMPORT` installs as soon as TransferQueue is imported; `ON`, and no
#: value: installs.
VARIABLE = "TENSORLEASE_TRANSFER_QUEUE"
OFF = "0"
ON = "1"
ON_IMPORT = "on-import"

#: What Ray calls when a worker starts.
HOOK = "worker_process_setup_hook"
_PACKAGE = "transfer_queue"
_SETUP = "tensorlease.transfer_queue.setup_worker"

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


def asked_for() -> str:
    """What the environment asks for; a ConfigError where it is none of the three."""
    value = os.environ.get(VARIABLE) or ON
    if value not in (OFF, ON, ON_IMPORT):
        raise ConfigError(
            f"{VARIABLE}={value!r:.80} in the environment means nothing; {OFF} leaves TransferQueue as it is, {ON} (or no value) installs, "
            f"{ON_IMPORT} installs as soon as TransferQueue is imported"
        )
    return value


def on_import() -> None:
    """What importing the package does."""
    mode = asked_for()
    if mode == ON_IMPORT:
        setup_worker()
    elif mode != OFF:
        install()


def runtime_env(base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Ray's runtime environment in which every worker of the job installs the plugin: `ray.init(runtime_env=runtime_env())`.

    A worker installs when it imports TransferQueue; one that never does pays nothing. Where `TENSORLEASE_TRANSFER_QUEUE` is 0 in this process,
    its workers don't install either. tensorlease must be installed on every node.

    :param base: a runtime environment to add to; it is not changed
    :raises ConfigError: it is no dict, or the environment asks for what there is not
    """
    if base is not None and not isinstance(base, Mapping):
        raise ConfigError(f"base is {base!r:.80}; give a runtime environment as a dict, or None")
    environment = dict(base or {})
    hook = environment.get(HOOK)
    if hook is None:
        environment[HOOK] = _SETUP
    elif hook != _SETUP:
        environment[HOOK] = _after(hook)
    variables = {**(environment.get("env_vars") or {})}
    variables.setdefault(VARIABLE, OFF if asked_for() == OFF else ON_IMPORT)
    environment["env_vars"] = variables
    return environment


def setup_worker(worker_id: int = 0) -> None:
    """Installs the plugin as soon as this process imports TransferQueue, or at once where it has.

    Ray calls it in every worker (`runtime_env`). Pass it as `worker_init_fn` to a DataLoader whose workers are spawned; forked ones inherit the
    plugin. Does nothing where `TENSORLEASE_TRANSFER_QUEUE` is 0.
    """
    if asked_for() == OFF:
        return
    if _PACKAGE in sys.modules:
        install()
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


def _after(hook: str | Callable[[], Any]) -> Callable[[], None]:
    """Somebody else's hook, named as Ray names it or a function, and then ours: Ray takes one."""

    def both() -> None:
        if isinstance(hook, str):
            module, _, name = hook.rpartition(".")
            getattr(importlib.import_module(module), name)()
        else:
            hook()
        setup_worker()

    return both


class _Watcher(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _InstallingLoader(spec.loader)
        return spec


class _InstallingLoader(importlib.abc.Loader):
    """Loads the package as its own loader does, then installs."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        install()
