"""Private methods of the released client that users replace, as NeMo-RL does for its staging pool: with ours in place they are still called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from queue_rig import OURS, backend_config, client_class, opened_client, require_transfer_queue

require_transfer_queue()

from transfer_queue.storage.clients.base import StorageClientFactory
from transfer_queue.storage.clients.mooncake_client import MooncakeStoreClient

import tensorlease.transfer_queue as plugin
from bench.cluster import Master

pytestmark = pytest.mark.timeout(180)

NAME = "MooncakeStoreClient"
#: Each with what it moves.
TENSORS, PACKED = {"tensors"}, {"packed"}
BOTH = TENSORS | PACKED
METHODS = {
    "_get_tensors_thread_worker": TENSORS,
    "_get_bytes_thread_worker": PACKED,
    "_put_tensors_thread_worker": TENSORS,
    "_put_bytes_thread_worker": PACKED,
    "_batch_get_into_with_retry": BOTH,
    "_batch_upsert_with_retry": BOTH,
}
VALUES = {"tensors": [torch.arange(5.0), torch.ones(2, 3)], "packed": ["text", {"a": [1, None]}]}


class Watched:
    """Wraps methods so that each call is counted and goes on to the method as it was."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def around(self, name: str) -> Callable[..., Any]:
        original = getattr(MooncakeStoreClient, name)

        def watched(client: Any, *arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return original(client, *arguments, **named)

        return watched


def round_trip(client: Any, what: str, prefix: str) -> None:
    """Put, get, compare and clear."""
    values = VALUES[what]
    keys = [f"{prefix}/{what}/{number}@x" for number in range(len(values))]
    meta = client.put(keys, values)
    shapes = [value.shape if what == "tensors" else None for value in values]
    dtypes = [value.dtype if what == "tensors" else None for value in values]
    found = client.get(keys, shapes, dtypes, custom_backend_meta=meta)
    for one, value in zip(found, values, strict=True):
        assert torch.equal(one, value) if what == "tensors" else one == value
    client.clear(keys, meta)


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def watched() -> Watched:
    return Watched()


def assert_called(client: Any, watched: Watched, method: str, how: str) -> None:
    """For the values it is for, and for no others."""
    for what in VALUES:
        watched.calls.clear()
        round_trip(client, what, f"{how}/{method}")
        assert (watched.calls[method] > 0) == (what in METHODS[method]), what


def test_a_method_replaced_on_the_released_class_is_called(master: Master, method: str, watched: Watched) -> None:
    replaced = mock.patch.object(MooncakeStoreClient, method, watched.around(method))
    with replaced, opened_client(OURS, master) as client:
        assert_called(client, watched, method, "class")


def test_a_method_that_a_subclass_overrides_is_called(master: Master, method: str, watched: Watched) -> None:
    kind = type("Overriding", (client_class(OURS),), {method: watched.around(method)})
    client = kind(backend_config(master.address))
    try:
        assert_called(client, watched, method, "subclass")
    finally:
        client.close()


def test_a_method_replaced_after_the_client_was_made_is_called(shared: Any, method: str, watched: Watched) -> None:
    with mock.patch.object(MooncakeStoreClient, method, watched.around(method)):
        assert_called(shared, watched, method, "later")
    watched.calls.clear()
    round_trip(shared, "tensors", f"afterwards/{method}")
    assert not watched.calls


@pytest.fixture
def registry() -> Iterator[dict[str, Any]]:
    """TransferQueue's clients by name, with nothing of ours; at the end of the test as before."""
    was_installed = plugin.installed()
    plugin.uninstall()
    known: dict[str, Any] = StorageClientFactory._registry
    before = known[NAME]
    try:
        yield known
    finally:
        plugin.uninstall()
        known[NAME] = before
        if was_installed:
            plugin.install()


def test_a_class_that_a_user_has_registered_is_kept_under_ours(
    registry: dict[str, Any], master: Master, method: str, watched: Watched
) -> None:
    theirs = type("Theirs", (MooncakeStoreClient,), {method: watched.around(method)})
    StorageClientFactory.register(NAME)(theirs)
    plugin.install()
    kind = registry[NAME]
    assert issubclass(kind, client_class(OURS))
    assert issubclass(kind, theirs)
    client = kind(backend_config(master.address))
    try:
        assert_called(client, watched, method, "registered")
    finally:
        client.close()
    plugin.uninstall()
    assert registry[NAME] is theirs


@pytest.mark.parametrize("method", ["__init__", "put", "get", "clear", "close"])
def test_a_registered_class_that_changes_more_than_that_stays_and_a_warning_says_so(
    registry: dict[str, Any], caplog: pytest.LogCaptureFixture, method: str
) -> None:
    theirs = type("Theirs", (MooncakeStoreClient,), {method: lambda *_, **__: None})
    StorageClientFactory.register(NAME)(theirs)
    plugin.install()
    assert registry[NAME] is theirs
    assert not plugin.installed()
    assert "Theirs" in caplog.text
    assert "tensorlease is not used" in caplog.text


@pytest.fixture(scope="module")
def shared(master: Master) -> Iterator[Any]:
    with opened_client(OURS, master) as client:
        yield client
