"""Warnings about what a fork of this process costs, or takes from the child; each once per process."""

from __future__ import annotations

import logging
import os
import weakref
from typing import Protocol

from tensorlease._core import live_views


class Watched(Protocol):
    """What is asked of a store."""

    @property
    def closed(self) -> bool: ...
    def stats(self) -> dict[str, float]: ...


_logger = logging.getLogger("tensorlease")
#: Stores whose arena a child inherits, and those whose arena it does not have.
_inherited: weakref.WeakSet[Watched] = weakref.WeakSet()
_excluded: weakref.WeakSet[Watched] = weakref.WeakSet()
_process = os.getpid()
_warned: set[str] = set()


def watch(store: Watched, *, excluded: bool) -> None:
    """Counts what the store holds when this process forks. `excluded`: a child does not have the memory of its tensors."""
    global _process
    if _process != os.getpid():
        # What was inherited belongs to the parent, and must not be touched here.
        _inherited.clear()
        _excluded.clear()
        _process = os.getpid()
    (_excluded if excluded else _inherited).add(store)


_MISSING = (
    "fork while tensors of %d bytes are leased and %d values are viewed whose memory the child does not have: it ends by SIGSEGV where it "
    'touches one. Start processes that read them by "spawn" (a torch DataLoader: multiprocessing_context="spawn"), or give them copies '
    "(this warning is given once)"
)
#: The kernel copies pinned private pages at fork: for 512 MiB 0.1 to 0.9 s and as much memory were measured on a 2-core machine.
_PINNED = (
    "fork while %d bytes are pinned: the kernel copies them into the child, which takes time and memory; "
    'start processes by "spawn", or open the store with fork="exclude" (this warning is given once)'
)


def _before_fork() -> None:
    if _process != os.getpid():
        return
    if _MISSING not in _warned:
        _warn(_MISSING, sum(int(store.stats()["leased_bytes"]) for store in list(_excluded)), live_views())
    if _PINNED not in _warned:
        open_stores = [store for store in list(_inherited) if not store.closed]
        _warn(_PINNED, sum(int(store.stats()["pinned_bytes"]) for store in open_stores))


def _warn(message: str, *numbers: int) -> None:
    if any(numbers):
        _warned.add(message)
        _logger.warning(message, *numbers)


os.register_at_fork(before=_before_fork)
