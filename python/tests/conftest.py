"""What the tests share: a small store, a fresh interpreter, and a place of their own for sockets and ports."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tensorlease as tl
from tensorlease import mooncake_master

URL = "embedded://?capacity=256MiB"
#: Makes `import torch` fail as where it is not installed.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"

# A shell starts what runs in the background with SIGINT ignored, and nohup with SIGHUP: tests send both, to processes that inherit this.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# Threads of torch spin while they wait for each other, which on a busy machine takes longer than the work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

RunPython = Callable[..., subprocess.CompletedProcess[str]]


def pytest_configure(config: pytest.Config) -> None:
    """Gives this process its own runtime folder and ports.

    Tests then meet neither the daemon of the user who runs them nor what another worker of pytest-xdist has started.
    """
    folder = tempfile.mkdtemp(prefix="tl-")
    os.environ["XDG_RUNTIME_DIR"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        ports, count = mooncake_master._QUIET_PORTS, int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        mooncake_master._QUIET_PORTS = ports[int(worker.removeprefix("gw")) :: count]


@pytest.fixture(scope="session")
def opened_once() -> Iterator[tl.Store]:
    """Opening makes and fills memory, which takes longer than most tests."""
    # The first nested tensor of a process takes seconds, which is no fault of the test that makes it.
    tl.warm_up_jagged()
    # What the imports made lives for good: each collection below would look at all of it again.
    gc.collect()
    gc.freeze()
    with tl.open(URL, max_bytes="64MiB") as opened:
        yield opened
    gc.unfreeze()


@pytest.fixture
def store(opened_once: tl.Store) -> Iterator[tl.Store]:
    """An empty store that must have everything back at the end of the test, and must still work then."""
    yield opened_once
    assert_all_given_back(opened_once)
    opened_once.clear()
    opened_once.put(["still works"], ["yes"])
    assert opened_once.get(["still works"]) == ["yes"]
    opened_once.clear()


def assert_all_given_back(store: tl.Store) -> None:
    """Nothing of the arena is held any more."""
    gc.collect()
    stats = store.stats()
    for name in ["leased_bytes", "in_flight_bytes", "quarantined_bytes", "copy_cache_held_bytes"]:
        assert stats[name] == 0, name


@pytest.fixture
def run_python() -> RunPython:
    """Runs code in a fresh interpreter; the test fails when that does."""

    def run(code: str, *, torch: bool = False, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        text = code if torch else WITHOUT_TORCH + code
        environment = {name: value for name, value in os.environ.items() if name != "TENSORLEASE_URL"}
        options.setdefault("env", environment)
        options.setdefault("timeout", 50)
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, **options)
        if check:
            assert done.returncode == 0, f"rc {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
