"""Defects of the released client that ours has not: one test for both, which the released one fails (xfail, strict) and ours passes."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from counting_store import CountingStore, counting
from queue_rig import (
    CLIENTS,
    OURS,
    RELEASED,
    CaseFailed,
    Outcomes,
    client_class,
    error_of,
    on_both,
    opened_client,
    require_transfer_queue,
)

require_transfer_queue()

import transfer_queue as tq
from transfer_queue.storage.clients import mooncake_client

import tensorlease as tl
from bench.cluster import Master

pytestmark = pytest.mark.timeout(300)

#: A read of the released client, and as many again.
RELEASED_TRIES = 1 + mooncake_client.MAX_RETRIES
FLOATS = torch.float32
_numbers = itertools.count()


@pytest.fixture(scope="module")
def clients(master: Master) -> Iterator[dict[str, Any]]:
    with (
        counting(),
        mock.patch.object(mooncake_client, "RETRY_DELAY_SECONDS", 0.01),
        opened_client(RELEASED, master) as released,
        opened_client(OURS, master) as ours,
    ):
        yield {RELEASED: released, OURS: ours}


@pytest.fixture
def key() -> str:
    """One that no other test uses."""
    return f"{next(_numbers)}@defect"


# ---- reads -----------------------------------------------------------------------------------------------------------------------


@on_both(released_fails_with=AssertionError, why="it takes a shorter object for the whole and returns garbage after it")
def test_a_short_object_is_an_error_that_names_its_key(clients: dict[str, Any], which: str, key: str) -> None:
    clients[which].put([key], [torch.ones(4)])
    error = error_of(lambda: clients[which].get([key], [(8,)], [FLOATS]))
    assert error is not None
    assert key in str(error)


@on_both(
    released_fails_with=AssertionError,
    why="it takes a shorter object for the whole, for values that are no tensors too",
)
def test_a_short_packed_value_is_an_error_that_names_its_key(clients: dict[str, Any], which: str, key: str) -> None:
    (meta,) = clients[which].put([key], ["text"])
    longer = {"packed_size": meta["packed_size"] + 100}
    error = error_of(lambda: clients[which].get([key], [None], [None], [longer]))
    assert error is not None
    assert key in str(error)


@pytest.mark.parametrize("which", CLIENTS)
def test_an_object_longer_than_asked_is_an_error_that_names_its_key(
    clients: dict[str, Any], which: str, key: str
) -> None:
    clients[which].put([key], [torch.ones(8)])
    error = error_of(lambda: clients[which].get([key], [(4,)], [FLOATS]))
    assert error is not None
    assert key in str(error)


@on_both(released_fails_with=RuntimeError, why="a missing key is an error like any other, after all retries")
@pytest.mark.parametrize("dtype", [FLOATS, None], ids=["tensor", "packed value"])
def test_a_missing_key_is_transfer_queues_own_error(
    clients: dict[str, Any], which: str, key: str, dtype: torch.dtype | None
) -> None:
    meta = [None if dtype else {"packed_size": 18}]
    with pytest.raises(tq.StorageKeyNotFoundError, match=key):
        clients[which].get([key], [(4,) if dtype else None], [dtype], meta)


@on_both(released_fails_with=AssertionError, why="it asks for a missing key again and again")
@pytest.mark.parametrize("dtype", [FLOATS, None], ids=["tensor", "packed value"])
def test_a_missing_key_is_asked_for_once(
    clients: dict[str, Any], which: str, key: str, dtype: torch.dtype | None
) -> None:
    before = CountingStore.asked[key]
    meta = [None if dtype else {"packed_size": 18}]
    error = error_of(lambda: clients[which].get([key], [(4,) if dtype else None], [dtype], meta))
    asked = CountingStore.asked[key] - before
    if error is None or asked not in (0, 1, RELEASED_TRIES):
        raise CaseFailed(f"{error!r} after {asked} tries")
    assert asked <= 1


def test_a_read_with_one_missing_key_names_that_one_only(clients: dict[str, Any], key: str) -> None:
    there, missing = f"there/{key}", f"missing/{key}"
    clients[OURS].put([there], [torch.ones(4)])
    with pytest.raises(tq.StorageKeyNotFoundError, match=missing) as raised:
        clients[OURS].get([there, missing], [(4,), (4,)], [FLOATS, FLOATS])
    assert there not in str(raised.value)


@on_both(released_fails_with=AssertionError, why="RuntimeError, after all retries")
def test_a_batch_of_which_a_row_is_gone_is_transfer_queues_own_error(outcomes: dict[str, Outcomes], which: str) -> None:
    is_key_not_found, names_the_key = outcomes[which]["reading a row that is gone"].passed()
    assert names_the_key
    assert is_key_not_found


@on_both(released_fails_with=AssertionError, why="get and clear are called on the event loop itself")
@pytest.mark.parametrize("meanwhile", ["loop while reading", "loop while clearing"])
def test_the_event_loop_runs_while_bytes_move_and_objects_go(
    outcomes: dict[str, Outcomes], which: str, meanwhile: str
) -> None:
    let_through = outcomes[which][meanwhile].passed()
    if not let_through:
        raise CaseFailed("nothing reached Mooncake")
    assert all(let_through)


@on_both(released_fails_with=AssertionError, why="Mooncake fills the last of the two and says that it has filled both")
def test_a_key_that_is_asked_for_twice_is_delivered_twice(clients: dict[str, Any], which: str, key: str) -> None:
    # Random and kept, so that memory which nobody fills holds anything else.
    value = torch.rand(1000)
    clients[which].put([key], [value])
    first, second = clients[which].get([key, key], [(1000,), (1000,)], [FLOATS, FLOATS])
    if not torch.equal(second, value):
        raise CaseFailed("the last one is wrong too")
    assert torch.equal(first, value)
    first.zero_()
    assert torch.equal(second, value), "each has memory of its own"


# ---- writes ----------------------------------------------------------------------------------------------------------------------


@on_both(released_fails_with=RuntimeError, why="Mooncake refuses objects of no bytes")
def test_tensors_without_elements_are_stored_and_read(clients: dict[str, Any], which: str, key: str) -> None:
    keys = [f"empty/{key}", f"full/{key}"]
    clients[which].put(keys, [torch.empty(0, 3), torch.ones(4)])
    empty, full = clients[which].get(keys, [(0, 3), (4,)], [FLOATS, FLOATS])
    assert empty.shape == (0, 3)
    assert torch.equal(full, torch.ones(4))
    clients[which].clear(keys)


@on_both(released_fails_with=AssertionError, why="the error of the encoder says nothing about the value")
def test_a_value_that_cannot_be_encoded_is_an_error_that_names_its_key(
    clients: dict[str, Any], which: str, key: str
) -> None:
    error = error_of(lambda: clients[which].put([f"good/{key}", key], ["good", {"lock": threading.Lock()}]))
    assert error is not None
    # The encoder's own error, so the key may stand in a note.
    said = " ".join([str(error), *getattr(error, "__notes__", [])])
    assert key in said
    assert f"good/{key}" not in said


@on_both(released_fails_with=AssertionError, why="an assertion without a message, or a KeyError of 'packed_size'")
@pytest.mark.parametrize("meta", [None, {}], ids=["none", "without packed_size"])
def test_a_value_whose_size_is_not_known_is_an_error_that_names_its_key(
    clients: dict[str, Any], which: str, key: str, meta: dict[str, int] | None
) -> None:
    clients[which].put([key], ["text"])
    error = error_of(lambda: clients[which].get([key], [None], [None], [meta]))
    assert error is not None
    assert key in str(error)


def too_large() -> dict[str, torch.Tensor]:
    """4 GiB and some more that are never touched, so that they take no memory."""
    return {"pixels": torch.empty((1 << 32) + 1000, dtype=torch.uint8)}


@on_both(released_fails_with=AssertionError, why="struct.error: 'I' format requires 0 <= number <= 4294967295")
def test_a_value_over_4_gib_is_an_error_that_says_so_and_names_its_key(
    clients: dict[str, Any], which: str, key: str
) -> None:
    error = error_of(lambda: clients[which].put([key], [too_large()]))
    assert error is not None
    assert key in str(error)
    assert "4 GiB" in str(error)


@on_both(released_fails_with=AssertionError, why="the others are written meanwhile")
def test_a_value_over_4_gib_is_refused_before_anything_is_written(
    clients: dict[str, Any], which: str, key: str
) -> None:
    others = [f"tensor/{key}", f"text/{key}"]
    assert error_of(lambda: clients[which].put([*others, key], [torch.ones(4), "text", too_large()])) is not None
    assert clients[RELEASED]._store.batch_is_exist([*others, key]) == [0, 0, 0]


# ---- clearing --------------------------------------------------------------------------------------------------------------------


@on_both(released_fails_with=AssertionError, why="only the fields that all the keys have are removed")
def test_keys_with_different_fields_are_cleared_whole(outcomes: dict[str, Outcomes], which: str) -> None:
    assert outcomes[which]["left after clearing different fields"].passed() == []


@on_both(released_fails_with=CaseFailed, why="RuntimeError: no field_names in BatchMeta")
def test_a_key_that_has_only_a_tag_can_be_cleared(outcomes: dict[str, Outcomes], which: str) -> None:
    assert outcomes[which]["clearing a key without fields"].passed() in ({}, {"tag only": {}})


@pytest.mark.parametrize("which", CLIENTS)
def test_clear_works_on_an_object_that_was_never_initialised(which: str) -> None:
    """As tests of TransferQueue's own build it: with a store, and no staging for GPUs."""
    kind = client_class(which)
    client = object.__new__(kind)
    client._gdr_staging = None
    client._store = mock.MagicMock()
    client._store.batch_remove.return_value = [0, -704]
    client.clear(["0@a", "1@a"])
    client._store.batch_remove.assert_called_once_with(["0@a", "1@a"], force=True)


