"""Errors of this client: those of tensorlease that are also what TransferQueue's own client raises there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tensorlease import errors
from tensorlease.transfer_queue import released

_theirs = released.load().key_not_found
#: A key is not in the store: tensorlease's `KeyNotFound`, TransferQueue's `StorageKeyNotFoundError` where it has one, and the
#: `RuntimeError` that its Mooncake client raises.
StorageKeyNotFound = type(
    "StorageKeyNotFound",
    (errors.KeyNotFound, *([_theirs] if _theirs else []), RuntimeError),
    {"__module__": __name__, "__doc__": "A key is not in the store."},
)


class StorageSizeMismatch(errors.SizeMismatch, RuntimeError):
    """What is stored is shorter or longer than what the controller says."""


class StorageFull(errors.StoreFull, RuntimeError):
    """No segment has room for the values."""


class StorageTransferError(errors.TransferError, RuntimeError):
    """The bytes of some keys could not be moved; `failures` says why for each."""


class StorageUnavailable(errors.EngineUnavailable, RuntimeError):
    """Mooncake can't be reached."""


class StorageClosed(errors.Closed, RuntimeError):
    """The client is closed."""


_AS_RAISED_THERE: dict[type[errors.Error], Any] = {
    errors.KeyNotFound: StorageKeyNotFound,
    errors.SizeMismatch: StorageSizeMismatch,
    errors.StoreFull: StorageFull,
    errors.TransferError: StorageTransferError,
    errors.EngineUnavailable: StorageUnavailable,
    errors.Closed: StorageClosed,
}


@contextlib.contextmanager
def as_raised_there() -> Iterator[None]:
    """Errors of a store, so that code which catches what TransferQueue's client raises catches them too."""
    try:
        yield
    except errors.Error as error:
        kind = _AS_RAISED_THERE.get(type(error))
        if kind is None:
            raise
        raise kind(str(error), failures=error.failures) from error
