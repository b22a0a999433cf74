"""What the tests on soft-RoCE share: one cluster, the device and its counters. ``make test-rdma`` runs them, in a guest that has the device."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# Torch takes a minute to import in the guest; numpy arrays go the same ways.
sys.modules["torch"] = None  # type: ignore[assignment]
FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
# The rig of daemons is that of the other tests. What has the same name there is not meant.
sys.path.append(str(FOLDER.parents[1] / "python" / "tests"))
# The cluster is that of the benchmarks.
sys.path.append(str(FOLDER.parents[1]))

import mooncake.store  # type: ignore[import-untyped]
import pytest
from watched_store import WatchedStore, totals

import tensorlease as tl
from bench import cluster
from bench.cluster import Master, SegmentOwner

DEVICE = os.environ.get("TENSORLEASE_RDMA_DEVICE", "")
ADDRESS = os.environ.get("TENSORLEASE_RDMA_ADDRESS", "")
SEGMENT = "128MiB"
BEGIN = time.monotonic()
# The guest is an emulated machine that shares its processors with whatever else runs. Mooncake's worker threads spin: a second one would take
# one of the guest's two processors from what moves the bytes.
cluster.START_SECONDS = 60.0
os.environ.setdefault("MC_WORKERS_PER_CTX", "1")

if not DEVICE:
    raise pytest.UsageError("these tests need an RDMA device; run them with make test-rdma")

Open = Callable[..., tuple[tl.Store, WatchedStore]]


def packets(device: str = DEVICE) -> int:
    """Packets that the device has received since it was made."""
    return int(Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/rcvd_pkts").read_text())


def rdma_url(master: Master, *, device: str = DEVICE, address: str = ADDRESS, **options: object) -> str:
    """A store URL of the cluster, over RDMA."""
    options.setdefault("local_buffer", "1MiB")
    return master.url(protocol="rdma", device=device, local_hostname=address, **options)


@pytest.fixture(scope="session")
def master() -> Iterator[Master]:
    """A cluster whose memory is another process's."""
    with Master() as running, SegmentOwner(rdma_url(running, segment=SEGMENT)):
        yield running


@pytest.fixture(scope="session")
def empty_master() -> Iterator[Master]:
    """A cluster without memory: who brings some has it alone, and takes it away in order."""
    with Master() as running:
        yield running


@pytest.fixture(scope="module")
def open_watched(master: Master) -> Iterator[Open]:
    """Opens stores whose Mooncake object is watched; closes them at the end of the module."""
    opened: list[tl.Store] = []

    def open_one(*, url: dict[str, object] | None = None, **options: object) -> tuple[tl.Store, WatchedStore]:
        made = len(WatchedStore.made)
        store = tl.open(rdma_url(master, **(url or {})), **options)  # type: ignore[arg-type]
        opened.append(store)
        (watched,) = WatchedStore.made[made:]
        return store, watched

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mooncake.store, "MooncakeDistributedStore", WatchedStore)
        yield open_one
        for store in opened:
            store.close()
        # The list would keep Mooncake's memory of each.
        WatchedStore.made.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the run moved, for people and for the log."""
    terminalreporter.write_line(
        f"test-rdma: {totals.reads} reads, {totals.bytes} bytes, {len(totals.odd_addresses)} odd addresses (beside the conformance suite);"
        f" {packets()} packets in all, {totals.hot_path_register_calls} register calls on hot paths, {time.monotonic() - BEGIN:.0f} s of tests"
    )
