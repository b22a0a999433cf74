"""The engine contract, over RDMA: every check, most with the memory in another process."""

from __future__ import annotations

import pytest
from conftest import packets, rdma_url
from tensorlease._core._tests import conformance_checks, run_conformance_check

from bench.cluster import Master

#: The least that Mooncake takes as a segment.
FULL_BYTES = 16 << 20
#: Need an empty store of a known size, which only a segment of the same process is. It goes with the client that brought it.
OF_A_FULL_STORE = [
    "a_full_store_keeps_working",
    "a_replace_that_does_not_fit_keeps_the_old_object",
    "replaces_by_another_size_give_the_memory_back",
]


@pytest.mark.parametrize("check", [check for check in conformance_checks() if check not in OF_A_FULL_STORE])
def test_conformance_with_the_segment_in_another_process(master: Master, check: str) -> None:
    run_conformance_check(check, rdma_url(master), capacity=None, key_prefix=f"{check}/")


@pytest.mark.parametrize("check", OF_A_FULL_STORE)
def test_conformance_of_a_full_store(empty_master: Master, check: str) -> None:
    before = packets()
    run_conformance_check(
        check, rdma_url(empty_master, segment=FULL_BYTES), capacity=FULL_BYTES, key_prefix=f"{check}/"
    )
    # Mooncake copies inside one process unless a transport other than TCP is there; here it must not.
    assert packets() - before >= FULL_BYTES // 4096
