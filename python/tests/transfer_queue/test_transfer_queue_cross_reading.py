"""Objects are the same bytes whoever stores them: what one client writes the other one reads, in one job."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from queue_rig import CLIENTS, OURS, RELEASED, Outcomes, opened_client, require_transfer_queue

require_transfer_queue()

from described import describe
from kinds import KINDS, NOT_RELEASED, single_values
from queue_cases import DIRECTIONS, OURS_TO_RELEASED

from bench.cluster import Master

pytestmark = pytest.mark.timeout(600)

#: What msgpack can't hold and pickle can. TransferQueue 0.1.9 can't either, so it is no kind of the matrix.
PICKLED = "pickled"
SHARED_KINDS = [*(kind for kind in KINDS if kind not in NOT_RELEASED), PICKLED]


@pytest.fixture(scope="module")
def clients(master: Master) -> Iterator[dict[str, Any]]:
    with opened_client(RELEASED, master) as released, opened_client(OURS, master) as ours:
        yield {RELEASED: released, OURS: ours}


def values_of(kind: str, seed: int) -> list[Any]:
    return [1 << 80, {"count": -(1 << 70), "set": {seed}}] if kind == PICKLED else single_values(kind, seed)


def keys_of(name: str, values: list[Any]) -> list[str]:
    return [f"{name}/{number}@x" for number in range(len(values))]


def shapes_and_dtypes(values: list[Any]) -> tuple[list[Any], list[Any]]:
    """As TransferQueue passes them: a value that is no tensor has neither."""
    tensors = [value if isinstance(value, torch.Tensor) else None for value in values]
    return [None if one is None else one.shape for one in tensors], [
        None if one is None else one.dtype for one in tensors
    ]


@pytest.mark.parametrize("kind", SHARED_KINDS)
@pytest.mark.parametrize(("writer", "reader"), [(RELEASED, OURS), (OURS, RELEASED), (OURS, OURS)])
def test_what_one_client_writes_another_reads(clients: dict[str, Any], writer: str, reader: str, kind: str) -> None:
    values = values_of(kind, seed=3)
    keys = keys_of(f"{writer} to {reader}/{kind}", values)
    meta = clients[writer].put(keys, values)
    found = clients[reader].get(keys, *shapes_and_dtypes(values), custom_backend_meta=meta)
    # What the released pair makes of it: lists of tuples, for example.
    own = keys_of(f"for {writer} to {reader}/{kind}", values)
    own_meta = clients[RELEASED].put(own, values)
    expected = clients[RELEASED].get(own, *shapes_and_dtypes(values), custom_backend_meta=own_meta)
    assert [describe(value) for value in found] == [describe(value) for value in expected]
    assert meta == own_meta
    clients[reader].clear(keys, meta)
    clients[writer].clear(own, own_meta)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NOT_RELEASED])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_processes_of_one_job_with_different_clients_read_what_the_others_put(
    outcomes: dict[str, Outcomes], direction: str, kind: str
) -> None:
    assert outcomes[OURS][f"{direction}/{kind}"].passed() == outcomes[RELEASED][f"actors/{kind}"].passed()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_each_process_of_such_a_job_has_the_client_that_it_was_told(
    outcomes: dict[str, Outcomes], direction: str
) -> None:
    names = ["TensorleaseStoreClient", "MooncakeStoreClient"]
    expected = names if direction == OURS_TO_RELEASED else names[::-1]
    assert outcomes[OURS][f"{direction}/clients"].passed() == expected


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_both_clients_store_the_same_bytes(clients: dict[str, Any], kind: str) -> None:
    values, stored = values_of(kind, seed=4), []
    for which in CLIENTS:
        keys = keys_of(f"bytes of {which}/{kind}", values)
        clients[which].put(keys, values)
        stored.append([clients[RELEASED]._store.get(key) for key in keys])
        clients[which].clear(keys)
    assert all(stored[0])
    assert stored[0] == stored[1]


def test_values_without_elements_are_known_from_their_shape_alone(clients: dict[str, Any]) -> None:
    values = [torch.empty(0), torch.ones(3), torch.empty(2, 0, 4, dtype=torch.int8)]
    keys = keys_of("nothing", values)
    assert clients[OURS].put(keys, values) == [None, None, None]
    found = clients[OURS].get(keys, *shapes_and_dtypes(values))
    assert [describe(value) for value in found] == [describe(value) for value in values]
    clients[OURS].clear(keys)


def test_many_threads_share_one_client(clients: dict[str, Any]) -> None:
    def round_trips(thread: int) -> None:
        for turn in range(5):
            values = [torch.full((100 + thread,), float(turn)), {"thread": thread, "turn": turn}]
            keys = keys_of(f"thread {thread}/{turn}", values)
            meta = clients[OURS].put(keys, values)
            found = clients[OURS].get(keys, *shapes_and_dtypes(values), custom_backend_meta=meta)
            assert [describe(value) for value in found] == [describe(value) for value in values]
            clients[OURS].clear(keys, meta)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(round_trips, range(8)))
