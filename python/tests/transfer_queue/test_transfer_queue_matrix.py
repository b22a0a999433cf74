"""Every kind of value through every interface of TransferQueue, on a real Mooncake: right with our client, and the same as with the released one."""

from __future__ import annotations

import pytest
from queue_rig import OURS, RELEASED, Outcomes, require_transfer_queue

require_transfer_queue()

from kinds import KINDS, NOT_RELEASED
from queue_cases import CASES

pytestmark = pytest.mark.timeout(600)

WAYS = ["sync", "async", "low-level", "partitions", "actors"]
MATRIX = [f"{way}/{kind}" for way in WAYS for kind in KINDS]


def test_the_matrix_holds_every_kind_and_every_interface() -> None:
    assert set(MATRIX) <= set(CASES)
    assert len(MATRIX) == 50


@pytest.mark.parametrize("case", MATRIX)
def test_what_is_put_comes_back_and_is_gone_once_cleared(case: str, outcomes: dict[str, Outcomes]) -> None:
    outcomes[OURS][case].passed()


@pytest.mark.parametrize("case", MATRIX)
def test_a_case_that_the_released_client_passes_gives_the_same_from_both(
    case: str, outcomes: dict[str, Outcomes]
) -> None:
    released = outcomes[RELEASED][case]
    if case.partition("/")[2] in NOT_RELEASED:
        assert released.error is not None, "the released client has learnt it: take it out of NOT_RELEASED"
        return
    assert outcomes[OURS][case].passed() == released.passed()


@pytest.mark.parametrize("which", [RELEASED, OURS])
def test_what_was_read_belongs_to_its_reader(which: str, outcomes: dict[str, Outcomes]) -> None:
    first, second = 4 * [7.0 * 5000], 4 * [5000.0]
    assert outcomes[which]["values of two reads"].passed() == first + second


@pytest.mark.parametrize("where", ["in this process", "by a spawned worker", "by a forked worker"])
def test_a_streaming_data_loader_gives_every_row_once(where: str, outcomes: dict[str, Outcomes]) -> None:
    rows, clients = outcomes[OURS][f"streamed {where}"].passed()
    assert rows == [50.0 * number for number in range(12)]
    assert clients == {"TensorleaseStoreClient"}
    if where != "by a spawned worker":
        assert outcomes[RELEASED][f"streamed {where}"].passed() == (rows, {"MooncakeStoreClient"})


def test_one_setting_switches_the_driver_the_actors_and_the_tasks(outcomes: dict[str, Outcomes]) -> None:
    ours, released = "TensorleaseStoreClient", "MooncakeStoreClient"
    assert outcomes[OURS]["clients"].passed() == {"driver": ours, "actors": [ours, ours], "task": ours}
    assert outcomes[RELEASED]["clients"].passed() == {"driver": released, "actors": 2 * [released], "task": released}
