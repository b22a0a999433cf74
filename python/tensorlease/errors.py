"""What goes wrong, as exceptions: one base class, one subclass per kind, with the built-in class that fits."""

from collections.abc import Iterable
from typing import NamedTuple

#: Of an argument, in a message.
SHOWN_CHARACTERS = 200


class KeyFailure(NamedTuple):
    """One key that failed."""

    key: str
    #: "not_found", "mismatch", "no_handle", "no_loan", "expired", "full", "transient", "may_still_write", "unregistered", "unavailable", "refused"
    #: or "other".
    kind: str
    #: The engine's own code; 0 where it has none.
    code: int
    message: str


class Error(Exception):
    """``Error`` is the base of everything that tensorlease raises.

    Each error is also the built-in class that it resembles. ``failures`` has a ``KeyFailure`` for every key that failed: ``key``, ``kind``,
    ``code`` (the engine's own) and ``message``.
    """

    #: Every key that failed; the message names the first few.
    failures: list[KeyFailure]

    def __init__(self, message: str = "", *, failures: Iterable[tuple[str, str, int, str]] = ()) -> None:
        super().__init__(message)
        self.failures = [KeyFailure(*failure) for failure in failures]

    def __str__(self) -> str:
        # KeyError would show the repr of its argument.
        return str(self.args[0]) if self.args else ""


class KeyNotFound(Error, KeyError):
    """A key is not in the store; the message names up to ten, ``failures`` all."""


class SizeMismatch(Error, ValueError):
    """What is stored has another size, dtype or shape than was asked for; the message has both. Nothing of it is handed out."""


class ArenaExhausted(Error, MemoryError):
    """No memory within the budget, and no other way. ``asked``, ``free``, ``largest`` (free piece) and ``held`` (by live tensors) are bytes."""

    def __init__(self, message: str = "", *, asked: int = 0, free: int = 0, largest: int = 0, held: int = 0) -> None:
        super().__init__(message)
        self.asked, self.free, self.largest, self.held = asked, free, largest, held


class OutOfMemory(Error, MemoryError):
    """This process has no memory left for the objects of a packed value; the stored bytes are as they were."""


class OutOfStack(Error, RecursionError):
    """Python's recursion limit ended the call, which was made from too deep in the program; the stored bytes are as they were."""


class StoreFull(Error, MemoryError):
    """The engine has no room for the values, or one is larger than the whole ``--max-bytes`` of a daemon."""


class TransferError(Error):
    """The engine could not move the bytes of some keys; ``failures`` says why for each."""


class FallbackError(Error):
    """With ``strict=True``: a call can't go the way it was asked to; the message has the reason, ``failures`` the keys."""


class EngineUnavailable(Error, ConnectionError):
    """The engine can't be reached, or did not open."""


class Timeout(Error, TimeoutError):  # noqa: N818 - named like the built-in class that it extends
    """The call did not finish in time; from ``wait``, it names the missing keys. What the call held is given back, or stays in flight until the engine
    returns. After a ``put`` that timed out, don't change its values until ``stats()["abandoned_running_calls"]`` is 0."""


class Interrupted(Error):
    """The call's asyncio task was cancelled."""


class Closed(Error):
    """The store is closed, was closed while the call waited or ran, or belongs to the parent of this forked process."""


class ConfigError(Error, ValueError):
    """An argument, option or URL is wrong; the message names it and says what is allowed."""


class CodecError(Error, ValueError):
    """This version can't read the bytes under a key as a value."""


def is_out_of_memory(error: BaseException) -> bool:
    """Did an allocation fail? torch says so with a RuntimeError."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def with_article(name: str) -> str:
    """`an object`, `a dict`: the name of a type as it is spoken."""
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def shown(value: object) -> str:
    """An argument as messages show it: cut where it is long, and only its type where it can't be shown."""
    try:
        text = repr(value)
    # Whatever the object's own code raises; an int of too many digits, too.
    except Exception:
        return with_article(type(value).__name__)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
