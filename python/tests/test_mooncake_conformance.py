"""The engine contract, on a real Mooncake over TCP: with the segment in this process and in another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mooncake_rig import cluster
from tensorlease._core._tests import conformance_checks, run_conformance_check

from bench.cluster import Master

SEGMENT_BYTES = 64 << 20
#: Checks that need an empty store of a known size, which only a segment of this process is.
OF_A_FULL_STORE = {
    "a_full_store_keeps_working",
    "a_replace_that_does_not_fit_keeps_the_old_object",
    "replaces_by_another_size_give_the_memory_back",
}


@pytest.fixture(scope="module")
def empty_master() -> Iterator[Master]:
    with cluster() as master:
        yield master


@pytest.fixture(scope="module")
def master_with_owner() -> Iterator[Master]:
    with cluster(segment="256MiB") as master:
        yield master


@pytest.mark.parametrize("check", conformance_checks())
@pytest.mark.parametrize("registration", ["free", "required"])
def test_conformance_with_the_segment_in_this_process(empty_master: Master, check: str, registration: str) -> None:
    pool = {"pool": "store", "force": 1} if registration == "required" else {}
    url = empty_master.url(segment=SEGMENT_BYTES, local_buffer="16MiB", **pool)
    run_conformance_check(check, url, capacity=SEGMENT_BYTES, key_prefix=f"{registration}/{check}/")


@pytest.mark.parametrize("check", [check for check in conformance_checks() if check not in OF_A_FULL_STORE])
def test_conformance_with_the_segment_in_another_process(master_with_owner: Master, check: str) -> None:
    url = master_with_owner.url(local_buffer="16MiB")
    run_conformance_check(check, url, capacity=None, key_prefix=f"{check}/")
