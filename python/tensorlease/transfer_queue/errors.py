"""Errors of this client: those of tensorlease that are also what TransferQueue's own client raises there."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from tensorlease import errors
from tensorlease.transfer_queue import released


def _both(name: str, ours: type[errors.Error], told: str, *theirs: type) -> Any:
    """An error of tensorlease that is also the `RuntimeError` which TransferQueue's Mooncake client raises."""
    made = type(name, (ours, *theirs, RuntimeError), {"__module__": __name__, "__doc__": told})
    _AS_RAISED_THERE[ours] = made
    return made


_AS_RAISED_THERE: dict[type[errors.Error], Any] = {}
_key_not_found = released.load().key_not_found
#: Also TransferQueue's own `StorageKeyNotFoundError` where it has one.
StorageKeyNotFound = _both(
    "StorageKeyNotFound", errors.KeyNotFound, "A key is not in the store.", *filter(None, [_key_not_found])
)
StorageSizeMismatch = _both("StorageSizeMismatch", errors.SizeMismatch, "The stored size is not what is expected.")
StorageFull = _both("StorageFull", errors.StoreFull, "No segment has room for the values.")
StorageTransferError = _both(
    "StorageTransferError", errors.TransferError, "The bytes of some keys were not moved; see `failures`."
)
StorageUnavailable = _both("StorageUnavailable", errors.EngineUnavailable, "Mooncake can't be reached.")
StorageClosed = _both("StorageClosed", errors.Closed, "The client is closed.")

#: What messages of a store call its options, and how TransferQueue's configuration calls them, below `backend.MooncakeStore`.
_SETTINGS = {
    "segment": "global_segment_size",
    "local_buffer": "local_buffer_size",
    "metadata": "metadata_server",
    "device": "device_name",
    "max_bytes": "tensorlease.max_bytes",
    "prewarm": "tensorlease.prewarm",
    "readers": "tensorlease.readers",
    "strict": "tensorlease.strict",
}
#: As a message names one: told to be raised or lowered, or with its value.
_OPTION = re.compile(rf"(?:\b(?:raise|lower|and|more) ({'|'.join(_SETTINGS)})\b)|(?:\b({'|'.join(_SETTINGS)})=)")


@contextlib.contextmanager
def as_raised_there() -> Iterator[None]:
    """Errors of a store, so that code which catches what TransferQueue's client raises catches them too."""
    try:
        yield
    except errors.Error as error:
        message = str(error)
        named = names_there(message)
        kind = _AS_RAISED_THERE.get(type(error))
        if kind is None:
            if named:
                error.add_note(named)
            raise
        raise kind(f"{message} ({named})" if named else message, failures=error.failures) from error


def names_there(message: str) -> str:
    """How TransferQueue's configuration calls the options that a message of a store names; empty where it names none."""
    found = dict.fromkeys(raised or valued for raised, valued in _OPTION.findall(message))
    named = [f"{option} is backend.MooncakeStore.{_SETTINGS[option]}" for option in found]
    return f"in TransferQueue's configuration {', '.join(named)}" if named else ""
