"""A Ray cluster and a Mooncake master for all tests of this folder, and what the jobs of the matrix came to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mooncake_rig import cluster
from queue_rig import CLIENTS, OURS, Outcomes, RayCluster, require_transfer_queue, run_job

from bench.cluster import Master


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    require_transfer_queue()
    running = RayCluster()
    try:
        yield running.address
    finally:
        running.stop()


@pytest.fixture(scope="session")
def master() -> Iterator[Master]:
    """For clients in the tests' own process; each job has one of its own, because keys of two jobs would meet."""
    require_transfer_queue()
    with cluster() as running:
        yield running


@pytest.fixture(scope="session")
def outcomes(ray_address: str) -> dict[str, Outcomes]:
    """By client: every case of queue_job.py, each client in a job of its own, one job after the other."""
    from queue_cases import CASES, OURS_ALONE, in_order

    found = {}
    for which in CLIENTS:
        with cluster() as master:
            cases = in_order([*CASES, *(OURS_ALONE if which == OURS else ())])
            found[which] = run_job(which, cases, ray_address=ray_address, master=master)
    return found
