"""The cluster of demos, benchmarks and tests: what it does about ports that are somebody else's."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mooncake_rig import require_mooncake, wait_until

from bench import cluster
from bench.cluster import Master, stop_process
from tensorlease.errors import ConfigError, EngineUnavailable
from tensorlease.mooncake_master import HOST, free_port
from tensorlease.processes import listens_at

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def needs_mooncake() -> None:
    require_mooncake()


@pytest.fixture
def taken() -> Iterator[int]:
    """A port where another takes connections."""
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize("which", ["rpc", "metrics"])
def test_a_master_whose_port_was_taken_before_it_listened_is_started_at_others(
    monkeypatch: pytest.MonkeyPatch, taken: int, which: str
) -> None:
    others = [free_port() for _ in range(3)]
    ports = iter([taken, *others] if which == "rpc" else [others.pop(), taken, *others])
    monkeypatch.setattr(cluster, "free_port", lambda: next(ports))
    with Master() as master:
        assert taken not in (master.port, master.metrics_port)
        assert listens_at(master.process, master.port)
        # A master that lost a port takes a second to end.
        time.sleep(1.5)
        assert master.process.poll() is None
    assert next(ports, None) is None


def test_a_master_at_a_port_of_somebody_else_is_an_error(taken: int) -> None:
    with pytest.raises(
        EngineUnavailable, match=f"mooncake_master ended with 1; something else listens on {HOST}:{taken}: "
    ) as caught:
        Master(port=taken)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_a_port_that_is_none_is_refused_at_once(port: int) -> None:
    with pytest.raises(ConfigError, match=f"port={port} is no port"):
        Master(port=port)


@pytest.mark.parametrize("lost", [0, 1], ids=["at once", "after a port was lost"])
@pytest.mark.alone
def test_a_master_outlives_the_thread_that_made_it(monkeypatch: pytest.MonkeyPatch, taken: int, lost: int) -> None:
    ports = iter([*[taken] * lost, *(free_port() for _ in range(3))])
    monkeypatch.setattr(cluster, "free_port", lambda: next(ports))
    before = threading.active_count()
    with ThreadPoolExecutor(1) as threads:
        master = threads.submit(Master).result()
    with master:
        time.sleep(0.5)
        assert threading.active_count() == before + 1, "the thread that started it stays"
        assert master.process.poll() is None
        assert listens_at(master.process, master.port)
    wait_until(lambda: threading.active_count() == before, "the thread that has kept it has ended")


def test_no_port_is_given_twice() -> None:
    ports = [free_port() for _ in range(2_000)]
    assert len(set(ports)) == len(ports)


def ran(pid: int) -> list[str]:
    """How long each thread has run, in nanoseconds."""
    threads = sorted(Path(f"/proc/{pid}/task").iterdir())
    return [(thread / "schedstat").read_text().split()[0] for thread in threads]


@pytest.mark.freezes
def test_a_process_that_was_stopped_has_stopped() -> None:
    spinning = "import threading\nfor _ in range(8): threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()"
    with subprocess.Popen([sys.executable, "-c", spinning]) as process:
        try:
            wait_until(lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 8, "it has its threads")
            stop_process(process)
            before = ran(process.pid)
            time.sleep(0.1)
            assert ran(process.pid) == before
        finally:
            process.kill()
