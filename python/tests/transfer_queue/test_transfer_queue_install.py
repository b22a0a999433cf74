"""Switching to our client and back, what is left alone, and which clients stay the released ones."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from queue_rig import (
    HERE,
    OURS,
    backend_config,
    client_class,
    error_of,
    opened_client,
    require_transfer_queue,
    run_script,
)

require_transfer_queue()

from transfer_queue.storage.bootstrap import StorageBootstrapProvider, mooncake_bootstrap
from transfer_queue.storage.clients import mooncake_client
from transfer_queue.storage.clients.base import StorageClientFactory
from transfer_queue.storage.clients.mooncake_client import MooncakeStoreClient
from transfer_queue.storage.managers import MooncakeStorageManager
from transfer_queue.storage.managers.base import StorageManagerFactory

import tensorlease.transfer_queue as plugin
from bench.cluster import Master
from tensorlease.transfer_queue import client as client_module

pytestmark = pytest.mark.timeout(120)


def in_place() -> dict[str, object]:
    """What TransferQueue would use for MooncakeStore now, and all that it has for anything else."""
    return {
        **{f"client {name}": found for name, found in StorageClientFactory._registry.items()},
        **{f"manager {name}": found for name, found in StorageManagerFactory._registry.items()},
        # TransferQueue wraps a bootstrap each time that it is registered.
        **{f"bootstrap {name}": inspect.unwrap(found) for name, found in StorageBootstrapProvider._providers.items()},
    }


OURS_IN_PLACE = {"client MooncakeStoreClient", "manager MooncakeStore", "bootstrap mooncakestore"}


@pytest.fixture
def released() -> Iterator[dict[str, object]]:
    """Nothing of ours is installed at the start of the test; whatever it does, at the end it is as before."""
    was_installed = plugin.installed()
    plugin.uninstall()
    try:
        yield in_place()
    finally:
        plugin.install() if was_installed else plugin.uninstall()


def test_install_replaces_what_mooncakestore_uses_and_nothing_else(released: dict[str, object]) -> None:
    assert not plugin.installed()
    plugin.install()
    assert plugin.installed()
    now = in_place()
    assert {name for name in now if now[name] is not released[name]} == OURS_IN_PLACE
    assert now["client MooncakeStoreClient"] is plugin.TensorleaseStoreClient


def test_uninstall_puts_everything_back(released: dict[str, object]) -> None:
    plugin.install()
    plugin.uninstall()
    assert in_place() == released
    # What was there before may be ours already, where `uninstall` leaves something.
    assert in_place()["client MooncakeStoreClient"] is MooncakeStoreClient
    assert in_place()["manager MooncakeStore"] is MooncakeStorageManager
    assert in_place()["bootstrap mooncakestore"] is inspect.unwrap(mooncake_bootstrap.initialize_mooncake_storage)


def test_both_may_be_called_again_and_again(released: dict[str, object]) -> None:
    plugin.install()
    once = in_place()
    plugin.install()
    assert in_place() == once
    plugin.uninstall()
    plugin.uninstall()
    assert in_place() == released


def test_uninstall_leaves_what_somebody_else_put_in_place_of_ours(released: dict[str, object]) -> None:
    plugin.install()

    class Theirs(MooncakeStoreClient):  # type: ignore[misc]
        """Registered by a user after us."""

    StorageClientFactory.register("MooncakeStoreClient")(Theirs)
    try:
        plugin.uninstall()
        assert in_place()["client MooncakeStoreClient"] is Theirs
        assert in_place()["manager MooncakeStore"] is MooncakeStorageManager
    finally:
        StorageClientFactory.register("MooncakeStoreClient")(MooncakeStoreClient)
    assert in_place() == released


@pytest.mark.parametrize(("value", "installed"), [("0", "False"), (None, "True")])
def test_the_import_installs_unless_the_environment_says_no(value: str | None, installed: str) -> None:
    environment = {} if value is None else {"TENSORLEASE_TRANSFER_QUEUE": value}
    text = run_script(HERE / "imports_plugin.py", environment=environment, timeout=60)
    assert text.splitlines()[-1] == f"installed {installed}"


def test_what_the_environment_can_not_mean_is_refused_and_nothing_is_installed() -> None:
    code = "import tensorlease.transfer_queue"
    environment = {**os.environ, "TENSORLEASE_TRANSFER_QUEUE": "false"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "ConfigError: TENSORLEASE_TRANSFER_QUEUE='false' in the environment means nothing; 0 leaves" in done.stderr


def test_workers_of_a_job_that_is_switched_off_from_outside_are_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORLEASE_TRANSFER_QUEUE", "0")
    assert plugin.runtime_env({"env_vars": None})["env_vars"] == {"TENSORLEASE_TRANSFER_QUEUE": "0"}
    monkeypatch.delenv("TENSORLEASE_TRANSFER_QUEUE")
    assert plugin.runtime_env()["env_vars"] == {"TENSORLEASE_TRANSFER_QUEUE": "on-import"}


def test_without_transfer_queue_the_import_says_what_to_install(run_python: Any) -> None:
    code = """
