"""Memory is registered when a client is made and not again: counted at Mooncake's own client object, whoever calls it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from counting_store import counting
from queue_rig import CLIENTS, OURS, on_both, opened_client, require_transfer_queue

require_transfer_queue()

from bench.cluster import Master
from tensorlease.transfer_queue import settings

pytestmark = pytest.mark.timeout(180)

TENSORS = [torch.full((1000,), float(number)) for number in range(50)]
PACKED = [{"number": number, "text": "x" * 3000} for number in range(50)]


@on_both(released_fails_with=AssertionError, why="each of the four paths registers its memory at each call")
@pytest.mark.parametrize("path", ["put tensors", "put bytes", "get tensors", "get bytes"])
def test_no_call_registers_memory(master: Master, which: str, path: str) -> None:
    call, _, what = path.partition(" ")
    values = TENSORS if what == "tensors" else PACKED
    keys = [f"{which}/{path}/{number}@x" for number in range(len(values))]
    shapes = [(1000,) if what == "tensors" else None] * len(values)
    dtypes = [torch.float32 if what == "tensors" else None] * len(values)
    with counting() as store, opened_client(which, master) as client:
        before = store.calls["register_buffer"]
        meta = client.put(keys, values)
        after_put = store.calls["register_buffer"]
        client.get(keys, shapes, dtypes, custom_backend_meta=meta)
        after_get = store.calls["register_buffer"]
        client.clear(keys, meta)
    registered = {"put": after_put - before, "get": after_get - after_put}
    assert registered[call] == 0


@pytest.fixture
def registering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TCP nothing needs to be registered: this asks for it all the same, as RDMA does."""
    url = settings.Backend.url
    monkeypatch.setattr(settings.Backend, "url", lambda backend: f"{url(backend)}&pool=store&force=1")
    monkeypatch.setattr(settings, "REGISTERING", ("rdma", "tcp"))


@pytest.mark.usefixtures("registering")
@pytest.mark.parametrize("delivery", ["leased", "auto", "copied"])
def test_where_memory_must_be_registered_it_is_when_the_client_is_made(master: Master, delivery: str) -> None:
    """No put or get registers anything, the first one neither; `tests/rdma` shows the same on RDMA itself."""
    values = [*TENSORS, *PACKED, *(torch.full((300_000,), float(number)) for number in range(8))]
    tuning = {"max_bytes": "64MiB", "delivery": delivery}
    with counting() as store, opened_client(OURS, master, tensorlease=tuning) as client:
        registered = store.calls["register_buffer"]
        assert client.stats()["slabs_made"] > 0, "nothing needs registered memory, so nothing is shown"
        for number in range(2):
            round_trip(client, values, f"{delivery}/{number}")
        stats = client.stats()
        assert store.calls["register_buffer"] == registered
    assert stats["register_calls_per_read"] == 0
    assert stats["fallback_writes"] == 0


@pytest.mark.usefixtures("registering")
def test_without_prewarm_only_slabs_are_registered_and_each_once(master: Master) -> None:
    values = [*TENSORS, *PACKED]
    tuning = {"max_bytes": "64MiB", "delivery": "leased", "prewarm": 0}
    with counting() as store, opened_client(OURS, master, tensorlease=tuning) as client:
        made, before = client.stats()["slabs_made"], store.calls["register_buffer"]
        round_trip(client, values, "by and by/first")
        stats = client.stats()
        assert stats["slabs_made"] > made, "the first write made the memory that it is staged in"
        assert store.calls["register_buffer"] - before == stats["slabs_made"] - made
        round_trip(client, values, "by and by/second")
        assert client.stats()["slabs_made"] == stats["slabs_made"]


@pytest.mark.usefixtures("registering")
def test_values_that_are_no_tensors_are_encoded_in_registered_memory_and_sent_from_there(master: Master) -> None:
    with opened_client(OURS, master) as client:
        before = client.stats()
        client.put([f"encoded/{number}@x" for number in range(len(PACKED))], PACKED)
        after = client.stats()
        client.clear([f"encoded/{number}@x" for number in range(len(PACKED))])
    assert after["in_place_writes"] - before["in_place_writes"] == len(PACKED)
    assert after["staged_writes"] == before["staged_writes"]


def round_trip(client: Any, values: list[Any], prefix: str) -> None:
    """Put, get and clear."""
    keys = [f"{prefix}/{number}@x" for number in range(len(values))]
    meta = client.put(keys, values)
    tensors = [value if isinstance(value, torch.Tensor) else None for value in values]
    shapes = [None if one is None else one.shape for one in tensors]
    found = client.get(keys, shapes, [None if one is None else one.dtype for one in tensors], meta)
    for one, value in zip(found, values, strict=True):
        assert torch.equal(one, value) if isinstance(value, torch.Tensor) else one == value
    client.clear(keys, meta)


@pytest.mark.parametrize("which", CLIENTS)
def test_the_bytes_of_both_clients_go_through_the_object_that_counts(master: Master, which: str) -> None:
    with counting() as store, opened_client(which, master) as client:
        before = store.calls.copy()
        client.put([f"{which}/counted@x"], [torch.ones(10)])
        client.get([f"{which}/counted@x"], [(10,)], [torch.float32])
        client.clear([f"{which}/counted@x"])
        gained = store.calls - before
    assert gained["batch_upsert_from"] >= 1
    assert gained["batch_get_into"] >= 1
