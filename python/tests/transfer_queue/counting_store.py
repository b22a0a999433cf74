"""Mooncake's own client object, watched: how often each call is made, whoever makes it, and a gate in front of its reads and removals."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

import mooncake.store

#: Calls wait there for at most so long.
GATE_SECONDS = 5.0


class CountingStore(mooncake.store.MooncakeDistributedStore):  # type: ignore[misc]
    """Takes the place of ``MooncakeDistributedStore``, so that it sees what anybody calls, and not what somebody says they call."""

    #: Of every store of this process, by name of the call.
    calls: ClassVar[Counter[str]] = Counter()
    #: How often each key was asked for.
    asked: ClassVar[Counter[str]] = Counter()
    #: While it is set, a read or a removal waits for it.
    gate: ClassVar[threading.Event | None] = None
    #: Whether each call that waited was let through in time.
    let_through: ClassVar[list[bool]] = []

    def register_buffer(self, address: int, size: int) -> int:
        CountingStore.calls["register_buffer"] += 1
        return int(super().register_buffer(address, size))

    def batch_get_into(self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]) -> list[int]:
        CountingStore.calls["batch_get_into"] += 1
        CountingStore.asked.update(keys)
        self._wait_at_the_gate()
        codes: list[int] = super().batch_get_into(keys, addresses, sizes)
        return codes

    def get_into_ranges(self, addresses: Any, keys: Any, into: Any, offsets: Any, lengths: Any) -> Any:
        CountingStore.calls["get_into_ranges"] += 1
        CountingStore.asked.update(key for group in keys for key in group)
        self._wait_at_the_gate()
        return super().get_into_ranges(addresses, keys, into, offsets, lengths)

    def batch_upsert_from(
        self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int], config: Any = None
    ) -> list[int]:
        CountingStore.calls["batch_upsert_from"] += 1
        codes: list[int] = super().batch_upsert_from(keys, addresses, sizes, config)
        return codes

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        self._wait_at_the_gate()
        codes: list[int] = super().batch_remove(keys, force)
        return codes

    def _wait_at_the_gate(self) -> None:
        if CountingStore.gate is not None:
            CountingStore.let_through.append(CountingStore.gate.wait(GATE_SECONDS))


@contextmanager
def counting() -> Iterator[type[CountingStore]]:
    """Whoever makes a Mooncake client in this process meanwhile makes one that is watched."""
    from transfer_queue.storage.clients import mooncake_client

    with (
        mock.patch.object(mooncake.store, "MooncakeDistributedStore", CountingStore),
        mock.patch.object(mooncake_client, "MooncakeDistributedStore", CountingStore),
    ):
        yield CountingStore


@contextmanager
def gated(gate: threading.Event) -> Iterator[list[bool]]:
    """Reads and removals of watched stores wait for `gate` meanwhile; says of each whether it opened in time."""
    CountingStore.let_through.clear()
    CountingStore.gate = gate
    try:
        yield CountingStore.let_through
    finally:
        CountingStore.gate = None
