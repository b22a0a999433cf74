"""The storage client of tensorlease.transfer_queue over RDMA, where memory must be registered: all of it is when the client is made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ADDRESS, DEVICE

from bench.cluster import Master

# Torch and TransferQueue take minutes to import in the guest, so one process does all of it.
SECONDS = 600
pytestmark = pytest.mark.timeout(SECONDS + 30)

CLIENTS = Path(__file__).parent / "queue_clients.py"
PATHS = ["put tensors", "put bytes", "get tensors", "get bytes"]
RELEASED_REGISTERS = pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="each of the four paths registers its memory at each call"
)


@pytest.fixture(scope="module")
def registered(master: Master) -> dict[str, Any]:
    """By client and step: how often it registered."""
    command = [sys.executable, str(CLIENTS), master.address, DEVICE, ADDRESS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode != 0:
        # No AssertionError: it must not pass for what the released client is expected to do.
        raise RuntimeError(f"{CLIENTS.name} ended with {done.returncode}: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found, indent=1))
    return found


@pytest.mark.parametrize("which", [pytest.param("released", marks=RELEASED_REGISTERS), "ours"])
@pytest.mark.parametrize("path", PATHS)
def test_no_path_of_a_client_registers_memory_after_set_up(registered: dict[str, Any], which: str, path: str) -> None:
    assert [registered[which][path], registered[which][f"{path} again"]] == [0, 0]


def test_columns_that_come_back_to_back_register_nothing_either(registered: dict[str, Any]) -> None:
    ours = registered["ours"]
    assert [ours[step] for step in ["put rows", "put rows again", "get columns", "get columns again"]] == [0, 0, 0, 0]


def test_all_of_the_memory_is_registered_when_the_client_is_made(registered: dict[str, Any]) -> None:
    assert registered["ours"]["bytes at set-up"] == registered["max_bytes"]
    assert registered["released"]["bytes at set-up"] == 0
