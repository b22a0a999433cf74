"""The engines that a benchmark may name, among them a Mooncake cluster that it starts and stops itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tensorlease as tl
from bench.cluster import Master, SegmentOwner
from tensorlease.bench.opening import CAPACITY_FACTOR, EngineChoice
from tensorlease.mooncake_master import master_binary
from tensorlease.sizes import MIB

#: The engine that is no URL: a cluster on this machine.
MOONCAKE = "mooncake"
#: Longer than any read of a benchmark takes, so that none ends because its lease did.
_LEASE_TTL_MS = 60_000
_SEGMENT_SLACK_BYTES = 64 * MIB


@dataclass(frozen=True)
class Engine(EngineChoice):
    """A URL, or `mooncake`.

    `owner`: the process that the segment of that cluster belongs to, this one (`same`) or another one (`other`).
    """

    owner: str = "same"

    @property
    def is_mooncake(self) -> bool:
        """Are the objects in Mooncake, whoever started it?"""
        return self.engine == MOONCAKE or self.names_a_cluster

    def require_valid(self) -> None:
        if self.owner == "other" and self.engine != MOONCAKE:
            raise tl.ConfigError(f"--owner other needs --engine {MOONCAKE}; the objects of a URL are where that says")
        if self.engine == MOONCAKE:
            master_binary()
        else:
            super().require_valid()

    def as_json(self) -> dict[str, object]:
        owner = {"owner": self.owner} if self.engine == MOONCAKE else {}
        return super().as_json() | owner

    def try_to_open(self, readers: int) -> None:
        # A cluster is started within the first second anyway, and one more would cost several.
        if self.engine != MOONCAKE:
            super().try_to_open(readers)

    @contextmanager
    def url(self, object_bytes: int) -> Iterator[str]:
        if self.engine != MOONCAKE:
            with super().url(object_bytes) as url:
                yield url
            return
        # Fifteen lines per client would drown the progress. A level that the user set stays.
        os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
        segment = round(object_bytes * CAPACITY_FACTOR) + _SEGMENT_SLACK_BYTES
        with Master(lease_ttl_ms=_LEASE_TTL_MS) as master:
            if self.owner == "same":
                yield master.url(segment=segment, **self.pool())
                return
            with SegmentOwner(master.url(segment=segment, local_buffer="16MiB")):
                yield master.url(**self.pool())
