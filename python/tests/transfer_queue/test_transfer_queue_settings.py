"""What stands under `backend.MooncakeStore.tensorlease`: what is refused, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest
from queue_rig import backend_config, client_class, error_of, require_transfer_queue

require_transfer_queue()

from omegaconf import OmegaConf
from transfer_queue.storage.clients.mooncake_client import MooncakeStoreClient

import tensorlease as tl
from tensorlease.transfer_queue import initialize_mooncake_storage, settings

#: Nothing listens there: what is wrong is found before anybody is asked.
NOWHERE = "127.0.0.1:1"
NAMES = ("max_bytes", "prewarm", "readers", "delivery", "strict", "dense")
WRONG = [
    ({"max_byte": "64MiB"}, "max_byte"),
    ({"max_bytes": "lots"}, "max_bytes"),
    ({"max_bytes": 0}, "max_bytes"),
    ({"max_bytes": True}, "max_bytes"),
    ({"max_bytes": "64MiB", "prewarm": "65MiB"}, "prewarm"),
    ({"prewarm": "some"}, "prewarm"),
    ({"prewarm": -1}, "prewarm"),
    ({"readers": 0}, "readers"),
    ({"readers": 257}, "readers"),
    ({"readers": "4"}, "readers"),
    ({"delivery": "fast"}, "delivery"),
    ({"delivery": "register-per-call"}, "delivery"),
    ({"strict": "yes"}, "strict"),
    ({"dense": 1}, "dense"),
    (5, "5"),
]


@pytest.mark.parametrize(("section", "named"), WRONG, ids=[str(section) for section, _ in WRONG])
def test_a_wrong_setting_is_an_error_that_names_it_for_who_starts_a_job_and_for_a_worker(
    section: Any, named: str
) -> None:
    config = backend_config(NOWHERE, tensorlease=section)
    job = OmegaConf.create({"backend": {"storage_backend": "MooncakeStore", "MooncakeStore": config}})
    for refused in (lambda: client_class("ours")(config), lambda: initialize_mooncake_storage(job)):
        with pytest.raises(tl.ConfigError, match=rf"backend\.MooncakeStore\.tensorlease.*{named}"):
            refused()


def test_a_setting_that_does_not_exist_is_an_error_with_all_that_do() -> None:
    with pytest.raises(tl.ConfigError, match=", ".join(NAMES)):
        settings.Tuning.of({"tensorlease": {"max_byte": "64MiB"}})


@pytest.mark.parametrize("section", [None, {}, {"max_bytes": None, "prewarm": None, "dense": None}])
def test_what_is_left_out_has_its_default(section: Any) -> None:
    assert settings.Tuning.of({"tensorlease": section}) == settings.Tuning()


@pytest.mark.parametrize(
    ("protocol", "section", "bytes_made"),
    [
        ("rdma", {}, 1 << 30),
        ("rdma", {"max_bytes": "64MiB"}, 64 << 20),
        ("rdma", {"max_bytes": "64MiB", "prewarm": 0}, 0),
        ("tcp", {"max_bytes": "64MiB"}, 0),
        ("tcp", {"max_bytes": "64MiB", "prewarm": "32MiB"}, 32 << 20),
    ],
)
def test_all_memory_is_made_with_the_client_where_the_transport_needs_it_registered(
    protocol: str, section: dict[str, Any], bytes_made: int
) -> None:
    config = backend_config(NOWHERE, protocol=protocol, tensorlease=section)
    backend = settings.Backend(config)
    assert backend.tuning.options(backend.protocol)["prewarm"] == bytes_made


@pytest.mark.parametrize("missing", ["metadata_server", "master_server_address"])
def test_a_configuration_without_an_address_is_refused_as_by_the_released_client(missing: str) -> None:
    config = backend_config(NOWHERE) | {missing: None}
    errors = [error_of(lambda kind=kind: kind(config)) for kind in (MooncakeStoreClient, client_class("ours"))]
    assert [type(error) for error in errors] == [ValueError, ValueError]
    assert all(missing in str(error) for error in errors)


@pytest.mark.parametrize(
    "written",
    ["P2PHANDSHAKE", " p2phandshake ", "host:1", "http://host:1", "http://host:1/metadata", "etcd://host:1"],
)
def test_the_metadata_server_is_read_as_the_released_client_reads_it(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []

    class Noted:
        """What the released client calls; it gets no further than this."""

        def setup(self, _hostname: str, metadata: str, *_rest: object) -> int:
            passed.append(metadata)
            return 0

        def close(self) -> None:
            """As if it had been opened."""

    monkeypatch.setattr("transfer_queue.storage.clients.mooncake_client.MooncakeDistributedStore", Noted)
    config = backend_config(NOWHERE, metadata_server=written)
    MooncakeStoreClient(config)
    assert settings.Backend(config).metadata == passed[0]
