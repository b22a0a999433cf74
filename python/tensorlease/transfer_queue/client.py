"""The storage client that takes the place of `MooncakeStoreClient`, and the store of this process: clients with the same settings share it."""

import importlib
import logging
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch

import tensorlease
from tensorlease import torch_values
from tensorlease.errors import ArenaExhausted, Closed, EngineUnavailable, Error, TransferError
from tensorlease.mooncake_master import INSTALL
from tensorlease.store import Store
from tensorlease.transfer_queue import packing, released
from tensorlease.transfer_queue.columns import Column, read_columns
from tensorlease.transfer_queue.errors import as_raised_there
from tensorlease.transfer_queue.settings import PROTOCOLS, Backend

#: Private methods of TransferQueue's client that others are known to override. Where one is, the path that calls it is taken.
PUT_HOOKS = ("_put_tensors_thread_worker", "_put_bytes_thread_worker", "_batch_upsert_with_retry")
GET_HOOKS = ("_get_tensors_thread_worker", "_get_bytes_thread_worker", "_batch_get_into_with_retry")

#: Bytes of packed values that are sent at a time, and the least number of such groups that the arena's budget must hold.
GROUP_BYTES = 64 << 20
GROUPS_PER_BUDGET = 8

_logger = logging.getLogger("tensorlease")
_logged: set[str] = set()
_theirs = released.load()
_Base: Any = _theirs.client
_Key = tuple[str, tuple[tuple[str, Any], ...]]


@dataclass(eq=False)
class _Opened:
    """One open store, and how many clients use it."""

    store: Store
    users: int = 0


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
    """One client's use of the store of `url` and `options`; the last one that ends closes the store."""

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


