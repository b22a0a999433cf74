"""Late writes on a real Mooncake over TCP: the owner of a segment stands still during reads that are given up, and sends afterwards.

The same rounds show what is not protected: memory of the caller read into with ``direct=True``, and a lease of Mooncake's own ``BufferPool`` that
is released after its reader gave up. Both change, so that a round that could not tell would be seen.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from mooncake_rig import Running, cluster, owner_of, paused, wait_until

import tensorlease as tl
from bench.cluster import Master, SegmentOwner
from tensorlease.mooncake_master import HOST

pytestmark = pytest.mark.alone

ROUNDS = 20
#: Of ours.
TIMEOUT_SECONDS = 1.0
ROW = (65536,)
ROW_BYTES = 4 * ROW[0]
#: A transfer that fails after 30 s may still go on. On a busy machine the owner may stand still for that long; with room for what follows.
QUARANTINED_SECONDS = 20.0
#: Rows of each read that is given up.
ROWS = 4
FORMS = ("leased", "copied", "into", "get_batch")
#: Objects in each of the two segments; the master chooses one for each object at random.
OBJECTS_MIN = ROWS * (len(FORMS) + 1) + 1
OBJECTS_MAX = 10 * OBJECTS_MIN
PATTERN = 0x5A

POOLS: dict[str, dict[str, object]] = {"pool=own": {}, "pool=store": {"pool": "store", "force": 1}}


def numbered() -> torch.Tensor:
    """A row that torch can add to and compare."""
    return torch.arange(float(ROW[0]))


@dataclass
class Changed:
    """Bytes that were not what they had been, over all rounds."""

    handed_out: int = 0
    direct: int = 0
    buffer_pool: int = 0
    #: Tensors compared, and calls that were given up.
    tensors: int = 0
    given_up: int = 0
    in_flight: list[float] = field(default_factory=list)
    #: The longest time that the owner stood still, seconds.
    paused: float = 0.0


class RawReader:
    """Mooncake's own client and its pool, used as their documentation says."""

    def __init__(self, master: Master) -> None:
        from mooncake.store import BufferPool, MooncakeDistributedStore

        self.client = MooncakeDistributedStore()
        assert self.client.setup(HOST, "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", master.address) == 0
        self._pool = BufferPool(self.client, max_bytes=16 << 20, block_on_exhaustion=False)

    def endpoints(self, keys: list[str]) -> list[str]:
        """Whose segment holds each object."""
        found = self.client.batch_get_replica_desc(keys)
        return [found[key][0].get_memory_descriptor().buffer_descriptor.transport_endpoint for key in keys]

    def give_up(self, key: str) -> tuple[Running, Any]:
        """A read into a lease that is released while the transfer runs, and the lease that takes its place."""
        lease = self._pool.acquire(ROW_BYTES)
        addr = lease.ptr
        reading = Running(lambda: self.client.batch_get_into([key], [addr], [ROW_BYTES]))
        assert not reading.ended_within(TIMEOUT_SECONDS)
        lease.release()
        again = self._pool.acquire(ROW_BYTES)
        assert again.ptr == addr
        ctypes.memset(addr, PATTERN, ROW_BYTES)
        return reading, again

    @staticmethod
    def changed_bytes(lease: Any) -> int:
        """Of memory that was filled with the pattern."""
        return ROW_BYTES - ctypes.string_at(lease.ptr, ROW_BYTES).count(PATTERN)

    def close(self) -> None:
        self._pool.close()
        self.client.close()


@pytest.fixture(scope="module")
def stalling() -> Iterator[tuple[Master, SegmentOwner]]:
    # On a busy machine the owner stands still for longer than a master waits by default.
    with cluster(arguments=["-client_ttl=60"]) as master, owner_of(master, "64MiB") as owner:
        yield master, owner


