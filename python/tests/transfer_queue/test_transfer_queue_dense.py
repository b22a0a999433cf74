"""Columns as one tensor each: dense where all rows agree, jagged otherwise, and without a copy."""

from __future__ import annotations

import pytest
from mooncake_rig import cluster
from queue_rig import OURS, Outcomes, require_transfer_queue, run_job

require_transfer_queue()

from kinds import LENGTHS, ROWS

pytestmark = pytest.mark.timeout(300)

#: Ways to ask for it: the job's configuration, and the call that installs.
ASKED = {"setting": {"settings": {"dense": True}}, "install": {"install": {"dense": True}}}


@pytest.fixture(scope="module", params=ASKED)
def dense(request: pytest.FixtureRequest, ray_address: str) -> Outcomes:
    with cluster() as master:
        cases = ["dense columns", "copied by a read", "sync/zero-element", "sync/ragged"]
        return run_job(OURS, cases, ray_address=ray_address, master=master, **ASKED[request.param])


def test_every_column_comes_back_in_the_layout_that_it_was_put_in(dense: Outcomes) -> None:
    described, _, _ = dense["dense columns"].passed()
    assert set(described) == {"matrix", "reward", "one wide", "ids", "mask", "text"}
    for name, (found, given) in described.items():
        assert found == given, name


def test_fields_of_equal_lengths_share_their_offsets_so_that_torch_combines_them(dense: Outcomes) -> None:
    _, shared, (layout, dtype, rows) = dense["dense columns"].passed()
    assert shared
    assert (layout, dtype) == ("jagged", "torch.int64")
    assert [shape for _, _, shape, _ in rows] == [(length,) for length in LENGTHS]


def test_no_column_is_copied_to_merge_its_rows(dense: Outcomes) -> None:
    assert dense["copied by a read"].passed() == {"copied_bytes": 0, "fallback_reads": 0, "leased_reads": 2 * ROWS}


def test_other_kinds_are_right_with_dense_columns_too(dense: Outcomes) -> None:
    dense["sync/zero-element"].passed()
    dense["sync/ragged"].passed()


def test_nothing_is_copied_for_transfer_queues_own_layout_either(outcomes: dict[str, Outcomes]) -> None:
    assert outcomes[OURS]["copied by a read"].passed() == {
        "copied_bytes": 0,
        "fallback_reads": 0,
        "leased_reads": 2 * ROWS,
    }


def test_without_dense_a_column_is_merged_as_transfer_queue_does_it(outcomes: dict[str, Outcomes]) -> None:
    described, _, _ = outcomes[OURS]["dense columns"].passed()
    assert {name: found[0] for name, (found, _) in described.items()} == {
        "matrix": "jagged",
        "reward": "jagged",
        "one wide": "jagged",
        "ids": "jagged",
        "mask": "jagged",
        "text": "stack",
    }
