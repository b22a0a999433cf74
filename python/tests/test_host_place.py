"""Where a host's daemon listens: what lies there already, who took it away, and who starts the daemon."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_rig import place

import tensorlease as tl
from tensorlease import host

SECONDS = 60


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
