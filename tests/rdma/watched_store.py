"""Mooncake's own client object, watched: what is registered, where bytes are to land, and that nothing else changes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from mooncake.store import BufferPool, MooncakeDistributedStore  # type: ignore[import-untyped]

Bytes = np.ndarray[Any, Any]
Nested = list[list[list[int]]]


class Transfer(NamedTuple):
    """One key of one call."""

    key: str
    addr: int
    len: int
    result: int


@dataclass
class Totals:
    """Of every watched store of this process."""

    reads: int = 0
    bytes: int = 0
    odd_addresses: set[int] = field(default_factory=set)
    hot_path_register_calls: int = 0


totals = Totals()


class WatchedStore(MooncakeDistributedStore):  # type: ignore[misc]
    """Takes the place of ``MooncakeDistributedStore``, so that it counts what anybody calls, and not what somebody says they call."""

    made: list[WatchedStore] = []  # noqa: RUF012 - one list for all of them is the point

    def __init__(self) -> None:
        super().__init__()
        self.register_calls = 0
        self.regions: dict[int, int] = {}
        self.reads: list[Transfer] = []
        self.writes: list[Transfer] = []
        self.range_reads = 0
        #: Compare all registered memory around each read; only right while nothing else moves bytes.
        self.guarding = False
        self.changed_outside: list[int] = []
        WatchedStore.made.append(self)

    def register_buffer(self, addr: int, length: int) -> int:
        self.register_calls += 1
        code: int = super().register_buffer(addr, length)
        if code == 0:
            self.regions[addr] = length
        return code

    def unregister_buffer(self, addr: int) -> int:
        code: int = super().unregister_buffer(addr)
        if code == 0:
            self.regions.pop(addr, None)
        return code

    def batch_get_into(self, keys: Sequence[str], addresses: Sequence[int], lengths: Sequence[int]) -> list[int]:
        before = self._registered_memory()
        results: list[int] = super().batch_get_into(keys, addresses, lengths)
        self._note_reads([Transfer(*one) for one in zip(keys, addresses, lengths, results, strict=True)], before)
        return results

    def get_into_ranges(
        self, addresses: list[int], keys: list[list[str]], into: Nested, offsets: Nested, lengths: Nested
    ) -> Nested:
        before = self._registered_memory()
        results: Nested = super().get_into_ranges(addresses, keys, into, offsets, lengths)
        transfers = [
            Transfer(key, addr + at, length, result)
            for addr, its_keys, *rest in zip(addresses, keys, into, lengths, results, strict=True)
            for key, *ranges in zip(its_keys, *rest, strict=True)
            for at, length, result in zip(*ranges, strict=True)
        ]
        self.range_reads += len(transfers)
        self._note_reads(transfers, before)
        return results

    def batch_upsert_from(
        self, keys: Sequence[str], addresses: Sequence[int], lengths: Sequence[int], config: Any
    ) -> list[int]:
        results: list[int] = super().batch_upsert_from(keys, addresses, lengths, config)
        self.writes += [Transfer(*one) for one in zip(keys, addresses, lengths, results, strict=True)]
        return results

    def _registered_memory(self) -> dict[int, Bytes]:
        return {addr: _view(addr, length).copy() for addr, length in self.regions.items()} if self.guarding else {}

    def _note_reads(self, transfers: list[Transfer], before: dict[int, Bytes]) -> None:
        self.reads += transfers
        totals.reads += len(transfers)
        totals.bytes += sum(one.len for one in transfers if one.result == one.len)
        totals.odd_addresses |= {one.addr for one in transfers if one.addr % 2}
        for addr, old in before.items():
            self.changed_outside += changed(addr, old, transfers)

    def outside_one_registration(self, transfers: Sequence[Transfer]) -> list[Transfer]:
        """Those that no single registration holds whole."""

        def held(one: Transfer) -> bool:
            regions = self.regions.items()
            return any(addr <= one.addr and one.addr + one.len <= addr + length for addr, length in regions)

        return [one for one in transfers if not held(one)]

    def registering(self, work: Callable[[], object]) -> int:
        """How often ``work`` registered."""
        before = self.register_calls
        work()
        return self.register_calls - before


def local_buffer_start(store: MooncakeDistributedStore) -> int:
    """Where Mooncake's own buffer begins, while nothing is leased from it."""
    pool = BufferPool(store)
    lease = pool.acquire(1)
    start: int = lease.ptr
    lease.release()
    pool.close()
    return start


def _view(addr: int, length: int) -> Bytes:
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(addr))


def changed(addr: int, old: Bytes, targets: Sequence[Transfer]) -> list[int]:
    """Addresses of the region whose bytes differ from before, other than those of the targets."""
    differ = _view(addr, len(old)) != old
    for target in targets:
        begin, end = max(target.addr - addr, 0), target.addr + target.len - addr
        if end > 0:
            differ[begin:end] = False
    return [addr + int(at) for at in np.flatnonzero(differ)]
