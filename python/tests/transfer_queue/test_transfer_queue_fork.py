"""Forked processes, as a data loader's workers are: Mooncake does not survive a fork, so they are told at once what to do, and never hang."""

from __future__ import annotations

import pytest
from queue_rig import HERE, OURS, Outcomes, require_transfer_queue, run_script

require_transfer_queue()

from bench.cluster import Master

pytestmark = pytest.mark.timeout(600)


def test_a_forked_process_is_told_at_once_and_its_parent_goes_on(master: Master) -> None:
    lines = run_script(HERE / "forks.py", master.address, timeout=150).splitlines()
    (said,) = [line for line in lines if line.startswith("child Storage")]
    assert "fork" in said
    assert "spawn" in said
    assert "child ended with 0" in lines
    assert "parent 20000.0" in lines


def test_a_worker_forked_too_late_says_how_to_start_it(outcomes: dict[str, Outcomes]) -> None:
    said = outcomes[OURS]["streamed after the client was used"].passed()
    assert 'multiprocessing_context="spawn"' in said
    assert "setup_worker" in said