sys.modules["transfer_queue"] = None
try:
    import tensorlease.transfer_queue
except ImportError as error:
    print(type(error).__name__, error)
"""
    assert "pip install TransferQueue" in run_python(code).stdout


def test_the_setting_for_workers_keeps_what_the_job_has() -> None:
    base = {"env_vars": {"MINE": "1"}, "pip": ["numpy"]}
    merged = plugin.runtime_env(base)
    assert merged["env_vars"]["MINE"] == "1"
    assert merged["pip"] == ["numpy"]
    assert set(plugin.runtime_env()) <= set(merged)
    assert base == {"env_vars": {"MINE": "1"}, "pip": ["numpy"]}


# ---- devices ---------------------------------------------------------------------------------------------------------------------


def test_gpu_direct_needs_rdma_as_with_the_released_client(master: Master) -> None:
    error = error_of(lambda: client_class(OURS)(backend_config(master.address, use_gdr=True)))
    assert isinstance(error, ValueError)
    assert "rdma" in str(error)


def test_gpu_direct_goes_to_the_released_path_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU and no RDMA here: the store is a stand-in, and what the released path would do is only noted."""
    store = mock.MagicMock()
    store.return_value.setup.return_value = 0
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(client_module, "_logged", set())
    values, done = [torch.ones(3), torch.ones(2)], []
    with (
        mock.patch.object(mooncake_client, "MooncakeDistributedStore", store),
        mock.patch.object(torch.cuda, "is_initialized", return_value=True),
        mock.patch.object(MooncakeStoreClient, "_put_tensors_gdr", lambda *_: done.append("put") or [None, None]),
        mock.patch.object(
            MooncakeStoreClient, "_get_tensors_gdr", lambda *given: done.append("get") or (values, given[4])
        ),
    ):
        client = client_class(OURS)(backend_config("127.0.0.1:1", protocol="rdma", use_gdr=True))
        for _ in range(2):
            assert client.put(["0@x", "1@x"], values) == [None, None]
            found = client.get(["0@x", "1@x"], [(3,), (2,)], [torch.float32] * 2, [None, None])
            assert all(map(torch.equal, found, values))
    assert done == ["put", "get", "put", "get"]
    assert len(said(caplog, "use_gdr")) == 1


class NpuTensor(torch.Tensor):
    """Memory of the host that says it is an NPU's."""

    @property
    def device(self) -> Any:
        return SimpleNamespace(type="npu", index=0)


def test_tensors_on_an_npu_go_to_the_released_path_and_the_log_says_so_once(
    master: Master, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_logged", set())
    caplog.set_level(logging.DEBUG)
    tensor = torch.arange(4.0).as_subclass(NpuTensor)
    original, put = MooncakeStoreClient.put, []

    def noted(client: Any, keys: list[str], values: list[Any]) -> Any:
        put.append(keys)
        return original(client, keys, values)

    with opened_client(OURS, master) as client:
        client.put(["host@x"], [torch.ones(4)])
        assert not said(caplog, "accelerators")
        with mock.patch.object(MooncakeStoreClient, "put", noted):
            # Beside others in one call, and alone.
            metas = client.put(["host@y", "npu@x", "text@z"], [torch.ones(3), tensor, "text"])
            client.put(["npu@x"], [tensor])
        assert put == [["npu@x"], ["npu@x"]]
        assert [meta is None for meta in metas] == [True, True, False]
        (found,) = client.get(["npu@x"], [(4,)], [torch.float32])
        assert found.tolist() == [0.0, 1.0, 2.0, 3.0]
        client.clear(["host@x", "npu@x", "host@y", "text@z"])
    assert len(said(caplog, "accelerators")) == 1


def said(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    """Messages with it."""
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]
