"""What the tests on a real Mooncake share: a cluster on loopback, or a reason why there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import tensorlease as tl
from tensorlease.mooncake_cluster import Master, SegmentOwner, master_binary


def require_mooncake() -> None:
    """Skips the test where Mooncake can't be had, and says why; in CI that is a failure."""
    try:
        master_binary()
        import mooncake.store  # noqa: F401 - the import is the question
    except (tl.ConfigError, ImportError) as error:
        reason = f"no Mooncake here: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@contextmanager
def cluster(*, segment: str | None = None, lease_ttl_ms: int = 10_000, **master: object) -> Iterator[Master]:
    """A master, and with `segment` a process that owns one of that size."""
    require_mooncake()
    with Master(lease_ttl_ms=lease_ttl_ms, **master) as running:  # type: ignore[arg-type]
        if segment is None:
            yield running
            return
        with SegmentOwner(running.url(segment=segment, local_buffer="16MiB")):
            yield running
