"""What the tests of tensorlease.transfer_queue share: both clients on a real Mooncake, a Ray cluster, and jobs in processes of their own."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tensorlease as tl
from tensorlease.mooncake_master import master_binary

if TYPE_CHECKING:
    from bench.cluster import Master

HERE = Path(__file__).resolve().parent
RELEASED, OURS = "released", "ours"
CLIENTS = (RELEASED, OURS)
RAY_START_SECONDS = 90.0
RAY_STOP_SECONDS = 20.0
JOB_SECONDS = 240.0
#: A cluster of this machine that lives as long as the tests: no reports, and no token in the home folder.
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
#: How much of a process's log a failure shows.
LOG_CHARACTERS = 6000
SEGMENT_BYTES = 64 << 20
LOCAL_BUFFER_BYTES = 32 << 20


def require_transfer_queue() -> None:
    """Skips the test or the file where TransferQueue, Ray or Mooncake can't be had, and says why; in CI that is a failure."""
    try:
        master_binary()
        import mooncake.store  # noqa: F401 - the imports are the question
        import ray  # noqa: F401

        # This folder has that name too, and would do for a bare import.
        from transfer_queue import __version__  # noqa: F401
    except (tl.ConfigError, ImportError) as error:
        reason = f"no TransferQueue here: {error}; pip install -r requirements-transfer-queue.txt"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason, allow_module_level=True)


def backend_config(address: str, **settings: Any) -> dict[str, Any]:
    """`backend.MooncakeStore` of a small job; `tensorlease=` for settings of ours."""
    return {
        "auto_init": False,
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": address,
        "local_hostname": "127.0.0.1",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": SEGMENT_BYTES,
        "local_buffer_size": LOCAL_BUFFER_BYTES,
        **settings,
    }


def client_class(which: str) -> type[Any]:
    if which == RELEASED:
        from transfer_queue.storage.clients.mooncake_client import MooncakeStoreClient

        return MooncakeStoreClient  # type: ignore[no-any-return]
    from tensorlease.transfer_queue import TensorleaseStoreClient

    return TensorleaseStoreClient


@contextmanager
def opened_client(which: str, master: Master, **settings: Any) -> Iterator[Any]:
    """A client of either kind, as TransferQueue's factory would make it."""
    settings = {"tensorlease": {"max_bytes": "64MiB"}} | settings if which == OURS else settings
    client = client_class(which)(backend_config(master.address, **settings))
    try:
        yield client
    finally:
        client.close()


def on_both(*, released_fails_with: type[BaseException] | tuple[type[BaseException], ...], why: str) -> Any:
    """One test for both clients: the released one has the defect, so it must fail in this way; ours must pass."""
    fails = pytest.mark.xfail(strict=True, raises=released_fails_with, reason=why)
    return pytest.mark.parametrize("which", [pytest.param(RELEASED, marks=fails), OURS])


def error_of(call: Callable[[], object]) -> Exception | None:
    """What it raises."""
    try:
        call()
    except Exception as error:
        return error
    return None


# ---- jobs ------------------------------------------------------------------------------------------------------------------------


class ScriptFailed(Exception):
    """A process of the tests failed. Like `CaseFailed` no AssertionError: it must not pass for the difference that a test looks for."""


class CaseFailed(Exception):
    """A case of a job raised; the message is its traceback."""


@dataclass(frozen=True)
class Outcome:
    """What one case of a job came to."""

    value: Any
    #: With its traceback; None where it passed.
    error: str | None

    def passed(self) -> Any:
        """The value; the test fails with the case's error."""
        if self.error is not None:
            raise CaseFailed(self.error)
        return self.value


Outcomes = dict[str, Outcome]


def run_job(
    flavour: str,
    cases: Sequence[str],
    *,
    ray_address: str,
    master: Master,
    python_path: Path | None = None,
    settings: dict[str, Any] | None = None,
    install: dict[str, Any] | None = None,
    backend: dict[str, Any] | None = None,
) -> Outcomes:
    """A Ray job of its own that runs the cases named: see queue_job.py.

    :param settings: under `backend.MooncakeStore.tensorlease`
    :param install: arguments of `tensorlease.transfer_queue.install` in the driver
    :param backend: under `backend.MooncakeStore`
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes"
        arguments = {
            "flavour": flavour,
            "cases": list(cases),
            "ray_address": ray_address,
            "master": master.address,
            "settings": settings or {},
            "install": install or {},
            "backend": backend or {},
            "python_path": None if python_path is None else str(python_path),
            "out": str(out),
        }
        (Path(folder) / "arguments").write_bytes(pickle.dumps(arguments))
        text = run_script(HERE / "queue_job.py", str(Path(folder) / "arguments"), python_path=python_path)
        if not out.exists():
            raise ScriptFailed(f"the job ended without outcomes:\n{text}")
        loaded: dict[str, tuple[Any, str | None]] = pickle.loads(out.read_bytes())
    return {name: Outcome(*both) for name, both in loaded.items()}


def run_script(
    script: Path,
    *arguments: str,
    python_path: Path | None = None,
    environment: dict[str, str] | None = None,
    timeout: float | None = None,
) -> str:
    """Runs it to its end and returns what it wrote; the test fails when it does, or takes too long."""
    paths = [str(path) for path in (python_path, os.environ.get("PYTHONPATH")) if path]
    variables = {**os.environ, **RAY_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
    seconds = timeout or JOB_SECONDS
    # A session of its own: what it has forked, and what hangs with it, ends too.
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        failed = f"ended with {process.returncode}" if process.returncode else None
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        failed = f"did not end within {seconds:g} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    text = output.decode(errors="replace")
    if failed is not None:
        raise ScriptFailed(f"{script.name} {failed}:\n{text[-LOG_CHARACTERS:]}")
    return text


class RayCluster:
    """Ray in a process of its own, and with it everything that it starts."""

    def __init__(self) -> None:
        # Sockets lie in it, and their paths must be short.
        self._folder = tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process that writes it
        environment = {**os.environ, **RAY_ENVIRONMENT}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "ray_holder.py"), self._folder.name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            self.address = self._wait_for_address()
        except BaseException:
            self.stop()
            raise

    def _wait_for_address(self) -> str:
        lines: queue.Queue[bytes] = queue.Queue()
        output = self._process.stdout
        assert output is not None
        threading.Thread(target=lambda: [lines.put(line) for line in output], daemon=True).start()
        deadline = time.monotonic() + RAY_START_SECONDS
        while (left := deadline - time.monotonic()) > 0 and self._process.poll() is None:
            try:
                word, _, address = lines.get(timeout=min(left, 1.0)).decode().strip().partition(" ")
            except queue.Empty:
                continue
            if word == "address":
                return address
        self._log.seek(0)
        raise ScriptFailed(f"Ray did not start: {self._log.read().decode(errors='replace')[-LOG_CHARACTERS:]}")

    def stop(self) -> None:
        """Ends it; what it started ends with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(RAY_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
