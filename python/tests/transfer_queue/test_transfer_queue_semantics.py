"""What the released client promises beside the values themselves, kept by ours: one test for both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from mooncake_rig import allocated_bytes, cluster
from queue_rig import CLIENTS, OURS, Outcomes, error_of, opened_client, require_transfer_queue

require_transfer_queue()

from described import describe
from tensordict import MemoryMappedTensor

import tensorlease as tl
from bench.cluster import Master
from tensorlease.transfer_queue import errors

pytestmark = pytest.mark.timeout(300)

FLOATS = torch.float32
MIB = 1 << 20
_numbers = itertools.count()


class Subclass(torch.Tensor):
    """As integrations make them."""


#: Tensors that do not lie in memory as their shape says, or are more than numbers.
ODD_TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "requires a gradient": lambda: torch.ones(3, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.arange(3.0)),
    "inference": lambda: _in_inference_mode(),
    "subclass": lambda: torch.arange(6.0).as_subclass(Subclass),
    "in a file": lambda: MemoryMappedTensor.from_tensor(torch.arange(6.0)),
    "expanded": lambda: torch.ones(1).expand(5),
    "every other column": lambda: torch.arange(12.0).reshape(3, 4)[:, ::2],
    "channels last": lambda: torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "negated view": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    **{
        str(dtype): lambda dtype=dtype: torch.arange(4).to(FLOATS).to(dtype)
        for dtype in (
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.uint16,
            torch.uint32,
            torch.uint64,
            torch.complex128,
        )
    },
}


def _in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(3.0)


@pytest.fixture(scope="module")
def clients(master: Master) -> Iterator[dict[str, Any]]:
    with opened_client(CLIENTS[0], master) as released, opened_client(CLIENTS[1], master) as ours:
        yield dict(zip(CLIENTS, (released, ours), strict=True))


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, clients: dict[str, Any]) -> Any:
    return clients[request.param]


@pytest.fixture
def key() -> str:
    """One that no other test uses."""
    return f"{next(_numbers)}@semantics"


@pytest.mark.parametrize("kind", ODD_TENSORS)
def test_a_tensor_is_stored_as_the_numbers_that_it_shows(client: Any, key: str, kind: str) -> None:
    value = ODD_TENSORS[kind]()
    assert client.put([key], [value]) == [None]
    (found,) = client.get([key], [value.shape], [value.dtype])
    assert type(found) is torch.Tensor
    assert not found.requires_grad
    assert describe(found) == describe(value.detach().as_subclass(torch.Tensor))


def test_nothing_is_put_got_and_cleared_at_once(client: Any) -> None:
    assert client.put([], []) == []
    assert client.get([], [], []) == []
    client.clear([])


def test_a_key_that_stands_twice_in_one_put_keeps_the_last_value(client: Any, key: str) -> None:
    assert client.put([key, key], [torch.zeros(2), torch.ones(2)]) == [None, None]
    assert client.get([key], [(2,)], [FLOATS])[0].tolist() == [1.0, 1.0]
    metas = client.put([f"packed/{key}"] * 2, ["one", {"two": 2}])
    assert client.get([f"packed/{key}"], [None], [None], [metas[1]]) == [{"two": 2}]


@pytest.mark.parametrize("shape", [[2, 3], (2, 3), torch.Size([2, 3]), (6,), (1, 6)], ids=str)
def test_a_shape_may_be_any_sequence_of_so_many_elements(client: Any, key: str, shape: Any) -> None:
    client.put([key], [torch.arange(6.0)])
    (found,) = client.get([key], [shape], [FLOATS])
    assert torch.equal(found, torch.arange(6.0).reshape(tuple(shape)))


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("put", (("0@x",), [1])),
        ("put", (["0@x"], (1,))),
        ("put", (["0@x"], [])),
        ("get", (["0@x"],)),
        ("get", (["0@x"], [(1,)], [])),
        ("get", (["0@x"], [None], [None])),
        ("get", (["0@x"], [None], [None], [{}, {}])),
    ],
)
def test_a_wrong_call_is_a_value_error(client: Any, call: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"keys|shapes|custom_backend_meta"):
        getattr(client, call)(*arguments)


def test_what_was_put_and_what_was_got_are_the_callers_own(client: Any, key: str) -> None:
    value = torch.ones(20_000)
    client.put([key], [value])
    value.zero_()
    (first,) = client.get([key], [(20_000,)], [FLOATS])
    first.fill_(7.0)
    (second,) = client.get([key], [(20_000,)], [FLOATS])
    assert float(second.sum()) == 20_000.0
    assert float(first.sum()) == 140_000.0


def test_ragged_rows_that_change_their_lengths_do_not_fill_mooncake() -> None:
    with cluster() as master, opened_client(OURS, master, global_segment_size=32 * MIB) as client:
        keys = [f"{row}@ragged" for row in range(4)]
        for step in range(40):
            rows = [torch.full((MIB // 2 - 100 * (step + row),), float(step)) for row in range(4)]
            client.put(keys, rows)
        found = client.get(keys, [row.shape for row in rows], [FLOATS] * 4)
        assert all(torch.equal(one, row) for one, row in zip(found, rows, strict=True))
        client.clear(keys)
        assert allocated_bytes(master) == 0


def test_a_tensor_without_elements_leaves_nothing_in_mooncake(clients: dict[str, Any], key: str) -> None:
    client = clients[OURS]
    client.put([key], [torch.ones(4)])
    assert client.put([key], [torch.empty(0, 3)]) == [None]
    assert client._store.batch_is_exist([key]) == [0]
    (found,) = client.get([key], [(0, 3)], [FLOATS])
    assert found.shape == (0, 3)
    with pytest.raises(tl.ConfigError, match="nested tensor"):
        client.put([key], [torch.nested.as_nested_tensor([torch.empty(0)], layout=torch.jagged)])


# ---- errors ----------------------------------------------------------------------------------------------------------------------


def test_a_put_that_finds_no_room_names_the_keys_that_are_not_stored() -> None:
    keys = [f"{number}@large" for number in range(24)]
    with cluster() as master, opened_client(OURS, master, global_segment_size=16 * MIB) as client:
        error = error_of(lambda: client.put(keys, [torch.ones(MIB // 4)] * len(keys)))
        stored = client._store.batch_is_exist(keys)
    # What the released client raises there, and our own kind.
    assert isinstance(error, RuntimeError)
    assert isinstance(error, tl.StoreFull | tl.TransferError)
    assert {failure.key for failure in error.failures} == {
        key for key, there in zip(keys, stored, strict=True) if there != 1
    }
    assert any(failure.key in str(error) for failure in error.failures)


@pytest.mark.parametrize("kind", errors._AS_RAISED_THERE, ids=lambda kind: kind.__name__)
def test_an_error_of_the_store_is_also_what_transfer_queues_client_raises(kind: type[tl.Error]) -> None:
    failures = [("0@x", "other", -1, "why")]
    with pytest.raises(RuntimeError, match="what happened") as raised, errors.as_raised_there():
        raise kind("what happened", failures=failures)
    assert isinstance(raised.value, kind)
    assert [tuple(failure) for failure in raised.value.failures] == failures


def test_errors_of_no_such_kind_stay_what_they_are() -> None:
    with pytest.raises(tl.ConfigError) as raised, errors.as_raised_there():
        raise tl.ConfigError("a setting")
    assert type(raised.value) is tl.ConfigError


def test_options_that_a_message_names_are_told_as_transfer_queues_configuration_calls_them() -> None:
    with (
        pytest.raises(errors.StorageFull, match=r"MooncakeStore\.global_segment_size") as full,
        errors.as_raised_there(),
    ):
        raise tl.StoreFull("no process contributes one (segment=0 everywhere)", failures=[])
    assert "local_buffer_size" not in str(full.value)
    with pytest.raises(tl.ArenaExhausted) as exhausted, errors.as_raised_there():
        raise tl.ArenaExhausted("65536 bytes can never fit; raise max_bytes")
    assert exhausted.value.__notes__ == [
        "in TransferQueue's configuration max_bytes is backend.MooncakeStore.tensorlease.max_bytes"
    ]


def test_an_error_that_crosses_from_an_actor_is_still_transfer_queues_own(outcomes: dict[str, Outcomes]) -> None:
    is_key_not_found, names_the_key = outcomes[OURS]["reading a row that is gone in an actor"].passed()
    assert is_key_not_found
    assert names_the_key


def test_a_client_that_is_closed_says_so_and_others_go_on(clients: dict[str, Any], master: Master, key: str) -> None:
    """Clients of one process with the same settings share their store."""
    with opened_client(OURS, master) as client:
        client.put([key], [torch.ones(1)])
        client.close()
        client.close()
        for call in (
            lambda: client.put([key], [torch.ones(1)]),
            lambda: client.get([key], [(1,)], [FLOATS]),
            lambda: client.clear([key]),
        ):
            with pytest.raises(errors.StorageClosed, match="closed"):
                call()
    assert clients[OURS].get([key], [(1,)], [FLOATS])[0].tolist() == [1.0]
