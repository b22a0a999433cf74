"""Where a host's daemon listens: what lies there already, who took it away, and who starts the daemon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_rig import Served, eventually, place, served

import tensorlease as tl
from bench.cluster import stop_process
from tensorlease import host

SECONDS = 60

OPENS = """
import sys; sys.modules["torch"] = None
import tensorlease as tl
try:
    tl.open().close()
    print("opened")
except tl.Error as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this user's daemon, which no other test shares."""
    with place() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder / "tensorlease"


@pytest.mark.parametrize("name", ["host.sock.start", "host.log"])
def test_a_link_where_the_daemon_is_started_is_not_followed(runtime: Path, name: str) -> None:
    victim = runtime.parent / "victim.txt"
    victim.write_text("keep me")
    runtime.mkdir(mode=0o700)
    (runtime / name).symlink_to(victim)
    with pytest.raises(tl.ConfigError, match=name):
        tl.open()
    assert victim.read_text() == "keep me"


def test_a_file_at_the_place_of_a_socket_is_kept(runtime: Path) -> None:
    precious = runtime.parent / "precious.txt"
    precious.write_text("keep me")
    command = [sys.executable, "-m", "tensorlease", "serve", "--socket", str(precious)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert refused.returncode != 0
    assert "no socket" in refused.stderr
    assert precious.read_text() == "keep me"


def test_a_child_forked_while_the_daemon_is_started_keeps_nobody_from_starting_one(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []

    def start(socket: str, _: float) -> None:
        # What a child gets that is forked at this moment: the open file that is locked.
        (file,) = [
            int(name)
            for name in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{name}") and os.readlink(f"/proc/self/fd/{name}") == f"{socket}.start"
        ]
        kept.append(os.dup(file))

    monkeypatch.setattr(host, "_start", start)
    host.ensure_daemon()
    try:
        with (runtime / "host.sock.start").open("r+b") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for file in kept:
            os.close(file)


def test_a_folder_that_cannot_be_made_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/no/such/folder")
    with pytest.raises(tl.ConfigError, match="XDG_RUNTIME_DIR"):
        tl.open()


def test_a_daemon_that_cannot_have_its_memory_does_not_start_and_says_why(runtime: Path) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n{OPENS}"
    refused = subprocess.run(
        [sys.executable, "-c", limited], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert "EngineUnavailable" in refused.stdout, refused
    assert "can't be had" in refused.stdout
    assert "File too large" in refused.stdout
    # Nobody else inherits that.
    opened = subprocess.run([sys.executable, "-c", OPENS], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert opened.stdout == "opened\n", opened


@contextlib.contextmanager
def stopped(daemon: Served) -> Iterator[None]:
    stop_process(daemon.process)
    try:
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


@pytest.mark.freezes
def test_opening_a_daemon_that_is_stopped_ends_soon_and_names_its_process(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    with served(runtime / "host.sock", "--max-bytes", "16MiB") as daemon:
        for url in (None, daemon.url):
            begin = time.monotonic()
            with stopped(daemon), pytest.raises(tl.EngineUnavailable, match=f"process {daemon.process.pid}.*stopped"):
                tl.open(url)
            assert time.monotonic() - begin < 3 * host.SILENT_SECONDS


@pytest.mark.freezes
def test_calls_that_need_memory_of_a_stopped_daemon_end_at_their_time_and_work_again_later(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    with (
        served(runtime / "host.sock", "--max-bytes", "64MiB") as daemon,
        tl.open(daemon.url, max_bytes="32MiB") as store,
    ):
        store.put(["a"], [b"x" * (1 << 20)])
        (size,) = (meta["packed_size"] for meta in store.put(["b"], [b"y" * (1 << 20)]) if meta)
        begin = time.monotonic()
        with stopped(daemon):
            for delivery in ("leased", "auto"):
                with pytest.raises(tl.Timeout):
                    store.get(["b"], [(size,)], ["uint8"], delivery=delivery, timeout=0.3)
            with pytest.raises(tl.Timeout):
                store.empty((1 << 20,), "uint8", timeout=0.3)
            assert time.monotonic() - begin < 5
        assert store.get(["a"])[0] == b"x" * (1 << 20)
        made = store.empty((1 << 20,), "uint8")
        del made
        store.trim()
        eventually("what came too late to go back", lambda: daemon.report()["clients"][0]["arena_bytes"] == 0)