@pytest.mark.timeout(400)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_what_arrives_after_a_timeout_changes_nothing_that_was_handed_out(
    stalling: tuple[Master, SegmentOwner], pool: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    master, owner = stalling
    changed = Changed()
    raw = RawReader(master)
    # What lies in this process can be read while the other segment stands still.
    url = master.url(segment="64MiB", local_buffer="64MiB", **pool)
    with tl.open(url, max_bytes="24MiB", copy_cache_bytes="16MiB", readers=8, retries=0) as store:
        for at in range(ROUNDS):
            one_round(store, owner, raw, at, changed)
        # Whatever took Mooncake longer stays out of use until the store is closed.
        assert changed.paused > QUARANTINED_SECONDS or store.stats()["quarantined_bytes"] == 0
    raw.close()
    with capsys.disabled():
        print(f"\n{ROUNDS} rounds: {changed}")
    assert changed.given_up == ROUNDS * (len(FORMS) + 1)
    # On a busy machine a round may end before its reads have begun.
    assert sum(held >= ROWS * ROW_BYTES for held in changed.in_flight) > ROUNDS * 3 // 4
    assert changed.tensors > ROUNDS * 30
    assert changed.handed_out == 0
    assert changed.direct > 0
    assert changed.buffer_pool > 0


def one_round(store: tl.Store, owner: SegmentOwner, raw: RawReader, at: int, changed: Changed) -> None:
    keys = put_into_both_segments(store, raw, at)
    held, near = apart(store, raw, keys)
    handed_out: list[torch.Tensor] = []
    direct = [torch.zeros(ROW) for _ in range(ROWS)]
    into = [torch.zeros(ROW) for _ in range(ROWS)]
    begin = time.monotonic()
    with paused(owner):
        calls = given_up(store, held, into, direct)
        reading, lease = raw.give_up(held[ROWS * (len(FORMS) + 1)])
        for call in calls:
            with pytest.raises(tl.Timeout):
                call.result()
        changed.given_up += len(calls)
        changed.in_flight.append(store.stats()["in_flight_bytes"])
        # The callers go on: what they were given up with is theirs again, and they take more.
        for tensor in [*into, *direct]:
            tensor.fill_(-1)
        handed_out += into
        handed_out += taken(store, near)
        before = [tensor.clone() for tensor in handed_out]
    changed.paused = max(changed.paused, time.monotonic() - begin)
    wait_until(lambda: store.stats()["abandoned_running_calls"] == 0, "the calls that were given up have returned")
    reading.result()
    for now, then in zip(handed_out, before, strict=True):
        changed.tensors += 1
        changed.handed_out += differing(now, then)
    changed.direct += sum(differing(tensor, torch.full(ROW, -1.0)) for tensor in direct)
    changed.buffer_pool += raw.changed_bytes(lease)
    lease.release()
    handed_out.clear()
    store.remove(keys)


def put_into_both_segments(store: tl.Store, raw: RawReader, at: int) -> list[str]:
    """Keys of rows of which enough lie in each."""
    keys: list[str] = []
    while len(keys) < OBJECTS_MAX:
        more = [f"{at}/{len(keys) + index}" for index in range(OBJECTS_MIN)]
        store.put(more, [numbered() + 1000 * at + len(keys) + index for index in range(len(more))])
        keys += more
        lying = Counter(raw.endpoints(keys))
        if len(lying) == 2 and min(lying.values()) >= OBJECTS_MIN:
            return keys
    pytest.fail(f"of {len(keys)} objects too few lie in one of the segments")


def apart(store: tl.Store, raw: RawReader, keys: list[str]) -> tuple[list[str], list[str]]:
    """The keys whose objects lie with the owner that will stand still, and those that lie here."""
    before = store.stats()["local_reads"]
    endpoints = raw.endpoints(keys)
    one = min(endpoints)
    first = [key for key, endpoint in zip(keys, endpoints, strict=True) if endpoint == one]
    store.get(first, [ROW] * len(first), torch.float32, delivery="leased")
    here = store.stats()["local_reads"] > before
    second = [key for key in keys if key not in first]
    return (second, first) if here else (first, second)


def given_up(store: tl.Store, held: list[str], into: list[torch.Tensor], direct: list[torch.Tensor]) -> list[Running]:
    """One read in each form, all at once, each with the timeout."""

    def part(index: int) -> list[str]:
        return held[index * ROWS : (index + 1) * ROWS]

    shapes, dtype, timeout = [ROW] * ROWS, torch.float32, TIMEOUT_SECONDS
    forms: list[Callable[[], object]] = [
        lambda: store.get(part(0), shapes, dtype, delivery="leased", timeout=timeout),
        lambda: store.get(part(1), shapes, dtype, delivery="copied", timeout=timeout),
        lambda: store.get_into(part(2), into, timeout=timeout),
        lambda: store.get_batch(part(3), ROW, dtype, timeout=timeout),
        lambda: store.get_into(part(4), direct, timeout=timeout, direct=True),
    ]
    return [Running(form) for form in forms]


def taken(store: tl.Store, near: list[str]) -> list[torch.Tensor]:
    """Tensors of every kind, until the budget is used up: memory in flight that was free for somebody would be among them."""
    shapes, dtype = [ROW] * len(near), torch.float32
    tensors = list(store.get(near, shapes, dtype, delivery="copied"))
    destinations = [torch.empty(ROW) for _ in near]
    store.get_into(near, destinations)
    tensors += destinations
    tensors += store.get_batch(near, ROW, dtype).unbind()
    tensors += store.get(near, shapes, dtype, delivery="leased")
    before = store.stats()["fallback_budget"]
    for _ in range(200):
        tensors += store.get(near[:1], shapes[:1], dtype, delivery="leased")
        if before < store.stats()["fallback_budget"]:
            return tensors
    raise AssertionError("the budget never ended")


def differing(now: torch.Tensor, then: torch.Tensor) -> int:
    """Bytes."""
    return int((now.contiguous().view(torch.uint8) != then.contiguous().view(torch.uint8)).sum())
