"""The store of this process: clients with the same settings share it, and a forked child opens one of its own."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Any

import tensorlease
from tensorlease.errors import EngineUnavailable, Error
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

    :raises ConfigError, EngineUnavailable: as `tensorlease.open`; `EngineUnavailable` also in a process that was forked from one with a store
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._key: _Key = (url, tuple(sorted(options.items())))
        self._process = -1
        self._take()

    def _take(self) -> None:
        global _was_opened
        url, options = self._key
        if _is_stranded:
            raise EngineUnavailable(
                "this process was forked from one that uses Mooncake, and Mooncake does not survive a fork: start it with spawn, for a "
                'DataLoader multiprocessing_context="spawn" and worker_init_fn=tensorlease.transfer_queue.setup_worker'
            )
        with _lock:
            opened = _opened.get(self._key)
            if opened is None or opened.store.closed:
                _was_opened = True
                opened = _opened[self._key] = _Opened(tensorlease.open(url, **dict(options)))
            opened.users += 1
            self._store = opened.store
            self._process = os.getpid()
            # Also at the end of the interpreter, with more patience than the store has then: a segment takes seconds to go in order.
            self._finalizer = weakref.finalize(self, _give_back, self._key, self._process)

    @property
    def store(self) -> Store:
        """The store; opened again where this process was forked from the one that opened it."""
        if self._process != os.getpid():
            with _lock:
                if self._process != os.getpid():
                    self._take()
        return self._store

    def close(self) -> None:
        """Ends this use. Idempotent."""
        self._finalizer()


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
