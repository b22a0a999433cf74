"""What `pool=store` relies on in Mooncake's own BufferPool. A new Mooncake that behaves otherwise must be noticed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mooncake_rig import cluster

from tensorlease.mooncake_master import HOST

LOCAL_BUFFER = 1 << 20


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Mooncake's own client, without this package."""
    with cluster() as master:
        from mooncake.store import MooncakeDistributedStore

        opened = MooncakeDistributedStore()
        assert opened.setup(HOST, "P2PHANDSHAKE", 0, LOCAL_BUFFER, "tcp", "", master.address) == 0
        yield opened
        opened.close()


@pytest.fixture
def pool(client: Any) -> Iterator[Any]:
    """A pool as `pool=store` makes it: no more than the local buffer."""
    from mooncake.store import BufferPool

    made = BufferPool(client, max_bytes=LOCAL_BUFFER, max_regions=4)
    yield made
    made.close()


def test_a_lease_past_the_capacity_raises(pool: Any) -> None:
    with pytest.raises(RuntimeError, match="exceeds pool capacity"):
        pool.acquire(LOCAL_BUFFER + 1, block=False)
    with pool.acquire(LOCAL_BUFFER, block=False), pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(1, block=False)
    pool.acquire(LOCAL_BUFFER, block=False).release()


def test_a_lease_past_the_region_cap_raises(pool: Any) -> None:
    leases = [pool.acquire(1024, block=False) for _ in range(4)]
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(1024, block=False)
    leases.pop().release()
    leases.append(pool.acquire(1024, block=False))
    for lease in leases:
        lease.release()


def test_releasing_a_lease_under_a_view_raises(pool: Any) -> None:
    lease = pool.acquire(1024, block=False)
    view = lease.buffer
    with pytest.raises(RuntimeError, match="view"):
        lease.release()
    view.release()
    lease.release()
    # A second release is none.
    lease.release()


def test_closing_under_a_lease_raises_and_leaves_the_pool_open(pool: Any) -> None:
    lease = pool.acquire(1024, block=False)
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    pool.acquire(1024, block=False).release()
    lease.release()


def test_leases_lie_in_the_local_buffer_back_to_back_at_any_address(pool: Any) -> None:
    # How overflow is told from the local buffer: a first lease of one byte starts where the buffer does.
    first = pool.acquire(1, block=False)
    start = first.ptr
    first.release()
    leases = [pool.acquire(size, block=False) for size in [7, 64, 4096]]
    spans = sorted((lease.ptr, lease.size) for lease in leases)
    assert spans[0][0] == start
    assert all(start <= address and address + size <= start + LOCAL_BUFFER for address, size in spans)
    assert any(address % 8 for address, _ in spans)
    for lease in leases:
        lease.release()