class TensorleaseStoreClient(_Base):  # type: ignore[misc]
    """TransferQueue's Mooncake client over a store of tensorlease: the same configuration, keys, bytes and results.

    With GPU-direct (`use_gdr`, where it is active), with transports other than TCP and RDMA, and for tensors on accelerators that are not
    CUDA's, everything is left to TransferQueue's own code.
    """

    #: None: everything is left to TransferQueue's own code; so it is in an object that was made without the constructor.
    _use: StoreUse | None = None

    def __init__(self, config: Any) -> None:
        backend = Backend(config)
        self.tuning = backend.tuning
        self._group_bytes = min(GROUP_BYTES, backend.tuning.budget() // GROUPS_PER_BUDGET)
        reason = _why_released(backend)
        if reason is not None:
            _log_once(reason)
            super().__init__(config)
            return
        _theirs.client_base.__init__(self, config)
        self._take_over(backend)
        with as_raised_there():
            self._use = StoreUse(backend.url(), backend.tuning.options(backend.protocol))

    def _take_over(self, backend: Backend) -> None:
        """The attributes that TransferQueue's own constructor makes."""
        self.local_hostname, self.master_server_address = backend.hostname, backend.master
        self.metadata_server, self.protocol = backend.metadata, backend.protocol
        self.global_segment_size, self.local_buffer_size = backend.segment_bytes, backend.local_buffer_bytes
        self.device_name, self.use_gdr = backend.device, backend.use_gdr
        self.gdr_staging_buffer_mb, self._gdr_staging = backend.staging_mb, None
        try:
            self.replica_config = importlib.import_module("mooncake.store").ReplicateConfig()
        except ImportError as error:
            raise ImportError(f"Mooncake is not installed ({error}); {INSTALL}") from error
        self.replica_config.with_hard_pin = backend.hard_pin

    @property
    def _store(self) -> Any:
        """Mooncake's own client object, for TransferQueue's code and for whoever overrides it. None once the client is closed."""
        if self._use is not None:
            return None if self._use.closed else self._use.store._core._mooncake_client()
        try:
            return self.__dict__["_released_store"]
        except KeyError:
            raise AttributeError("_store") from None

    @_store.setter
    def _store(self, store: Any) -> None:
        self.__dict__["_released_store"] = store

    def put(self, keys: list[str], values: list[Any]) -> list[dict[str, int] | None]:
        """Stores values; a key that stands twice keeps the last one.

        :returns: per key None for a tensor, `{"packed_size": bytes}` for another value
        :raises ValueError: no lists, or of different lengths
        :raises ConfigError: a value of more than 4 GiB that is no tensor; nothing is stored then
        :raises StorageFull, StorageTransferError, StorageUnavailable: `failures` has the keys that are not stored
        """
        if not isinstance(keys, list) or not isinstance(values, list):
            raise ValueError("keys and values must be lists")
        if len(keys) != len(values):
            raise ValueError("Number of keys must match number of values")
        use = self._use
        if use is None or self._overrides(PUT_HOOKS):
            plain = [value.value if isinstance(value, packing.Opaque) else value for value in values]
            stored: list[dict[str, int] | None] = super().put(keys, plain)
            return stored
        tensors: dict[str, Any] = {}
        empty: dict[str, Any] = {}
        elsewhere: dict[str, Any] = {}
        packed: list[packing.Packed] = []
        for key, value in dict(zip(keys, values, strict=True)).items():
            if isinstance(value, packing.Opaque):
                packed.append(packing.encode(key, value.value))
            elif not isinstance(value, torch.Tensor):
                packed.append(packing.encode(key, value))
            elif value.device.type in ("cpu", "meta", "cuda"):
                on_cpu = value.cpu() if value.device.type == "cuda" else value
                (tensors if on_cpu.numel() else empty)[key] = on_cpu
            else:
                elsewhere[key] = value
        if elsewhere:
            _log_once("tensors on accelerators other than CUDA's are put by TransferQueue's own client")
            super().put(list(elsewhere), list(elsewhere.values()))
        with as_raised_there():
            for key, value in empty.items():
                torch_values.prepare(value, f"key {key!r}")
            self._write(use.store, tensors, packed)
            # A store would keep a marker for it, and TransferQueue's own client has no object there.
            if empty:
                use.store.remove(list(empty))
        sizes = {item.key: item.size for item in packed}
        return [{"packed_size": sizes[key]} if key in sizes else None for key in keys]

    def get(
        self,
        keys: list[str],
        shapes: list[Any] | None = None,
        dtypes: list[Any] | None = None,
        custom_backend_meta: list[Any] | None = None,
    ) -> list[Any]:
        """Reads values, each in memory of its own, in the order of the keys.

        :param dtypes: None for a value that is no tensor
        :param custom_backend_meta: what `put` returned, needed for values that are no tensors
        :raises ValueError: an argument is missing or has another length
        :raises StorageKeyNotFound: at once; names every key that is missing
        :raises StorageSizeMismatch: an object is shorter or longer than its shape and dtype say
        :raises StorageTransferError, StorageUnavailable: `failures` says why for each key
        """
        if shapes is None or dtypes is None:
            raise ValueError("MooncakeStoreClient needs shapes and dtypes for zero-copy transfer.")
        if not len(keys) == len(shapes) == len(dtypes):
            raise ValueError("Lengths of keys, shapes, dtypes must match")
        use = self._use
        if use is None or self._overrides(GET_HOOKS):
            values: list[Any] = super().get(keys, shapes, dtypes, custom_backend_meta)
            return values
        packed = _packed_sizes(keys, dtypes, custom_backend_meta)
        if packed:
            shapes = [(packed[at],) if at in packed else shape for at, shape in enumerate(shapes)]
            dtypes = [torch.uint8 if at in packed else dtype for at, dtype in enumerate(dtypes)]
        with as_raised_there():
            found = use.store.get(keys, shapes, dtypes)
        for at in packed:
            found[at] = packing.decode(keys[at], found[at])
        return found

    def clear(self, keys: list[str], custom_backend_meta: list[Any] | None = None) -> None:
        """Removes keys; those that are not there are fine, and what Mooncake refuses to remove is logged."""
        if self._use is None:
            super().clear(keys, custom_backend_meta)
            return
        if not keys:
            return
        try:
            with as_raised_there():
                self._use.store.remove(_with_chunks(keys, custom_backend_meta))
        except TransferError as error:
            for key, _, code, message in error.failures:
                _logger.error("remove failed for key %r with error code %s: %s", key, code, message)

    def close(self) -> None:
        """Ends this client's use of the store; later calls raise `StorageClosed`. Idempotent."""
        if self._use is None:
            super().close()
        else:
            self._use.close()

    def stats(self) -> dict[str, float]:
        """Counters of the store that this client shares with the others of its process; empty where all is left to TransferQueue's own code."""
        if self._use is None:
            return {}
        with as_raised_there():
            return self._use.store.stats()

    @property
    def reads_columns(self) -> bool:
        """Can `read_columns` be used, so that nothing that somebody overrides is passed by?"""
        return self._use is not None and type(self).get is TensorleaseStoreClient.get and not self._overrides(GET_HOOKS)

    def read_columns(self, columns: list[Column], dense: bool) -> dict[str, Any]:
        """Columns of a batch, each by its field, merged by TransferQueue's rules; `dense`: dense where all rows agree."""
        assert self._use is not None
        with as_raised_there():
            return read_columns(self._use.store, columns, dense)

    def _overrides(self, hooks: tuple[str, ...]) -> bool:
        """Has a subclass, or somebody who patched the class or this object, put another function there?"""
        return any(not _is_released(getattr(self, hook, None), hook) for hook in hooks)

    def _write(self, store: Store, tensors: dict[str, Any], packed: list[packing.Packed]) -> None:
        keys, values = list(tensors), list(tensors.values())
        for group in packing.groups(packed, self._group_bytes):
            memory = self._memory(store, packing.group_bytes(group))
            keys += [item.key for item in group]
            values += packing.pack(group, memory)
            store.put(keys, values)
            keys, values = [], []
        if keys:
            store.put(keys, values)

    def _memory(self, store: Store, size: int) -> Any:
        """Memory of the arena; ordinary memory, which the put then copies, where the arena has none left."""
        try:
            return store.empty((size,), torch.uint8)
        except ArenaExhausted:
            if self.tuning.strict:
                raise
            _log_once("the arena has no room to encode values in; raise backend.MooncakeStore.tensorlease.max_bytes")
            return torch.empty(size, dtype=torch.uint8, device="cpu")


def _why_released(backend: Backend) -> str | None:
    """Why everything is left to TransferQueue's own code; None: it is not."""
    if backend.use_gdr and backend.staging_mb > 0 and torch.cuda.is_initialized():
        return "use_gdr is active: GPU-direct transfers are left to TransferQueue's own client"
    if backend.protocol not in PROTOCOLS:
        return f"protocol {backend.protocol!r} is left to TransferQueue's own client"
    return None


def _is_released(method: Any, name: str) -> bool:
    function = getattr(method, "__func__", method)
    return (
        getattr(function, "__module__", None) == _Base.__module__
        and getattr(function, "__qualname__", None) == f"{_Base.__qualname__}.{name}"
        and not hasattr(function, "__wrapped__")
    )


def _packed_sizes(keys: list[str], dtypes: list[Any], metas: list[Any] | None) -> dict[int, int]:
    """Packed bytes of each value that is no tensor, by its position."""
    positions = [at for at, dtype in enumerate(dtypes) if dtype is None]
    if not positions:
        return {}
    if metas is None or len(metas) != len(keys):
        needed = "one entry per key, as put() returned it, with packed_size"
        raise ValueError(f"custom_backend_meta is required when any dtype is None: {needed}")
    return {at: packing.size_of(keys[at], metas[at]) for at in positions}


def _with_chunks(keys: list[str], metas: list[Any] | None) -> list[str]:
    """The keys of the objects: GPU-direct writers cut what their staging can't hold into several."""
    if metas is None:
        return keys
    if len(metas) != len(keys):
        counts = f"custom_backend_meta has {len(metas)} entries and keys has {len(keys)}"
        raise ValueError(f"{counts}; give one per key, or None")
    whole: list[str] = []
    for key, meta in zip(keys, metas, strict=True):
        chunks = meta.get("n_chunks") if isinstance(meta, dict) else None
        whole += [key] if chunks is None else [f"{key}:c{chunk}" for chunk in range(chunks)]
    return whole


def _log_once(message: str) -> None:
    if message not in _logged:
        _logged.add(message)
        _logger.warning("tensorlease.transfer_queue: %s", message)
