"""One warning per process about what a fork costs while memory is pinned."""

from __future__ import annotations

import logging
import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorlease.store import Store

_logger = logging.getLogger("tensorlease")
_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_process = os.getpid()
_warned = False


def watch(store: Store) -> None:
    """Counts the store's pinned memory when this process forks."""
    global _process
    if _process != os.getpid():
        # What was inherited belongs to the parent, and must not be touched here.
        _stores.clear()
        _process = os.getpid()
    _stores.add(store)


def _before_fork() -> None:
    """The kernel copies pinned private pages at fork: for 512 MiB 0.1 to 0.9 s and as much memory were measured on a 2-core machine."""
    global _warned
    if _warned or _process != os.getpid():
        return
    pinned = sum(int(store.stats()["pinned_bytes"]) for store in list(_stores) if not store.closed)
    if pinned:
        _warned = True
        _logger.warning(
            "fork while %d bytes are pinned: the kernel copies them into the child, which takes time and memory; "
            'start processes by "spawn", or open the store with fork="exclude" (this warning is given once)',
            pinned,
        )


os.register_at_fork(before=_before_fork)
