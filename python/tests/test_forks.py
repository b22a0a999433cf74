"""What a fork does to a host's memory: what is refused, and what the one who forks is told."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from conftest import RunPython
from host_rig import Served, place, served

import tensorlease as tl

pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Served]:
    with place() as folder, served(folder / "host.sock", "--max-bytes", "128MiB", "--keep") as daemon:
        yield daemon


def test_a_host_refuses_a_fork_that_inherits(daemon: Served) -> None:
    with pytest.raises(tl.ConfigError, match="spawn") as caught:
        tl.open(daemon.url, max_bytes="16MiB", fork="inherit")
    assert "DataLoader" in str(caught.value)
    with pytest.raises(tl.ConfigError, match="fork"):
        tl.open(f"{daemon.url}?faults=slow:1ms", max_bytes="16MiB", fork="inherit")
    for allowed in (None, "exclude"):
        tl.open(daemon.url, max_bytes="16MiB", fork=allowed).close()
    assert daemon.clients() == []


def test_elsewhere_a_child_inherits_unless_it_is_told_otherwise() -> None:
    code = """
import os, sys
import tensorlease as tl, numpy as np
fork = {None: {}, "inherit": {"fork": "inherit"}, "exclude": {"fork": "exclude"}}[sys.argv[1] if sys.argv[1:] else None]
store = tl.open("embedded://?capacity=32MiB", max_bytes="16MiB", **fork)
store.put(["a"], [np.ones(100_000)])
(array,) = store.get(["a"], [(100_000,)], [np.float64], delivery="leased")
if os.fork() == 0:
    os._exit(0 if array[5] == 1 else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) % 256)
"""
    for arguments, status in (([], 0), (["inherit"], 0), (["exclude"], 256 - signal.SIGSEGV)):
        ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
        assert ended.returncode == status, ended.stderr


WARNED = """
import logging, os, sys
import tensorlease as tl, numpy as np
logging.basicConfig(level=logging.WARNING)
def fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()
store = tl.open(URL, max_bytes="16MiB")
store.put(["a"], [np.ones(100_000)])
copied = store.get(["a"], [(100_000,)], [np.float64], delivery="copied")
fork()
print("nothing is missing in the child so far", file=sys.stderr)
HELD
fork()
fork()
"""
HOLDS = {
    "a lease": 'held = store.get(["a"], [(100_000,)], [np.float64], delivery="leased")',
    "a view": 'held = store.get(["a"], view=True)',
    "a tensor to write": "held = store.empty((10, 10), np.float32)",
    "a lease of a closed store": 'held = store.get(["a"], [(100_000,)], [np.float64], delivery="leased"); store.close()',
    "a view of a store that is gone": 'held = store.get(["a"], view=True); del store',
}


@pytest.mark.parametrize("held", HOLDS.values(), ids=HOLDS.keys())
def test_a_fork_while_a_hosts_memory_is_held_warns_once(run_python: RunPython, daemon: Served, held: str) -> None:
    ended = run_python(WARNED.replace("URL", repr(daemon.url)).replace("HELD", held))
    before, _, after = ended.stderr.partition("nothing is missing in the child so far\n")
    assert "fork" not in before
    (line,) = [line for line in after.splitlines() if "fork while" in line]
    assert line.startswith("WARNING:tensorlease:")
    assert "DataLoader" in line
    assert 'multiprocessing_context="spawn"' in line
