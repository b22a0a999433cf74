"""What a `mooncake://` URL or a call on a Mooncake store gets wrong: each time an error that names it and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from mooncake_rig import cluster
from tensors import assert_same, filled

import tensorlease as tl
from bench.cluster import Master
from tensorlease.mooncake_master import HOST, free_port

#: What the URL says, and what the message must have.
WRONG_URLS = [
    ("mooncake://", "HOST:PORT"),
    ("mooncake://127.0.0.1", "HOST:PORT"),
    ("mooncake://127.0.0.1:", "HOST:PORT"),
    ("mooncake://:50051", "HOST:PORT"),
    ("mooncake://127.0.0.1:0", "HOST:PORT"),
    ("mooncake://127.0.0.1:65536", "HOST:PORT"),
    ("mooncake://127.0.0.1:port", "HOST:PORT"),
    ("mooncake://127.0.0.1:-1", "HOST:PORT"),
    ("mooncake:/127.0.0.1:50051", "is no store URL"),
    ("moonshake://127.0.0.1:50051", "known are embedded://, host:// and mooncake://"),
]
#: Options, and what the message must have beside the option's name.
WRONG_OPTIONS = [
    ("protocol=udp", "protocol", "tcp, rdma"),
    ("protocol=", "protocol", "tcp, rdma"),
    ("pin=always", "pin", "hard, soft, none"),
    ("pool=theirs", "pool", "own, store"),
    ("pool=store&share=most", "share", "half, quarter, full"),
    ("pool=store&force=yes", "force", "0, 1"),
    ("share=half", "share", "pool=store"),
    ("force=1", "force", "pool=store"),
    ("pool=own&share=quarter", "share", "pool=store"),
    ("pool=store&local_buffer=0", "local_buffer", "more than 0"),
    ("metadata=nonsense", "metadata", "P2PHANDSHAKE"),
    ("segment=many", "segment", "512MiB"),
    ("segment=-1", "segment", "512MiB"),
    ("segment=15MiB", "segment", "16777216"),
    ("local_buffer=1e9", "local_buffer", "512MiB"),
    ("local_buffer=1023", "local_buffer", "1024"),
    ("connect_timeout=soon", "connect_timeout", "seconds"),
    ("connect_timeout=0", "connect_timeout", "more than 0"),
    ("connect_timeout=-2", "connect_timeout", "more than 0"),
    ("connect_timeout=nan", "connect_timeout", "more than 0"),
    ("capacity=1GiB", "capacity", "known are protocol"),
    ("Segment=1GiB", "Segment", "known are protocol"),
    ("segment=1GiB&segment=2GiB", "segment", "twice"),
]


@pytest.mark.parametrize("url, allowed", WRONG_URLS)
def test_a_wrong_address_is_a_config_error_that_shows_a_right_one(url: str, allowed: str) -> None:
    with pytest.raises(tl.ConfigError) as caught:
        tl.open(url, max_bytes="16MiB")
    assert allowed in str(caught.value)


@pytest.mark.parametrize("options, named, allowed", WRONG_OPTIONS)
def test_a_wrong_option_is_a_config_error_that_names_it_before_anything_is_reached(
    options: str, named: str, allowed: str
) -> None:
    # Nobody listens there: reaching for it first would be an EngineUnavailable.
    with pytest.raises(tl.ConfigError) as caught:
        tl.open(f"mooncake://{HOST}:{free_port()}?{options}", max_bytes="16MiB")
    assert named in str(caught.value) and allowed in str(caught.value)


@pytest.mark.parametrize("settings, named", [({"readers": 0}, "readers"), ({"batch_keys": 0}, "batch_keys")])
def test_wrong_settings_are_named_before_anything_is_reached(settings: dict[str, int], named: str) -> None:
    with pytest.raises(tl.ConfigError, match=named):
        tl.open(f"mooncake://{HOST}:{free_port()}", max_bytes="16MiB", **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with cluster(segment="64MiB") as running:
        yield running


@pytest.fixture(scope="module")
def store(master: Master) -> Iterator[tl.Store]:
    with tl.open(master.url(local_buffer="16MiB"), max_bytes="16MiB") as opened:
        opened.put(["tensor"], [filled((4,))])
        yield opened


def test_faults_that_there_are_none_of_are_named_once_the_engine_is_there(master: Master) -> None:
    with pytest.raises(tl.ConfigError, match="faults=sloth"):
        tl.open(master.url(faults="sloth:1ms"), max_bytes="16MiB")


def test_a_metadata_server_that_does_not_answer_is_named(master: Master) -> None:
    metadata = f"http://{HOST}:{free_port()}/metadata"
    with pytest.raises(tl.EngineUnavailable, match=metadata):
        tl.open(master.url(metadata=metadata), max_bytes="16MiB")


@pytest.mark.parametrize("option", ["segment", "local_buffer"])
def test_memory_that_no_machine_has_is_an_error_that_names_the_option(master: Master, option: str) -> None:
    with pytest.raises(tl.Error, match=option) as caught:
        tl.open(master.url(**{option: "64TiB"}), max_bytes="16MiB")
    assert isinstance(caught.value, (tl.ConfigError, tl.EngineUnavailable))


def test_a_read_without_shapes_or_dtypes_says_what_to_pass(store: tl.Store) -> None:
    (meta,) = store.put(["packed"], [["a", 1]])
    with pytest.raises(tl.ConfigError, match="shapes and dtypes.*custom_backend_meta"):
        store.get(["tensor"])
    with pytest.raises(tl.ConfigError, match="shapes is missing"):
        store.get(["tensor"], None, torch.float32)
    with pytest.raises(tl.ConfigError, match="dtypes is missing"):
        store.get(["tensor"], [(4,)])
    with pytest.raises(tl.ConfigError, match="packed.*custom_backend_meta"):
        store.get(["packed"], None, [None])
    with pytest.raises(tl.SizeMismatch):
        store.get(["packed"], None, [None], [{"packed_size": 1 + (meta or {})["packed_size"]}])
    assert store.get(["packed"], None, [None], [meta]) == [["a", 1]]


def test_one_key_for_two_different_things_is_refused_before_anything_is_read(store: tl.Store) -> None:
    before = store.stats()["engine_read_calls"]
    with pytest.raises(tl.ConfigError, match="asked for twice"):
        store.get(["tensor", "tensor"], [(4,), (2, 2)], torch.float32)
    with pytest.raises(tl.ConfigError, match="twice"):
        store.put(["tensor", "tensor"], [filled((4,)), filled((4,))])
    assert store.stats()["engine_read_calls"] == before


@pytest.mark.parametrize("key", ["k" * 10_000, "schlüssel/鍵", "a b\n\t", ".*", "a\0b"])
def test_any_key_that_the_store_takes_works_on_mooncake(store: tl.Store, key: str) -> None:
    value = filled((4,))
    store.put([key], [value])
    assert_same(store.get([key], [(4,)], torch.float32)[0], value)
    assert store.contains([key]) == [True]
    assert store.remove([key]) == 1


def test_an_empty_key_is_refused(store: tl.Store) -> None:
    with pytest.raises(tl.ConfigError, match="key"):
        store.put([""], [filled((4,))])


def test_a_refused_registration_names_the_limit_of_locked_memory(
    store: tl.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mooncake.store

    class Refusing(mooncake.store.MooncakeDistributedStore):  # type: ignore[misc]
        def register_buffer(self, *_arguments: int) -> int:
            return -600

    monkeypatch.setattr(mooncake.store, "MooncakeDistributedStore", Refusing)
    url = f"{store.url.split('?')[0]}?pool=store&force=1&local_buffer=16MiB"
    limit = r"locked memory is (limited to \d+ bytes: ulimit -l|not limited here); 0 bytes are registered"
    with pytest.raises(tl.EngineUnavailable, match=limit):
        tl.open(url, max_bytes="32MiB", prewarm="16MiB")
