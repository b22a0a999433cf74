"""Processes of a Mooncake cluster killed in the middle of a transfer: what those that live on see, and that they go on.

Masters and owners that die stand in test_mooncake_outages.py.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from mooncake_rig import cluster, owner_of, paused, wait_until
from tensors import assert_same

import tensorlease as tl
from bench.cluster import Master, SegmentOwner

pytestmark = pytest.mark.freezes

ROW = (65536,)
KEYS = [f"row {index}" for index in range(32)]
#: Of each call of a survivor.
DEADLINE_SECONDS = 10.0
#: Long enough for a call to be inside Mooncake.
SOON_SECONDS = 0.7


def numbered() -> torch.Tensor:
    """A row that torch can add to and compare."""
    return torch.arange(float(ROW[0]))


READER = """
import sys, tensorlease as tl
store = tl.open(sys.argv[1], max_bytes="64MiB")
keys = sys.argv[2].split(",")
print("running", flush=True)
while True:
    store.get(keys, [(65536,)] * len(keys), "float32", delivery="leased")
"""
WRITER = """
import sys, torch, tensorlease as tl
store = tl.open(sys.argv[1], max_bytes="64MiB")
keys = sys.argv[2].split(",")
print("running", flush=True)
while True:
    store.put(keys, [torch.full((65536,), -1.0)] * len(keys))
"""


@pytest.fixture
def stalling() -> Iterator[tuple[Master, SegmentOwner]]:
    # A master that forgets half-written objects within seconds, not minutes.
    forgetful = ["-put_start_discard_timeout_sec=2", "-put_start_release_timeout_sec=4", "-client_ttl=60"]
    with cluster(arguments=forgetful) as master, owner_of(master, "64MiB") as owner:
        yield master, owner


@contextmanager
def running(program: str, master: Master, keys: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that works on the keys without end, killed afterwards if it was not."""
    command = [sys.executable, "-c", program, master.url(local_buffer="16MiB"), ",".join(keys)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("hangs", [True, False], ids=["transfer that hangs", "transfers that go on"])
def test_a_reader_killed_in_mid_transfer_harms_nobody(stalling: tuple[Master, SegmentOwner], hangs: bool) -> None:
    master, owner = stalling
    values = [numbered() + index for index in range(len(KEYS))]
    with tl.open(master.url(local_buffer="16MiB"), max_bytes="64MiB") as store:
        store.put(KEYS, values)
        with running(READER, master, KEYS) as reader:
            time.sleep(SOON_SECONDS)
            if hangs:
                with paused(owner):
                    time.sleep(SOON_SECONDS)
                    reader.kill()
                    reader.wait()
            else:
                reader.kill()
                reader.wait()
        out = store.get(KEYS, [ROW] * len(KEYS), torch.float32, timeout=DEADLINE_SECONDS)
        for found, expected in zip(out, values, strict=True):
            assert_same(found, expected)
        assert store.remove(KEYS, timeout=DEADLINE_SECONDS) == len(KEYS)
        assert store.stats()["retries"] == 0


@pytest.mark.timeout(150)
@pytest.mark.parametrize("replaced", [False, True], ids=["new keys", "keys that are replaced"])
def test_a_writer_killed_in_mid_put_leaves_no_half_object(
    stalling: tuple[Master, SegmentOwner], replaced: bool
) -> None:
    master, owner = stalling
    values = [numbered() + index for index in range(len(KEYS))]
    with tl.open(master.url(local_buffer="16MiB"), max_bytes="64MiB") as store:
        if replaced:
            store.put(KEYS, values)
        # A writer that has stored something before, so that it hangs in a put and not in making a connection.
        with (
            running(WRITER, master, [f"other {key}" for key in KEYS[:2]]) as idle,
            running(WRITER, master, KEYS) as writer,
        ):
            time.sleep(SOON_SECONDS)
            with paused(owner):
                time.sleep(SOON_SECONDS)
                for process in [idle, writer]:
                    process.kill()
                    process.wait()
        for key, value in zip(KEYS, values, strict=True):
            seen = whole_or_typed_error(store, key)
            # The writer's object whole, or the one before it, or none: never a part.
            assert seen is None or torch.equal(seen, torch.full(ROW, -1.0)) or (replaced and torch.equal(seen, value))
        wait_until(lambda: stores(store, values), "the half-written objects have been forgotten")
        for found, expected in zip(store.get(KEYS, [ROW] * len(KEYS), torch.float32), values, strict=True):
            assert_same(found, expected)
        stats = store.stats()
        assert stats["quarantined_bytes"] == stats["abandoned_running_calls"] == 0


def whole_or_typed_error(store: tl.Store, key: str) -> torch.Tensor | None:
    """What a read gives; None: an error of the kinds that the documentation names, in time."""
    started = time.monotonic()
    try:
        (found,) = store.get([key], [ROW], torch.float32, timeout=DEADLINE_SECONDS)
    except (tl.KeyNotFound, tl.TransferError):
        found = None
    assert time.monotonic() - started < DEADLINE_SECONDS
    return found


def stores(store: tl.Store, values: list[torch.Tensor]) -> bool:
    """Does a put of all keys work?"""
    try:
        store.put(KEYS, values, timeout=DEADLINE_SECONDS)
    except (tl.TransferError, tl.StoreFull):
        return False
    return True
