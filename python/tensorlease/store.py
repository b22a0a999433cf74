"""The store: what users open and call."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from tensorlease import fork_warning, host
from tensorlease._core import CoreStore, Interrupt, listed, log_records_dropped, parse_bytes, set_log_level
from tensorlease.async_calls import AsyncCalls
from tensorlease.errors import Closed, ConfigError, EngineUnavailable, shown, with_article

#: Environment variable with the URL of stores that name none.
URL_VARIABLE = "TENSORLEASE_URL"
DEFAULT_URL = "host://"
#: Tries to attach to the host's daemon, which may end between two steps.
ATTACH_TRIES = 3
#: How long the interpreter's end waits for a store's running calls.
EXIT_SECONDS = 4.0
#: How long `close` waits for a store's running calls.
CLOSE_SECONDS = 10.0

#: Of a size that is given as text.
SIZE_CHARACTERS_MAX = 100
#: Longer times are as good as this one.
SECONDS_MAX = 1e12

_logger = logging.getLogger("tensorlease")
_Result = TypeVar("_Result")
#: Arguments by name, which go on to the core as they are.
#: Keys, shape and dtype of each field.
_Fields = Mapping[str, tuple[Iterable[str], Any, Any]]
#: What `put` returned for each key.
_Metas = Iterable[dict[str, int] | None]


def open(  # noqa: A001 - `tensorlease.open` reads like the built-in it stands beside
    url: str | None = None,
    *,
    max_bytes: int | str = "1GiB",
    readers: int = 4,
    delivery: str = "auto",
    strict: bool = False,
    namespace: str = "",
    prewarm: int | str = 0,
    bounce_bytes: int | str | None = None,
    copy_cache_bytes: int | str | None = None,
    quarantine_bytes: int | str | None = None,
    batch_keys: int = 400,
    retries: int = 3,
    fork: str | None = None,
    call_timeout: float = 600.0,
) -> Store:
    """Opens a store.

    Sizes are bytes as an int, or text such as ``"64MiB"``.

    :param url: the engine and its options. None: the environment variable ``TENSORLEASE_URL``, else ``host://``, the store that all processes of
        this user on this host share. ``host://`` starts its daemon where none runs, ``host:///PATH`` never does. ``embedded://`` is private to
        this ``open``
    :param max_bytes: bound of the arena, the memory that reads land in; at most what the machine has left
    :param readers: threads that run transfers, 1 to 256. At most 4 run, on ``embedded://`` and ``host://`` at most one per core; the log line at
        open says how many
    :param delivery: the default for reads: ``"auto"``, ``"leased"`` (a tensor owns its block of the arena), ``"copied"`` (into recycled memory), or
        ``"register-per-call"`` (the baseline of benchmarks)
    :param strict: True: a call that can't go the way it was asked to is a ``FallbackError`` that names the reason
    :param namespace: prefix of all keys; a ``/`` is added at its end if need be. ``clear`` removes the keys of this namespace and those inside it
    :param prewarm: bytes of the arena that ``open`` makes, instead of the first reads; at most ``max_bytes``
    :param bounce_bytes: part of ``max_bytes`` kept for copied reads and for writes, which tensors can't lease; default an eighth, at least 8 MiB,
        at most half
    :param copy_cache_bytes: bound of the recycled memory that copies land in, beside ``max_bytes``; default half of ``max_bytes``
    :param quarantine_bytes: most bytes set aside because a failed transfer may still write them; default ``max_bytes``
    :param batch_keys: keys per batch of ``register-per-call`` and of ``mooncake://...?pool=store``
    :param retries: tries after the first, for faults that pass
    :param fork: what a forked child sees of the arena: ``"inherit"`` (tensors stay readable there) or ``"exclude"`` (touching them there is a SIGSEGV).
        None: ``"exclude"`` on ``host://``, which refuses ``"inherit"``, else ``"inherit"``
    :param call_timeout: seconds after which a call without a ``timeout`` of its own ends; more than 0
    :raises ConfigError: the URL or an option is wrong, or asks for more than the machine has; the message names it
    :raises EngineUnavailable: the engine did not open, or did not register the first memory (locked memory too low, io_uring refused)
    """
    settings = {
        "max_bytes": _size(max_bytes, "max_bytes"),
        "readers": _count(readers, "readers"),
        "delivery": _text(delivery, "delivery"),
        "strict": _flag(strict, "strict"),
        "namespace": _text(namespace, "namespace"),
        "prewarm_bytes": _size(prewarm, "prewarm"),
        "bounce_bytes": None if bounce_bytes is None else _size(bounce_bytes, "bounce_bytes"),
        "copy_cache_bytes": None if copy_cache_bytes is None else _size(copy_cache_bytes, "copy_cache_bytes"),
        "quarantine_bytes": None if quarantine_bytes is None else _size(quarantine_bytes, "quarantine_bytes"),
        "batch_keys": _count(batch_keys, "batch_keys"),
        "retries": _count(retries, "retries"),
        "fork": None if fork is None else _text(fork, "fork"),
        "call_timeout": _seconds(call_timeout, "call_timeout"),
    }
    if url is None:
        return _started(_text(os.environ.get(URL_VARIABLE) or DEFAULT_URL, URL_VARIABLE), settings)
    return _started(_text(url, "url"), settings)


class Store:
    """Tensors and other values under keys. Made by :func:`tensorlease.open`; all methods may be called from any thread.

    ``timeout`` is in seconds, at least 0. None is the ``call_timeout`` of ``open``, 600 s by default. A call that is not done by then raises
    ``Timeout``. With 0 the engine's immediate answer still counts; anything else is a ``Timeout``.

    Every call may also raise ``ConfigError`` (an argument is wrong; nothing was done), ``Closed``, ``EngineUnavailable``, and in asyncio
    ``Interrupted``.
    """

    def __init__(self, *_arguments: Any, **_settings: Any) -> None:
        how = "which checks the options and fills in the rest"
        raise ConfigError(f"a Store is made by tensorlease.open(url, ...), {how}")

    def _start(self, url: str, settings: dict[str, Any]) -> None:
        set_log_level(_logger.getEffectiveLevel())
        self._url = url
        self._settings = settings
        self._core = _opened(url, settings)
        self._async_calls = AsyncCalls(settings["readers"], self._core)
        fork_warning.watch(self, excluded=settings["fork"] == "exclude" or self._url.startswith("host:"))
        # Also closes at the end of the interpreter, and when the last reference goes.
        self._finalizer = weakref.finalize(self, _close, self._core, self._async_calls, EXIT_SECONDS)

    def put(
        self,
        keys: Iterable[str],
        values: Iterable[Any],
        *,
        delivery: str | None = None,
        allow_pickle: bool = False,
        timeout: float | None = None,
    ) -> list[dict[str, int] | None]:
        """Stores one value per key; replaces what is there.

        Tensors and numeric numpy arrays are stored as tensors, by value; all other values are packed, without pickle.

        :param keys: each once; a repeated key is a ``ConfigError``, and nothing is stored
        :param delivery: ``"auto"`` or None: where the engine needs registered memory, tensors of the arena are sent in place and others are staged;
            elsewhere all are sent in place. ``"register-per-call"``: the values' own memory is registered for the call (the baseline of benchmarks)
        :param allow_pickle: also store objects of any other type, by pickle
        :returns: per key None for a tensor, ``{"packed_size": bytes}`` for another value: what ``get`` takes as ``custom_backend_meta``
        :raises StoreFull: the engine has no room; with a ``timeout`` on ``host://`` it had none until then. ``failures`` has the keys that are
            not stored; the others are stored
        :raises TransferError: the engine refused some keys, or failed after the retries; the others are stored
        :raises FallbackError: with ``strict``, a value would need a registration of its own
        :raises Timeout: it is unknown which values are stored. Running transfers may still read the values' own memory: don't change the values until
            ``stats()["abandoned_running_calls"]`` is 0, or a mixture may be stored. Dropping them is fine. The same holds after Ctrl-C and a
            cancelled ``aput``
        """
        return self._core.put(keys, values, delivery, allow_pickle, timeout, None)

    def empty(self, shape: Any, dtype: Any, *, timeout: float | None = None) -> Any:
        """Makes a tensor in the arena, contents unspecified. ``put`` of it needs no registration, and no copy but the one into the store.

        :param shape: a tuple, list, ``torch.Size`` or int
        :param dtype: torch's (a torch tensor comes back), numpy's (a numpy array) or a name (torch's where torch is installed)
        :param timeout: seconds to wait where the arena has to grow for it; None: ``call_timeout``
        :raises ArenaExhausted: the budget has no such block now
        :raises Timeout: the arena has not grown in that time
        """
        return self._core.empty(shape, dtype, timeout=timeout)

    def get(
        self,
        keys: Iterable[str],
        shapes: Iterable[Any] | None = None,
        dtypes: Any = None,
        custom_backend_meta: _Metas | None = None,
        delivery: str | None = None,
        timeout: float | None = None,
        *,
        allow_pickle: bool = False,
        view: bool = False,
    ) -> list[Any]:
        """Reads one value per key, each in memory of its own: all of them, or none and an error.

        :param keys: a repeated key is fetched once and delivered each time, in memory of its own
        :param shapes: a shape per key (tuple, ``torch.Size``, list, or one int); None with engines that know it
        :param dtypes: a dtype per key, or one for all: torch's gives a torch tensor, numpy's a numpy array, a name a torch tensor where torch is
            installed, else a numpy array. None for one key: a value that is not a tensor; a stored tensor comes as a numpy array. No dtypes at
            all: values as they are stored, tensors as for a name
        :param custom_backend_meta: what ``put`` returned; needed for values other than tensors where the engine does not know their size
        :param delivery: ``"auto"``, ``"leased"``, ``"copied"`` or ``"register-per-call"``; None: the store's default
        :param allow_pickle: unpickle objects, which runs code that their writer chose
        :param view: True, on ``host://`` only: nothing is copied. Tensors come as read-only numpy arrays that lie where the store keeps them. The
            stored object keeps its memory and its bytes until the array and all views of it are gone, also when it is replaced or removed
            meanwhile. A dtype that numpy lacks needs ``ml_dtypes``. A forked child must not touch the arrays. ``torch.from_dlpack`` of one is a
            ``BufferError``, since torch would let you write into it
        :returns: the values in the order of the keys
        :raises KeyNotFound: at least one key is missing; ``failures`` has every key that failed
        :raises SizeMismatch: what is stored has another dtype, shape or size; the message has both
        :raises ArenaExhausted: no memory within the budget, and no other way
        :raises TransferError: the engine failed after the retries; ``failures`` says why for each key
        :raises FallbackError: with ``strict``, a value can't be delivered the way that was asked
        :raises CodecError: the bytes of a packed value are damaged
        :raises OutOfMemory: this process has no memory left for the objects of a packed value
        """
        if _flag(view, "view"):
            if delivery is not None:
                raise ConfigError(f"view=True is a way of delivery of its own; leave out delivery={shown(delivery)}")
            return self._core.view(keys, shapes, dtypes, custom_backend_meta, timeout, allow_pickle, None)
        return self._core.get(keys, shapes, dtypes, custom_backend_meta, delivery, timeout, allow_pickle, None)

    def get_batch(
        self, keys: Iterable[str], shape: Any, dtype: Any, *, delivery: str | None = None, timeout: float | None = None
    ) -> Any:
        """Reads rows into one block, without a copy afterwards.

        :param shape: a tuple, ``torch.Size`` or int: the shape of every row, and the result is one tensor ``(n, *shape)``. A list with the shape of
            each row (they may differ in the first dimension): the result is one jagged ``torch.nested`` tensor, also where all are equal
        :param dtype: of all rows, as for ``get``; never None. A numpy dtype gives a numpy array, which can't be jagged
        :param keys: a repeated key is fetched once and fills each of its rows
        :raises KeyNotFound, SizeMismatch, ArenaExhausted, TransferError, FallbackError: as ``get``
        """
        (batch,) = self._batches({"": (keys, shape, dtype)}, delivery, timeout, None).values()
        return batch

    def get_batches(
        self, fields: _Fields, *, delivery: str | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Reads several batches, ``{field: (keys, shape, dtype)}``, in one request.

        Jagged fields whose rows have equal lengths share one offsets tensor, so that torch combines them (``ids * mask``).

        :param fields: keys, shape and dtype of each field, as ``get_batch`` takes them
        :returns: ``{field: batch}``, in the order of ``fields``
        :raises KeyNotFound, SizeMismatch, ArenaExhausted, TransferError, FallbackError: as ``get``; no field is delivered then
        """
        return self._batches(fields, delivery, timeout, None)

    def get_into(
        self, keys: Iterable[str], tensors: Iterable[Any], *, direct: bool = False, timeout: float | None = None
    ) -> None:
        """Reads into contiguous tensors or arrays of the caller, whose dtype and shape say what is expected.

        The bytes land in the arena and are copied from there once the transfer that brought them has ended. Autograd sees the tensors as
        changed in place without recording it. After an error, some of the destinations may be filled.

        :param tensors: one per key, in CPU memory, writable, none overlapping another; a repeated key fills each of them
        :param direct: transfers write straight into the caller's memory, which may then still change after a ``Timeout``
        :raises KeyNotFound, SizeMismatch, ArenaExhausted, TransferError: as ``get``
        """
        tensors = listed(tensors, "tensors")
        with _marking_written(tensors):
            self._core.get_into(keys, tensors, direct=direct, timeout=timeout, interrupt=None)

    def _batches(
        self, fields: _Fields, delivery: str | None, timeout: float | None, interrupt: Interrupt | None
    ) -> dict[str, Any]:
        if not isinstance(fields, Mapping):
            given = with_article(type(fields).__name__)
            raise ConfigError(f"get_batches takes a dict of field to (keys, shape, dtype), not {given}")
        wanted = [_field(name, field) for name, field in fields.items()]
        batches = self._core.get_batches(wanted, delivery=delivery, timeout=timeout, interrupt=interrupt)
        made = dict(zip(fields, batches, strict=True))
        for name, batch in made.items():
            if isinstance(batch, tuple):
                from tensorlease.torch_values import jagged

                made[name] = jagged(*batch)
        return made

    def contains(self, keys: Iterable[str], *, timeout: float | None = None) -> list[bool]:
        """Says which keys are there: one bool per key, in their order.

        :raises TransferError: the engine could not tell for some keys
        """
        return self._core.contains(keys, timeout=timeout, interrupt=None)

    def wait(self, keys: Iterable[str], timeout: float | None = None) -> None:
        """Waits until all keys are there.

        :param timeout: seconds; 0: looks once
        :raises Timeout: at least one key was not there in time; the message and ``failures`` name those that were missing
        :raises Closed: also when the store is closed meanwhile
        """
        self._core.wait(keys, timeout=timeout, interrupt=None)

    def remove(self, keys: Iterable[str], *, timeout: float | None = None) -> int:
        """Removes keys; returns how many were there. Missing keys are fine, and a repeated key counts once.

        :raises TransferError: the engine refused some keys; the others are gone
        """
        return self._core.remove(keys, timeout=timeout, interrupt=None)

    def clear(self, *, timeout: float | None = None) -> int:
        """Removes every key of the namespace; returns how many were there. Without a namespace it empties the engine (Mooncake refuses that).

        :raises TransferError: the engine refused
        """
        return self._core.clear(timeout=timeout)

    # ---- asyncio ------------------------------------------------------------------------------------------------------------
    #
    # Each runs the method of its name in a thread of the store's own. Cancelling the task ends the call early: what it held is given back, or
    # stays in flight until the engine returns.

    async def aput(
        self,
        keys: Iterable[str],
        values: Iterable[Any],
        *,
        delivery: str | None = None,
        allow_pickle: bool = False,
        timeout: float | None = None,
    ) -> list[dict[str, int] | None]:
        """``put`` for asyncio."""
        how = (delivery, allow_pickle, timeout)
        return await self._run(lambda interrupt: self._core.put(keys, values, *how, interrupt))

    async def aget(
        self,
        keys: Iterable[str],
        shapes: Iterable[Any] | None = None,
        dtypes: Any = None,
        custom_backend_meta: _Metas | None = None,
        delivery: str | None = None,
        timeout: float | None = None,
        *,
        allow_pickle: bool = False,
    ) -> list[Any]:
        """``get`` for asyncio."""
        what = (keys, shapes, dtypes, custom_backend_meta)
        how = (delivery, timeout, allow_pickle)
        return await self._run(lambda interrupt: self._core.get(*what, *how, interrupt))

    async def aget_batch(
        self, keys: Iterable[str], shape: Any, dtype: Any, *, delivery: str | None = None, timeout: float | None = None
    ) -> Any:
        """``get_batch`` for asyncio."""
        field = {"": (keys, shape, dtype)}
        return (await self._run(lambda interrupt: self._batches(field, delivery, timeout, interrupt)))[""]

    async def aget_batches(
        self, fields: _Fields, *, delivery: str | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """``get_batches`` for asyncio."""
        return await self._run(lambda interrupt: self._batches(fields, delivery, timeout, interrupt))

    async def aget_into(
        self, keys: Iterable[str], tensors: Iterable[Any], *, direct: bool = False, timeout: float | None = None
    ) -> None:
        """``get_into`` for asyncio."""
        destinations = listed(tensors, "tensors")
        with _marking_written(destinations):
            await self._run(lambda interrupt: self._core.get_into(keys, destinations, direct, timeout, interrupt))

    async def await_keys(self, keys: Iterable[str], timeout: float | None = None) -> None:
        """``wait`` for asyncio, with the same arguments and errors. Any number of tasks may wait: one thread of the store looks for all their keys."""
        checked, seconds = self._core.check_wait(keys, timeout=timeout)
        await self._async_calls.keys.wait(checked, seconds)

    async def aremove(self, keys: Iterable[str], *, timeout: float | None = None) -> int:
        """``remove`` for asyncio."""
        return await self._run(lambda interrupt: self._core.remove(keys, timeout=timeout, interrupt=interrupt))

    def _run(self, call: Callable[[Interrupt], _Result]) -> Awaitable[_Result]:
        return self._async_calls.run(call)

    def stats(self) -> dict[str, float]:
        """Returns the counters since open: flat, numbers only, with the unit in the name. It also answers after ``close``.

        :raises Closed: in a forked child
        """
        numbers = self._core.stats()
        numbers["log_records_dropped"] = log_records_dropped()
        return numbers

    def trim(self) -> int:
        """Gives unused memory back to the system, on ``host://`` to the daemon; returns how many bytes. Later reads make new memory.

        It also forgets that memory was refused, so the next read asks again.

        :raises Closed: after ``close``, and in a forked child
        """
        return self._core.trim()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Closes the store. Waits at most ``timeout`` seconds for running calls; 0 waits for none. Live tensors stay valid.

        Asyncio calls end early. A call that still runs after ``timeout`` keeps its memory until the engine returns. The engine gets at least half a
        second to close. ``close`` does nothing on a closed store and in a forked child.
        """
        _close(self._core, self._async_calls, timeout)
        self._finalizer.detach()

    @property
    def closed(self) -> bool:
        """Is it closed?"""
        return self._core.is_closed

    @property
    def url(self) -> str:
        """The engine and its options."""
        return self._url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<tensorlease.Store {self._url} {state}>"

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[str, dict[str, Any]]]:
        """Pickles as URL and settings; unpickling opens it again."""
        if self._url.startswith("embedded:"):
            private = f"a store of {self._url} can't be pickled: its objects are private to this open"
            raise ConfigError(f"{private}; use an engine that processes share")
        return _started, (self._url, self._settings)


def warm_up_jagged() -> None:
    """Makes torch import what its first nested tensor needs, so that the first batch does not wait 0.5 to 2 seconds for it.

    :raises ConfigError: torch is not installed
    """
    try:
        import torch
    except ImportError as error:
        raise ConfigError("jagged tensors are torch's; install torch") from error

    from tensorlease.torch_values import jagged

    jagged(torch.zeros(1, device="cpu"), torch.tensor([0, 1], device="cpu"), 1, 1)


def _started(url: str, settings: dict[str, Any]) -> Store:
    store = Store.__new__(Store)
    store._start(url, settings)
    return store


def _opened(url: str, settings: dict[str, Any]) -> CoreStore:
    if not host.starts_daemon(url):
        return CoreStore.open(url, **settings)
    for _ in range(ATTACH_TRIES - 1):
        begin = time.monotonic()
        try:
            return CoreStore.open(url, **settings)
        except EngineUnavailable:
            # One that is silent stays so. One that nobody needed may end just now: then there is room for the next.
            if time.monotonic() - begin >= host.SILENT_SECONDS:
                raise
        host.ensure_daemon()
    return CoreStore.open(url, **settings)


def _close(core: CoreStore, async_calls: AsyncCalls, timeout: float) -> None:
    async_calls.stop()
    # In a forked child there is nothing to close: the store is its parent's.
    with contextlib.suppress(Closed):
        core.close(timeout=timeout)


def _field(name: str, field: Any) -> tuple[str, Any, Any, Any]:
    # What else can be unpacked has no order, or yields its parts by accident.
    if not isinstance(field, tuple | list) or len(field) != 3:
        raise ConfigError(f"field {shown(name)} is {shown(field)}; give (keys, shape, dtype)")
    keys, shape, dtype = field
    # `get_batch` has the one field without a name.
    about = "" if isinstance(name, str) and not name else f" of field {shown(name)}"
    return about, keys, shape, dtype


@contextlib.contextmanager
def _marking_written(tensors: list[Any]) -> Iterator[None]:
    """Tells autograd that the tensors have changed; also where other keys failed, since what has come has been written."""
    try:
        yield
    except BaseException:
        # Whatever is wrong with the tensors, the error of the call is the one to tell.
        with contextlib.suppress(Exception):
            _mark_written(tensors)
        raise
    _mark_written(tensors)


def _mark_written(tensors: list[Any]) -> None:
    try:
        from tensorlease.torch_values import written
    except ImportError:
        return
    written(tensors)


def _flag(value: Any, argument: str) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{argument} is {shown(value)}; give True or False")


def _size(value: Any, argument: str) -> int:
    # What is longer is no size, and would be shown whole.
    if isinstance(value, str) and len(value) <= SIZE_CHARACTERS_MAX:
        return parse_bytes(_text(value, argument), argument)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
        return value
    raise ConfigError(f'{argument} is {shown(value)}; give bytes as an int of at least 0, or text such as "64MiB"')


def _count(value: Any, argument: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32:
        return value
    raise ConfigError(f"{argument} is {shown(value)}; give an int of at least 0")


def _seconds(value: Any, argument: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # An int may be larger than any float.
        return float(min(value, SECONDS_MAX))
    raise ConfigError(f"{argument} is {shown(value)}; give seconds")


def _text(value: Any, argument: str) -> str:
    if isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value):
        return value
    raise ConfigError(f"{argument} is {shown(value)}; give a str that UTF-8 can hold")
