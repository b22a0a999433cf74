# The native module. What only tests call (`_core._tests`) is left out, so that the package can't name it.
import sys
from collections.abc import Iterable
from typing import Any, final

__all__ = [
    "CoreStore",
    "HostDaemon",
    "InPlace",
    "Interrupt",
    "Lease",
    "count_extensions",
    "dtype_names",
    "host_holder",
    "host_listens",
    "host_make_folder",
    "host_report",
    "host_silent_seconds",
    "host_socket",
    "levels_max",
    "listed",
    "live_views",
    "log_records_dropped",
    "parse_bytes",
    "set_log_level",
]

@final
class CoreStore:
    """A handle of one open store."""

    @staticmethod
    def open(
        url: str,
        *,
        max_bytes: int,
        readers: int,
        delivery: str,
        strict: bool,
        namespace: str,
        prewarm_bytes: int,
        bounce_bytes: int | None,
        copy_cache_bytes: int | None,
        quarantine_bytes: int | None,
        batch_keys: int,
        retries: int,
        fork: str | None,
        call_timeout: float,
    ) -> CoreStore: ...
    def put(
        self,
        keys: Iterable[str],
        values: Iterable[Any],
        delivery: str | None,
        allow_pickle: bool,
        timeout: float | None,
        interrupt: Interrupt | None,
    ) -> list[dict[str, int] | None]: ...
    def get(
        self,
        keys: Iterable[str],
        shapes: Iterable[Any] | None,
        dtypes: Any,
        custom_backend_meta: Iterable[dict[str, int] | None] | None,
        delivery: str | None,
        timeout: float | None,
        allow_pickle: bool,
        interrupt: Interrupt | None,
    ) -> list[Any]: ...
    def view(
        self,
        keys: Iterable[str],
        shapes: Iterable[Any] | None,
        dtypes: Any,
        custom_backend_meta: Iterable[dict[str, int] | None] | None,
        timeout: float | None,
        allow_pickle: bool,
        interrupt: Interrupt | None,
    ) -> list[Any]: ...
    def get_batches(
        self,
        fields: list[tuple[str, Any, Any, Any]],
        *,
        delivery: str | None,
        timeout: float | None,
        interrupt: Interrupt | None,
    ) -> list[Any]: ...
    def get_into(
        self,
        keys: Iterable[str],
        tensors: Iterable[Any],
        direct: bool,
        timeout: float | None,
        interrupt: Interrupt | None,
    ) -> None: ...
    def empty(self, shape: Any, dtype: Any, *, timeout: float | None) -> Any: ...
    def contains(self, keys: Iterable[str], *, timeout: float | None, interrupt: Interrupt | None) -> list[bool]: ...
    def wait(self, keys: Iterable[str], *, timeout: float | None, interrupt: Interrupt | None) -> None: ...
    def check_wait(self, keys: Iterable[str], *, timeout: float | None) -> tuple[list[str], float]: ...
    @staticmethod
    def not_there(missing: list[str], *, waited: float, looked: bool) -> Exception: ...
    def remove(self, keys: Iterable[str], *, timeout: float | None, interrupt: Interrupt | None) -> int: ...
    def clear(self, *, timeout: float | None) -> int: ...
    def stats(self) -> dict[str, float]: ...
    def trim(self) -> int: ...
    def close(self, *, timeout: float | None) -> None: ...
    def _mooncake_client(self) -> Any | None: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def url(self) -> str: ...
    @property
    def describes(self) -> bool: ...

@final
class Interrupt:
    """Ends the calls that it is passed to."""

    def __new__(cls) -> Interrupt: ...
    def set(self) -> None: ...
    def is_set(self) -> bool: ...

@final
class Lease:
    """Owns a block of the arena, or a copy, until the last view of it is gone."""

    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class InPlace:
    """Keeps an object of the host's store as it is, until the last array over it is gone."""

    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

def live_views() -> int:
    """How many objects of a host's store this process reads in place now."""

@final
class HostDaemon:
    """A daemon that runs in threads of this process."""

    @staticmethod
    def start(*, socket: str | None, max_bytes: int | None, idle_seconds: float | None, engine: str) -> HostDaemon: ...
    def wait(self, seconds: float) -> bool: ...
    def stop_or_exit(self, status: int, last_words: str) -> None: ...
    @property
    def socket(self) -> str: ...

def host_silent_seconds() -> float: ...
def host_socket(socket: str | None) -> str: ...
def host_holder(socket: str) -> int | None: ...
def host_listens(socket: str) -> bool: ...
def host_make_folder(socket: str) -> None: ...
def host_report(socket: str) -> dict[str, Any]: ...
def listed(values: Any, argument: str) -> list[Any]: ...
def dtype_names() -> list[str]: ...
def parse_bytes(text: str, argument: str | None = None) -> int: ...
def count_extensions(tree: bytes) -> int: ...
def levels_max() -> int: ...
def log_records_dropped() -> int: ...
def set_log_level(level: int) -> None: ...
