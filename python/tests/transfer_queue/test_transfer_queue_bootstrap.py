"""The master of a job: one that runs is used and never killed, one that is missing is started, and only that one is stopped."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mooncake_rig import cluster, free_port, wait_until
from queue_rig import HERE, OURS, on_both, require_transfer_queue, run_job, run_script

require_transfer_queue()

from omegaconf import OmegaConf

from tensorlease.mooncake_cluster import HOST
from tensorlease.transfer_queue import initialize_mooncake_storage

pytestmark = pytest.mark.timeout(180)


def answers(port: int) -> bool:
    """Does anything listen there?"""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def configuration(master: str, metadata: str = "P2PHANDSHAKE", **settings: Any) -> Any:
    """As TransferQueue passes it to a bootstrap."""
    mooncake = {"auto_init": True, "metadata_server": metadata, "master_server_address": master, **settings}
    return OmegaConf.create({"backend": {"storage_backend": "MooncakeStore", "MooncakeStore": mooncake}})


# ---- masters that run ------------------------------------------------------------------------------------------------------------


class Killed(Exception):
    """Somebody has asked for it."""


@pytest.fixture
def harmless_path(tmp_path: Path) -> Path:
    """A PATH of stand-ins: what looks for masters finds one that is no process of anybody, and what kills is only noted."""
    folder = tmp_path / "bin"
    folder.mkdir()
    killed = tmp_path / "killed"
    for name, text in {
        "pgrep": "echo 4194305",
        "pkill": f'echo "$0 $*" >> {killed}',
        "killall": f'echo "$0 $*" >> {killed}',
        "mooncake_master": "exec /bin/sleep 10",
    }.items():
        script = folder / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    return folder


@on_both(released_fails_with=Killed, why="it kills every master of the machine by name before it starts its own")
def test_a_running_master_is_never_killed(harmless_path: Path, which: str) -> None:
    killed = harmless_path.parent / "killed"
    with cluster() as master:
        # Nothing else is on this PATH: whatever the bootstrap does, no master of this machine can be meant.
        run_script(HERE / "bootstraps.py", which, master.address, environment={"PATH": str(harmless_path)}, timeout=90)
        assert answers(master.port)
    if killed.exists():
        raise Killed(killed.read_text())


def test_a_master_that_answers_is_used_as_it_is() -> None:
    with cluster() as master:
        assert initialize_mooncake_storage(configuration(master.address)) is None
        assert answers(master.port)


@pytest.mark.parametrize("listens", [False, True], ids=["taken", "another server"])
def test_an_address_that_is_no_masters_is_an_error_within_bounds_that_names_it(
    listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log of the master that could not start stays, for whoever asks why.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        if listens:
            taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=str(port)):
            initialize_mooncake_storage(configuration(f"{HOST}:{port}"))


# ---- masters that a job starts ---------------------------------------------------------------------------------------------------


def test_a_job_starts_the_master_that_is_missing_and_ends_it(ray_address: str) -> None:
    port, metadata_port = free_port(), free_port()
    to_start: Any = SimpleNamespace(address=f"{HOST}:{port}")
    backend = {"auto_init": True, "metadata_server": f"{HOST}:{metadata_port}"}
    outcomes = run_job(OURS, ["actors/dense", "clients"], ray_address=ray_address, master=to_start, backend=backend)
    outcomes["actors/dense"].passed()
    assert outcomes["clients"].passed()["driver"] == "TensorleaseStoreClient"
    wait_until(lambda: not answers(port), "the master that the job started ends with it")
    assert not answers(metadata_port)


@pytest.mark.parametrize(
    ("master", "metadata", "setting"),
    [("nowhere", "P2PHANDSHAKE", "master_server_address"), (f"{HOST}:50051", "nowhere", "metadata_server")],
    ids=["master", "metadata"],
)
def test_an_address_without_a_port_is_a_value_error_that_names_the_setting(
    master: str, metadata: str, setting: str
) -> None:
    with pytest.raises(ValueError, match=f"Invalid {setting} 'nowhere'"):
        initialize_mooncake_storage(configuration(master, metadata))


def test_without_auto_init_nothing_is_started() -> None:
    port = free_port()
    assert initialize_mooncake_storage(configuration(f"{HOST}:{port}", auto_init=False)) is None
    assert not answers(port)


def test_a_wrong_setting_of_ours_is_found_before_a_worker_needs_it() -> None:
    with pytest.raises(ValueError, match="no setting 'denser'"):
        initialize_mooncake_storage(configuration(f"{HOST}:50051", auto_init=False, tensorlease={"denser": True}))
