"""A host's daemon with Mooncake over RDMA behind it: all processes of the host share the one registration that the daemon made."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import mooncake.store  # type: ignore[import-untyped]
import numpy as np
import pytest
from conftest import packets, rdma_url
from host_rig import WITHOUT_TORCH, Served, eventually, place, served
from tensorlease._core._tests import conformance_checks, run_conformance_check
from test_conformance import FULL_BYTES, OF_A_FULL_STORE
from test_registrations import ARRAYS, HOT_PATHS, ROUNDS, get_tensors, put_tensors
from watched_store import WatchedStore, totals

import tensorlease as tl
from bench.cluster import Master
from tensorlease._core import HostDaemon
from tensorlease.host import ENDED, EXIT_HANGS, HANGS

MIB = 1 << 20
ARENA_BYTES = 96 * MIB
#: The emulated device takes a second or so for it, in which its reader is killed.
LARGE_BYTES = 32 * MIB
#: A transfer may end before its reader is dead; then another one is killed.
KILLS_MAX = 5


@contextlib.contextmanager
def relaying(url: str) -> Iterator[Served]:
    """A daemon with that store behind it, in a process of its own."""
    with place() as folder, served(folder / "host.sock", "--max-bytes", str(ARENA_BYTES), "--engine", url) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def daemon(master: Master) -> Iterator[Served]:
    with relaying(rdma_url(master)) as running:
        yield running


@pytest.mark.parametrize("check", [check for check in conformance_checks() if check not in OF_A_FULL_STORE])
def test_conformance_behind_a_daemon(daemon: Served, check: str) -> None:
    run_conformance_check(check, daemon.url, capacity=None, key_prefix=f"host/{check}/")


@pytest.mark.parametrize("check", OF_A_FULL_STORE)
def test_conformance_of_a_full_store_behind_a_daemon(empty_master: Master, check: str) -> None:
    with relaying(rdma_url(empty_master, segment=FULL_BYTES)) as daemon:
        run_conformance_check(check, daemon.url, capacity=FULL_BYTES, key_prefix=f"{check}/")
        # In order, so that its segment goes with it.
        assert ENDED in daemon.end().splitlines()


@pytest.fixture(scope="module")
def watched(master: Master) -> Iterator[tuple[str, WatchedStore]]:
    """The URL of a daemon that runs in this process, and the Mooncake object of its engine."""
    with place() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(mooncake.store, "MooncakeDistributedStore", WatchedStore)
        made = len(WatchedStore.made)
        socket = str(folder / "host.sock")
        running = HostDaemon.start(socket=socket, max_bytes=ARENA_BYTES, idle_seconds=None, engine=rdma_url(master))
        (store,) = WatchedStore.made[made:]
        yield f"host://{socket}", store
        running.stop_or_exit(EXIT_HANGS, HANGS)
        WatchedStore.made.clear()


def test_a_daemon_registers_its_memory_once(watched: tuple[str, WatchedStore]) -> None:
    _, mooncake_store = watched
    assert mooncake_store.register_calls == 1
    assert list(mooncake_store.regions.values()) == [ARENA_BYTES]


# Nothing is left to the first call of a client: its memory was registered before it came.
PATHS: dict[str, Callable[[tl.Store], None]] = {
    **HOT_PATHS,
    "get_tensors_register_per_call": get_tensors("register-per-call"),
}


@pytest.mark.parametrize("path", PATHS)
def test_no_call_of_a_client_registers_anything(watched: tuple[str, WatchedStore], path: str) -> None:
    url, mooncake_store = watched

    def work() -> None:
        # Two clients: the second one's memory is not the first one's.
        for _ in range(2):
            with tl.open(url, max_bytes="32MiB") as store:
                put_tensors(store)
                for _ in range(ROUNDS):
                    PATHS[path](store)
                assert store.stats()["fallback_reads"] == store.stats()["fallback_writes"] == 0

    before, transfers = packets(), len(mooncake_store.reads) + len(mooncake_store.writes)
    calls = mooncake_store.registering(work)
    totals.hot_path_register_calls += calls
    assert calls == 0
    assert len(mooncake_store.reads) + len(mooncake_store.writes) > transfers, "it is this object that moves the bytes"
    assert packets() - before >= 2 * sum(array.nbytes for array in ARRAYS) // 4096
    assert mooncake_store.outside_one_registration(mooncake_store.reads + mooncake_store.writes) == []


READS = """
import numpy as np
store = tl.open(sys.argv[1], max_bytes="40MiB")
print("ready", flush=True)
sys.stdin.readline()
store.get(["host/large"], [(int(sys.argv[2]),)], [np.uint8], delivery="leased")
print("done", flush=True)
"""


def killed_in_a_transfer(daemon: Served) -> bool:
    """A client's process is killed while the engine writes to its memory. False: the transfer was over by then."""
    text = f"{WITHOUT_TORCH}import tensorlease as tl\n{READS}"
    command = [sys.executable, "-c", text, daemon.url, str(LARGE_BYTES)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        eventually("the transfer", lambda: any(row["in_flight_bytes"] for row in daemon.clients()))
    finally:
        process.kill()
        process.communicate()
    eventually("the end of its session", lambda: daemon.clients() == [])
    return bool(daemon.report()["quarantined_bytes"] >= LARGE_BYTES)


def test_memory_of_a_client_killed_in_a_transfer_is_nobodys_until_the_transfer_has_ended(daemon: Served) -> None:
    eventually("an arena that nobody uses", lambda: daemon.report()["held_bytes"] == 0)
    with tl.open(daemon.url, max_bytes=ARENA_BYTES) as store:
        store.put(["host/large"], [np.full(LARGE_BYTES, 9, np.uint8)])
        assert any(killed_in_a_transfer(daemon) for _ in range(KILLS_MAX)), "each transfer was over too soon"
        others = []
        with pytest.raises(tl.ArenaExhausted):
            while True:
                array = store.empty((MIB,), np.uint8)
                array[:] = 0x5A
                others.append(array)
        eventually("the end of the transfer", lambda: daemon.report()["quarantined_bytes"] == 0)
        assert others
        assert all((array == 0x5A).all() for array in others)
        del array, others
        (found,) = store.get(["host/large"], [(LARGE_BYTES,)], [np.uint8], timeout=60)
        assert (found == 9).all()
        store.remove(["host/large"])
        assert daemon.report()["register_calls"] == 1
