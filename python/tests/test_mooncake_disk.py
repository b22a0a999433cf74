"""Objects that live on disk are read through Mooncake's local buffer: a reader that leases all of it starves its own reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mooncake_rig import counted, owned_cluster, wait_until
from tensors import assert_same, filled

import tensorlease as tl
from bench.cluster import Master

MIB = 1 << 20
COUNT = 16
LOCAL_BUFFER = "8MiB"
#: As large as the whole local buffer.
WHOLE = "as large as the buffer"
#: Mooncake's code for no room in the local buffer.
NO_HANDLE = -200

OnDisk = tuple[Master, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnDisk]:
    """A cluster whose objects lie on disk alone: the process that held their memory has ended."""
    folder = tmp_path_factory.mktemp("replicas")
    values = {f"{index}": filled((MIB,), torch.uint8) for index in range(COUNT)}
    values[WHOLE] = filled((8 * MIB,), torch.uint8)
    with owned_cluster("64MiB", root_fs_dir=folder) as (master, owner):
        with tl.open(master.url(local_buffer="16MiB"), max_bytes="64MiB") as writer:
            writer.put(list(values), list(values.values()))
            # Written in the background.
            wait_until(lambda: sizes_below(folder) == 24 * MIB, "every object is on disk")
        owner.stop()
        yield master, values


def sizes_below(folder: Any) -> int:
    """Of what was put here. Mooncake keeps the file of a removed object, also of the one that a process finds its own segment by."""
    files = (file for file in folder.rglob("*") if file.is_file() and "tensorlease-probe" not in file.name)
    return sum(file.stat().st_size for file in files)


def open_pooled(on_disk: OnDisk, share: str, readers: int, **settings: Any) -> tl.Store:
    url = on_disk[0].url(local_buffer=LOCAL_BUFFER, pool="store", force=1, share=share)
    return tl.open(url, max_bytes="64MiB", readers=readers, **settings)


def read(store: tl.Store, on_disk: OnDisk, keys: list[str]) -> None:
    values = [on_disk[1][key] for key in keys]
    found = store.get(keys, [value.shape for value in values], torch.uint8)
    for tensor, value in zip(found, values, strict=True):
        assert_same(tensor, value)


SMALL = [str(index) for index in range(COUNT)]


@pytest.mark.parametrize("readers", [1, 4])
def test_with_the_half_share_every_object_on_disk_is_read_at_the_first_try(on_disk: OnDisk, readers: int) -> None:
    with open_pooled(on_disk, "half", readers) as store:
        with counted(store) as gained:
            read(store, on_disk, SMALL)
        assert gained["loans"] == {1: 4, 4: 16}[readers]
        assert gained["retries"] == gained["overflow_loans"] == gained["fallback_reads"] == 0


@pytest.mark.parametrize("retries", [0, 3])
def test_with_a_full_share_a_reader_starves_its_own_read(on_disk: OnDisk, retries: int) -> None:
    with open_pooled(on_disk, "full", 1, retries=retries) as store:
        with pytest.raises(tl.TransferError, match="local_buffer") as caught:
            read(store, on_disk, [WHOLE])
        assert [(failure.key, failure.code) for failure in caught.value.failures] == [(WHOLE, NO_HANDLE)]
        assert store.stats()["retries"] == retries
        # Its lease is back, or this would find none.
        if retries == 0:
            with pytest.raises(tl.TransferError) as caught:
                read(store, on_disk, SMALL[:8])
            assert {failure.code for failure in caught.value.failures} == {NO_HANDLE}
            assert [failure.key for failure in caught.value.failures] == SMALL[:8]
        assert store.stats()["fallback_no_loan"] == 0


def test_after_a_starved_try_smaller_leases_leave_mooncake_its_room(on_disk: OnDisk) -> None:
    with open_pooled(on_disk, "full", 1) as store:
        with counted(store) as gained:
            read(store, on_disk, SMALL)
        # All 16 failed in two leases of the whole buffer, and came in four of half of it.
        assert gained["retries"] == COUNT
        assert gained["loans"] == 2 + 4


def test_pool_own_leaves_the_local_buffer_to_mooncake(on_disk: OnDisk) -> None:
    with tl.open(on_disk[0].url(local_buffer=LOCAL_BUFFER), max_bytes="64MiB") as store:
        with counted(store) as gained:
            read(store, on_disk, [*SMALL[:4], WHOLE])
        assert gained["loans"] == 0


def test_pool_own_with_a_local_buffer_smaller_than_an_object_on_disk_names_local_buffer(on_disk: OnDisk) -> None:
    with tl.open(on_disk[0].url(local_buffer="512KiB"), max_bytes="64MiB") as store:
        with pytest.raises(tl.TransferError, match="raise local_buffer") as caught:
            read(store, on_disk, SMALL[:1])
        assert [(failure.key, failure.kind, failure.code) for failure in caught.value.failures] == [
            (SMALL[0], "no_handle", NO_HANDLE)
        ]
        assert store.stats()["leased_bytes"] == store.stats()["in_flight_bytes"] == 0
