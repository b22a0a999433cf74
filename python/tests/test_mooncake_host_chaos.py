"""Clients of a daemon with Mooncake behind it are killed at random while its transfers write late: nobody reads a wrong byte."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import mooncake_host_worker as worker
import pytest
from host_rig import eventually, place, served
from mooncake_rig import cluster

import tensorlease as tl

np = pytest.importorskip("numpy")

WORKERS = 3
KILLS = 8
#: A read of a key fails now and then as one that may still write, and writes garbage a little later.
FAULTS = "late:60ms:0.02:seed5"


def start(url: str, seed: int) -> subprocess.Popen[str]:
    """A worker that has opened its store."""
    command = [sys.executable, str(Path(worker.__file__)), url, str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_no_killed_client_and_no_late_write_changes_a_byte_of_others() -> None:
    random_ = random.Random(11)
    with (
        cluster(segment="256MiB") as master,
        place() as folder,
        served(
            folder / "host.sock", "--max-bytes", "1GiB", "--engine", master.url(local_buffer="16MiB", faults=FAULTS)
        ) as daemon,
        tl.open(daemon.url, max_bytes="64MiB") as store,
    ):
        store.put([f"key/{number}" for number in range(worker.KEYS)], [worker.value(n) for n in range(worker.KEYS)])
        own = store.empty((8 << 20,), np.uint8)
        own[:] = 0x5A
        workers = [start(daemon.url, seed) for seed in range(WORKERS)]
        try:
            for kill in range(KILLS):
                time.sleep(random_.uniform(0.1, 0.6))
                victim = workers.pop(0)
                assert victim.poll() is None, f"a worker ended by itself with {victim.returncode}"
                victim.kill()
                victim.communicate()
                workers.append(start(daemon.url, WORKERS + kill))
            # What the last ones left late is written by then.
            time.sleep(0.3)
            for process in workers:
                assert process.poll() is None, f"a worker ended by itself with {process.returncode}"
        finally:
            for process in workers:
                process.kill()
                process.communicate()
        eventually("the end of their sessions", lambda: daemon.clients() == [])
        assert (own == 0x5A).all()
        for number in range(worker.KEYS):
            shape = (worker.length(number),)
            (array,) = store.get([f"key/{number}"], [shape], [np.uint8], timeout=30)
            assert np.array_equal(array, worker.value(number))
        report = daemon.report()
        assert report["late_bytes"] > 0, "some transfers of the dead did write late"
        assert report["quarantined_bytes"] == report["late_bytes"], "all others have ended"
        assert report["register_calls"] == 1
