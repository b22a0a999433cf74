"""What is refused over RDMA, by whom, and what the user is told."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import Open, packets, rdma_url
from host_rig import Served, place, served

import tensorlease as tl
from bench.cluster import Master

TRANSFER_FAIL = -800
PAGE = mmap.PAGESIZE
SECOND_DEVICE, SECOND_ADDRESS = "rxe1", "10.77.1.1"
LIMITED = Path(__file__).parent / "open_with_little_locked_memory.py"


def test_mooncake_refuses_a_destination_that_is_not_registered_and_leaves_it_alone(open_watched: Open) -> None:
    store, mooncake = open_watched(max_bytes="16MiB")
    value = np.arange(PAGE, dtype=np.uint8)
    store.put(["object"], [value])
    memory = np.frombuffer(mmap.mmap(-1, 3 * PAGE), np.uint8)
    addr = memory.ctypes.data
    assert mooncake.batch_get_into(["object"], [addr], [PAGE]) == [TRANSFER_FAIL]
    assert mooncake.register_buffer(addr, PAGE) == 0
    assert mooncake.batch_get_into(["object"], [addr + 1], [PAGE]) == [TRANSFER_FAIL], "one byte past the end"
    assert not memory.any()
    assert mooncake.batch_get_into(["object"], [addr], [PAGE]) == [PAGE]
    np.testing.assert_array_equal(memory[:PAGE], value)
    assert not memory[PAGE:].any()
    mooncake.unregister_buffer(addr)


def test_the_bytes_of_a_read_go_through_the_rdma_device(open_watched: Open) -> None:
    store, _ = open_watched(max_bytes="16MiB")
    value = np.arange(1 << 18, dtype=np.int32)
    store.put(["sent"], [value])
    before = packets()
    assert store.contains(["sent"] * 50) == [True] * 50
    asked = packets() - before
    (found,) = store.get(["sent"], [value.shape], np.int32)
    np.testing.assert_array_equal(found, value)
    # A packet carries 4,096 bytes at most. Questions go to the master, over TCP.
    assert packets() - before - asked >= value.nbytes // 4096
    assert asked < 10


def test_too_little_locked_memory_is_an_error_that_names_the_limit(master: Master) -> None:
    # Root may lock any amount unless it lacks CAP_IPC_LOCK, as in a container.
    limits = ["setpriv", "--bounding-set=-ipc_lock", "prlimit", f"--memlock={64 << 10}:{64 << 20}"]
    command = [*limits, sys.executable, str(LIMITED), rdma_url(master, local_buffer="1MiB")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    print(json.dumps(told, indent=1))
    for limit in ["64 KiB", "4 MiB"]:
        assert told[limit]["error"] == "EngineUnavailable"
        assert "ulimit -l" in told[limit]["message"]
    # Both the write and the read went another way, and were counted with the reason.
    assert told["12 MiB"] == {"error": None, "fallbacks": {"fallback_slab_not_registered": 2}}
    assert told["64 MiB"] == {"error": None, "fallbacks": {}}


def test_the_locked_memory_of_a_daemon_is_what_is_registered_and_one_page(master: Master) -> None:
    arena, local_buffer = 16 << 20, 1 << 20

    @contextmanager
    def under(limit: int) -> Iterator[Served]:
        with place() as folder:
            arguments = ["--max-bytes", str(arena), "--engine", rdma_url(master, local_buffer=local_buffer)]
            limits = ["setpriv", "--bounding-set=-ipc_lock", "prlimit", f"--memlock={limit}:{limit}"]
            with served(folder / "host.sock", *arguments, under=limits) as daemon:
                yield daemon

    with under(arena + local_buffer + PAGE) as daemon:
        assert daemon.report()["register_calls"] == 1
    with pytest.raises(AssertionError, match="the daemon ended") as ended, under(arena + local_buffer):
        pass
    assert "ulimit -l" in str(ended.value)


@pytest.fixture
def second_device() -> Iterator[str]:
    """A device that a test may take away. It is there and has its address when this returns."""
    _run("ip", "link", "add", "dummy1", "mtu", "4500", "type", "dummy")
    _run("ip", "addr", "add", f"{SECOND_ADDRESS}/24", "dev", "dummy1")
    _run("ip", "link", "set", "dummy1", "up")
    _run("rdma", "link", "add", SECOND_DEVICE, "type", "rxe", "netdev", "dummy1")
    gids = Path(f"/sys/class/infiniband/{SECOND_DEVICE}/ports/1/gids")
    until = time.monotonic() + 10
    while not any("ffff:0a4d:0101" in (gids / str(at)).read_text() for at in range(4)):
        assert time.monotonic() < until, "the device never got its address"
        time.sleep(0.05)
    yield SECOND_DEVICE
    _run("ip", "link", "delete", "dummy1")


def test_a_device_that_is_gone_is_an_error_at_open_and_not_a_way_over_tcp(master: Master, second_device: str) -> None:
    url = rdma_url(master, device=second_device, address=SECOND_ADDRESS)
    tl.open(url, max_bytes="16MiB").close()
    _run("rdma", "link", "delete", second_device)
    with pytest.raises(tl.EngineUnavailable, match="rxe1") as raised:
        tl.open(url, max_bytes="16MiB")
    assert "protocol rdma" in str(raised.value)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=10)