@pytest.mark.parametrize("which", CLIENTS)
def test_clearing_what_is_not_there_is_no_error(clients: dict[str, Any], which: str, key: str) -> None:
    clients[which].put([key], [torch.ones(4)])
    clients[which].clear([f"missing/{key}", key])
    clients[which].clear([key])
    assert error_of(lambda: clients[which].get([key], [(4,)], [FLOATS])) is not None


# ---- one field, two dtypes -------------------------------------------------------------------------------------------------------


def test_rows_of_one_field_have_one_dtype(outcomes: dict[str, Outcomes]) -> None:
    """TransferQueue's own manager stores the others too, and they are read as what they are not."""
    said, first = outcomes[OURS]["a field of two dtypes"].passed()
    asked = [
        ("x", "float32", "int32"),
        ("x", "float32", "values"),
        ("y", "float32", "float64"),
        ("y", "float32", "int32"),
    ]
    assert len(said) == len(asked)
    for message, (field, held, put) in zip(said, asked, strict=True):
        assert f"field '{field}'" in message
        assert held in message
        assert put in message
        assert "under a field of another name" in message
    assert first == [1.0, 1.0, 1.0]


def test_a_field_whose_partition_was_emptied_takes_another_dtype() -> None:
    """What this process has put before is asked about, and not believed."""
    from tensorlease.transfer_queue import manager as module
    from tensorlease.transfer_queue.manager import TensorleaseStorageManager

    manager = object.__new__(TensorleaseStorageManager)
    manager.controller_info, manager.storage_manager_id = None, "manager"
    metadata = SimpleNamespace(partition_ids=["p"], field_schema={})
    asyncio.run(manager._refuse_second_kind({"x": torch.ones(2)}, metadata))
    asked = mock.Mock(return_value={"x": None})
    with mock.patch.object(module, "kinds_in_partition", asked):
        asyncio.run(manager._refuse_second_kind({"x": torch.ones(2)}, metadata))
        asked.assert_not_called()
        asyncio.run(manager._refuse_second_kind({"x": torch.ones(2).int()}, metadata))
        asked.assert_called_once()
    with (
        mock.patch.object(module, "kinds_in_partition", return_value={"x": torch.int32}),
        pytest.raises(tl.ConfigError, match="another name"),
    ):
        asyncio.run(manager._refuse_second_kind({"x": torch.ones(2)}, metadata))
