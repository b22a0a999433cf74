"""Ray's workers, and those of a DataLoader: they install the plugin by themselves."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from tensorlease.errors import ConfigError
from tensorlease.transfer_queue.plugin import install

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


def asked_for() -> str:
    """What the environment asks for.

    :raises ConfigError: it is none of the three
    """
    value = os.environ.get(VARIABLE) or ON
    if value not in (OFF, ON, ON_IMPORT):
        raise ConfigError(
            f"{VARIABLE}={value!r:.80} in the environment means nothing; {OFF} leaves TransferQueue as it is, {ON} (or no value) installs, "
            f"{ON_IMPORT} installs as soon as TransferQueue is imported"
        )
    return value


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
