"""What takes minutes or much memory on a real Mooncake: its own give-up after 60 s, and values of more than 4 GiB."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import torch
from mooncake_rig import Running, counted, owned_cluster, paused
from tensors import assert_same, filled

import tensorlease as tl
from bench.cluster import Master, SegmentOwner

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(0),
    pytest.mark.skipif("TENSORLEASE_SOAK" not in os.environ, reason="takes minutes; set TENSORLEASE_SOAK=1"),
]

POOLS = [{}, {"pool": "store", "force": 1}]
MIB = 1 << 20
ROW = (MIB // 4,)
#: More than one peer takes at a time: Mooncake drops a connection that stands still after 30 s, and gives up what waits behind after 60 s
#: without cancelling it.
LATE = 16
GIVE_UP_SECONDS = 90.0
LARGE_BYTES = (4 << 30) + MIB


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Master, SegmentOwner]]:
    # The master must not give the owner up while it stands still.
    with owned_cluster("128MiB", arguments=["-client_ttl=600"]) as found:
        yield found


@pytest.mark.parametrize("pool", POOLS, ids=["pool=own", "pool=store"])
@pytest.mark.parametrize("delivery", ["auto", "register-per-call"])
def test_memory_of_a_transfer_that_mooncake_gave_up_is_handed_to_nobody(
    running: tuple[Master, SegmentOwner], pool: dict[str, object], delivery: str
) -> None:
    master, owner = running
    store = tl.open(master.url(local_buffer="128MiB", **pool), max_bytes="128MiB", retries=0)
    keys, value = [f"late {index}" for index in range(LATE)], filled(ROW)
    store.put([*keys, "other"], [filled(ROW)] * LATE + [value])
    with paused(owner):
        read = Running(lambda: store.get(keys, [ROW] * LATE, torch.float32, delivery=delivery))
        assert read.ended_within(GIVE_UP_SECONDS)
        with pytest.raises(tl.TransferError, match="may still go on") as caught:
            read.result()
        assert {(failure.kind, failure.code) for failure in caught.value.failures} <= {
            ("may_still_write", -800),
            ("transient", -800),
        }
        held = store.stats()["quarantined_bytes"]
        assert 0 < held <= LATE * MIB
    # Now the owner sends what it owes, into memory that nobody may have.
    out = [*store.get(["other"] * 40, [ROW] * 40, torch.float32, delivery=delivery)]
    out += store.get(["other"] * 40, [ROW] * 40, torch.float32, delivery="copied")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for tensor in out:
            assert_same(tensor, value)
    assert store.stats()["quarantined_bytes"] == held
    store.close()
    assert store.stats()["quarantined_bytes"] == 0
    for tensor in out:
        assert_same(tensor, value)


@pytest.fixture(scope="module")
def roomy() -> Iterator[Master]:
    with owned_cluster("4608MiB", lease_ttl_ms=60_000) as (master, _):
        yield master


@pytest.mark.parametrize("pool", POOLS, ids=["pool=own", "pool=store"])
@pytest.mark.parametrize("max_bytes", ["4608MiB", "256MiB"])
def test_a_value_of_more_than_4_gib_comes_back_whole(roomy: Master, pool: dict[str, object], max_bytes: str) -> None:
    """Within the budget and past it."""
    with tl.open(roomy.url(local_buffer="64MiB", **pool), max_bytes=max_bytes) as store:
        value = torch.zeros(LARGE_BYTES, dtype=torch.uint8)
        step = (64 << 20) - 1
        value[::step] = torch.arange(1, 1 + len(value[::step])).to(torch.uint8)
        value[-1] = 77
        store.put(["large"], [value])
        with counted(store) as gained:
            (found,) = store.get(["large"], [(LARGE_BYTES,)], torch.uint8)
        assert torch.equal(found, value)
        assert gained["retries"] == 0
        store.remove(["large"])
