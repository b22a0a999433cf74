"""The store of this process: clients with the same settings share it, and none of it is used in a forked child."""

import logging
import os
import threading
import weakref
from typing import Any

import tensorlease
from tensorlease.errors import Closed, EngineUnavailable, Error
from tensorlease.store import Store

_Key = tuple[str, tuple[tuple[str, Any], ...]]

_logger = logging.getLogger("tensorlease")


class _Opened:
    """One open store, and how many clients use it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.users = 0


# Reentrant: the collector may finish a client while this thread opens a store for another.
_lock = threading.RLock()
_opened: dict[_Key, _Opened] = {}
#: Stores of the process that this one was forked from. Taking them apart is that process's business, so they are kept.
_inherited: list[_Opened] = []
#: Has this process, or one that it was forked from, opened a store?
_was_opened = False
#: Was this process forked from one that had? Mooncake then waits for ever for threads that are not here.
_is_stranded = False


class StoreUse:
    """One client's use of the store of `url` and `options`; the last one that ends closes the store.

    :raises ConfigError: as `tensorlease.open`
    :raises EngineUnavailable: as `tensorlease.open`, and in a process that was forked from one that had a store
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        global _was_opened
        key: _Key = (url, tuple(sorted(options.items())))
        if _is_stranded:
            raise _stranded()
        with _lock:
            opened = _opened.get(key)
            if opened is None or opened.store.closed:
                _was_opened = True
                opened = _opened[key] = _Opened(tensorlease.open(url, **options))
            opened.users += 1
            self._store = opened.store
            self._process = os.getpid()
            # Also at the end of the interpreter, with more patience than the store has then: a segment takes seconds to go in order.
            self._finalizer = weakref.finalize(self, _give_back, key, self._process)

    @property
    def store(self) -> Store:
        """The store, unless this use has ended or this process was forked from the one that opened it."""
        if self._process != os.getpid():
            raise _stranded()
        if self.closed:
            raise Closed("the client is closed; make a new one")
        return self._store

    @property
    def closed(self) -> bool:
        """Has this use ended? The store may have other users."""
        return not self._finalizer.alive

    def close(self) -> None:
        self._finalizer()


def _stranded() -> EngineUnavailable:
    return EngineUnavailable(
        "this process was forked from one that uses Mooncake, and Mooncake does not survive a fork: start it with spawn, for a "
        'DataLoader multiprocessing_context="spawn" and worker_init_fn=tensorlease.transfer_queue.setup_worker'
    )


def _give_back(key: _Key, process: int) -> None:
    if process != os.getpid():
        return
    with _lock:
        opened = _opened.get(key)
        if opened is None:
            return
        opened.users -= 1
        if opened.users > 0:
            return
        del _opened[key]
    try:
        opened.store.close()
    except Error as error:
        # What a client was closed for must not fail for this.
        _logger.warning("the store of %s did not close: %s", opened.store.url, error)


def _forget_in_child() -> None:
    global _lock, _is_stranded
    _is_stranded = _was_opened
    # A thread of the parent may have held it.
    _lock = threading.RLock()
    _inherited.extend(_opened.values())
    _opened.clear()


os.register_at_fork(after_in_child=_forget_in_child)
