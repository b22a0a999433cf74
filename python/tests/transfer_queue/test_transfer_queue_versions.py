"""Releases of TransferQueue that a job may have: each laid over the environment of the tests, in processes of its own."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mooncake_rig import cluster
from queue_rig import HERE, OURS, require_transfer_queue, run_job, run_script

require_transfer_queue()

from kinds import KINDS, NOT_RELEASED

pytestmark = pytest.mark.timeout(420)

KNOWN = ("0.1.9", "0.1.10", "0.1.11")
UNKNOWN = "0.7.3"
PIP_SECONDS = 180
CASES = [
    *(f"sync/{kind}" for kind in KINDS),
    *(f"low-level/{kind}" for kind in KINDS if kind not in NOT_RELEASED),
    "actors/dense",
    "clients",
    "left after clearing different fields",
]


@pytest.fixture(scope="session", params=KNOWN)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A version, and a folder with that one and nothing else."""
    version: str = request.param
    folder = tmp_path_factory.mktemp(f"transfer_queue_{version}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    done = subprocess.run(
        [*command, f"TransferQueue=={version}"], capture_output=True, text=True, timeout=PIP_SECONDS, check=False
    )
    if done.returncode != 0:
        reason = f"pip has no TransferQueue {version} here: {done.stderr.strip()[-300:]}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return version, folder


def test_a_job_runs_on_each_known_release(release: tuple[str, Path], ray_address: str) -> None:
    version, folder = release
    with cluster() as master:
        outcomes = run_job(OURS, CASES, ray_address=ray_address, master=master, python_path=folder)
    assert set(outcomes) == set(CASES)
    for name, outcome in outcomes.items():
        assert outcome.error is None, f"{version}, {name}: {outcome.error}"
    ours = "TensorleaseStoreClient"
    assert outcomes["clients"].value == {"driver": ours, "actors": [ours, ours], "task": ours}
    assert outcomes["left after clearing different fields"].value == []


def test_a_known_release_is_not_warned_about(release: tuple[str, Path]) -> None:
    version, folder = release
    text = run_script(HERE / "imports_plugin.py", python_path=folder, timeout=60)
    assert text.splitlines()[-1] == "installed True"
    assert version not in text
    assert "WARNING" not in text


# ---- others ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    """The installed release under a number that nobody has tested."""
    installed = importlib.metadata.distribution("TransferQueue")
    package = Path(str(installed.locate_file("transfer_queue")))
    shutil.copytree(package, tmp_path / "transfer_queue")
    (tmp_path / "transfer_queue" / "version" / "version").write_text(f"{UNKNOWN}\n")
    info = tmp_path / f"transferqueue-{UNKNOWN}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: TransferQueue\nVersion: {UNKNOWN}\n")
    return tmp_path


def test_an_unknown_release_is_named_in_one_warning_with_those_that_are_tested(unknown: Path) -> None:
    text = run_script(HERE / "imports_plugin.py", python_path=unknown, timeout=60)
    assert text.splitlines()[-1] == "installed True"
    (warning,) = [line for line in text.splitlines() if UNKNOWN in line]
    assert all(version in warning for version in KNOWN)


def test_a_release_that_lacks_what_is_needed_is_an_error_that_names_it(unknown: Path) -> None:
    bootstrap = unknown / "transfer_queue" / "storage" / "bootstrap" / "mooncake_bootstrap.py"
    text = bootstrap.read_text()
    assert "def initialize_mooncake_storage" in text
    bootstrap.write_text(text.replace("initialize_mooncake_storage", "initialize_otherwise"))
    said = run_script(HERE / "imports_plugin.py", python_path=unknown, timeout=60).splitlines()[-1]
    assert said.startswith("ConfigError")
    assert "initialize_mooncake_storage" in said
    assert UNKNOWN in said
