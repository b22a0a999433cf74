from collections.abc import Iterable
from typing import Any, final

from tensorlease._core_patience import Interrupt

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
        *,
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
        *,
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
        *,
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
        *,
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
