"""Objects in the segment of the very process that reads them: copied by its readers, not by Mooncake, and never a mixture."""

from __future__ import annotations

import collections
import importlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mooncake_rig import Running, cluster, counted, owner_of, require_mooncake
from tensors import assert_same

import tensorlease as tl
from bench.cluster import Master

ROW = (50_000,)
KEYS = [f"row{index}" for index in range(20)]


def numbered() -> torch.Tensor:
    """A row that torch can add to and compare."""
    return torch.arange(float(ROW[0]))


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with cluster() as running:
        yield running


@pytest.fixture(scope="module")
def store(master: Master) -> Iterator[tl.Store]:
    url = master.url(segment="64MiB", local_buffer="16MiB", pool="store", force=1)
    with tl.open(url, max_bytes="64MiB") as store:
        yield store


def rows(seed: float = 0) -> list[torch.Tensor]:
    return [numbered() + index + seed for index in range(len(KEYS))]


def local_reads(store: tl.Store, keys: list[str], shape: tuple[int, ...], **options: Any) -> float:
    """How many of the objects were copied here; the values are compared by the caller's own reads elsewhere."""
    with counted(store) as gained:
        store.get(keys, [shape] * len(keys), torch.float32, **options)
    return gained["local_reads"]


def copied_here(store: tl.Store, keys: list[str]) -> bool:
    return local_reads(store, keys, ROW, delivery="leased") == len(keys)


def test_what_lies_in_this_process_is_copied_here(store: tl.Store) -> None:
    values = rows()
    store.put(KEYS, values)
    assert copied_here(store, KEYS)
    out = store.get(KEYS, [ROW] * len(KEYS), torch.float32, delivery="leased")
    for found, expected in zip(out, values, strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize("delivery", ["register-per-call", "copied"])
def test_the_ways_of_other_clients_are_left_to_mooncake(store: tl.Store, delivery: str) -> None:
    store.put(KEYS, rows())
    assert local_reads(store, KEYS, ROW, delivery=delivery) == 0


def test_small_objects_are_left_to_mooncake(store: tl.Store) -> None:
    store.put(["small"], [torch.zeros(100)])
    assert local_reads(store, ["small"], (100,), delivery="leased") == 0


def test_a_missing_key_and_another_size_are_the_same_errors_as_elsewhere(store: tl.Store) -> None:
    store.put(KEYS, rows())
    with pytest.raises(tl.KeyNotFound, match="absent"):
        store.get([KEYS[0], "absent"], [ROW, ROW], torch.float32, delivery="leased")
    with pytest.raises(tl.SizeMismatch, match=KEYS[1]):
        store.get(KEYS[:2], [ROW, (ROW[0] + 1,)], torch.float32, delivery="leased")


def test_objects_here_and_elsewhere_come_in_one_read(master: Master) -> None:
    with owner_of(master, "64MiB"), tl.open(master.url(segment="64MiB", local_buffer="16MiB")) as store:
        keys = [f"mixed{index}" for index in range(60)]
        values = [numbered() + index for index in range(60)]
        store.put(keys, values)
        with counted(store) as gained:
            out = store.get(keys, [ROW] * 60, torch.float32, delivery="leased")
        for found, expected in zip(out, values, strict=True):
            assert_same(found, expected)
        assert 0 < gained["local_reads"] < 60
        store.remove(keys)


def test_mooncakes_own_switch_turns_it_off(
    master: Master, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MC_STORE_MEMCPY", "0")
    with (
        caplog.at_level("INFO", logger="tensorlease"),
        tl.open(master.url(segment="16MiB", local_buffer="16MiB"), namespace="switch") as store,
    ):
        store.put(["x"], [numbered()])
        assert local_reads(store, ["x"], ROW, delivery="leased") == 0
        assert_same(store.get(["x"], [ROW], torch.float32)[0], numbered())
    assert "copied by Mooncake (MC_STORE_MEMCPY turns it off)" in caplog.text


def test_the_line_at_open_says_who_copies(master: Master, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="tensorlease"):
        tl.open(master.url(segment="16MiB", local_buffer="16MiB", pool="store")).close()
    assert "segment copied by its readers" in caplog.text
    assert "pool=store not used over TCP" in caplog.text


def test_what_is_copied_needs_no_read_lease() -> None:
    with cluster(lease_ttl_ms=1) as master, tl.open(master.url(segment="16MiB", local_buffer="16MiB")) as store:
        store.put(["x"], [numbered()])
        assert copied_here(store, ["x"])


def test_finding_the_segment_leaves_nothing_in_the_cluster(master: Master) -> None:
    from mooncake.store import MooncakeDistributedStore

    with tl.open(master.url(segment="16MiB", local_buffer="16MiB")):
        client = MooncakeDistributedStore()
        assert client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master.address) == 0
        try:
            assert client.remove_by_regex("^tensorlease-probe-", True) == 0
        finally:
            client.close()


# ---- with Mooncake's client object in our hands ------------------------------------------------------------------------------------


class Watched:
    """Stands in front of Mooncake's client, and can act between the answer to "where does it lie" and its use."""

    made: list[Watched] = []  # noqa: RUF012 - all of them, on purpose

    def __init__(self) -> None:
        self._client = REAL()
        self.asked = 0
        self.before_answer: Any = None
        self.before_return: Any = None
        Watched.made.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_get_replica_desc(self, keys: list[str]) -> Any:
        self.asked += 1
        found = self._client.batch_get_replica_desc(keys)
        act, self.before_answer = self.before_answer, None
        if act is not None:
            act(self._client)
        return found

    def batch_get_into(self, *arguments: Any) -> Any:
        codes = self._client.batch_get_into(*arguments)
        act, self.before_return = self.before_return, None
        if act is not None:
            act(self._client)
        return codes


REAL: Any = None


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    global REAL
    require_mooncake()
    import mooncake.store

    REAL = mooncake.store.MooncakeDistributedStore
    Watched.made.clear()
    monkeypatch.setattr(mooncake.store, "MooncakeDistributedStore", Watched)


def test_what_another_process_removed_while_it_was_copied_is_read_again(master: Master, watched: None) -> None:
    url = master.url(segment="64MiB", local_buffer="16MiB")
    with tl.open(url, namespace="raced") as store:
        (client,) = Watched.made
        old, new = rows(), rows(seed=1000)
        store.put(KEYS, old)
        stored = [f"raced/{key}" for key in KEYS]

        def replace_by_force(real: Any) -> None:
            """As another process does it: past this store, and before the copies begin. The keys trade places."""
            assert real.batch_remove(stored, True) == [0] * len(KEYS)
            for key, value in zip(reversed(stored), reversed(new), strict=True):
                assert real.put(key, value.numpy().tobytes()) == 0

        client.before_answer = replace_by_force
        out = store.get(KEYS, [ROW] * len(KEYS), torch.float32, delivery="leased")
        assert client.before_answer is None
        for found, expected in zip(out, new, strict=True):
            assert_same(found, expected)


def test_what_another_process_removed_for_good_while_it_was_copied_is_missing(master: Master, watched: None) -> None:
    url = master.url(segment="64MiB", local_buffer="16MiB")
    with tl.open(url, namespace="gone") as store:
        (client,) = Watched.made
        store.put(KEYS, rows())
        stored = [f"gone/{key}" for key in KEYS]

        def fill_with_others(real: Any) -> None:
            assert real.batch_remove(stored, True) == [0] * len(KEYS)
            for index, value in enumerate(rows(seed=1000)):
                assert real.put(f"gone/other{index}", value.numpy().tobytes()) == 0

        client.before_answer = fill_with_others
        with pytest.raises(tl.KeyNotFound):
            store.get(KEYS, [ROW] * len(KEYS), torch.float32, delivery="leased")
        assert store.clear() == len(KEYS)


@pytest.mark.parametrize("switch", ["1", "0"])
def test_reads_beside_removals_and_puts_bring_the_keys_own_bytes(
    master: Master, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    """Copied by the readers of this process, and by Mooncake."""
    monkeypatch.setenv("MC_STORE_MEMCPY", switch)
    url = master.url(segment="64MiB", local_buffer="16MiB")
    with tl.open(url, namespace=f"churn{switch}") as store:
        keys = [f"k{index}" for index in range(100)]
        values = [torch.full(ROW, float(index)) for index in range(len(keys))]
        store.put(keys, values)
        ended = threading.Event()

        def change() -> None:
            generator = random.Random(7)
            while not ended.is_set():
                first = generator.randrange(len(keys) - 20)
                store.remove(keys[first : first + 20])
                store.put(keys[first : first + 20], values[first : first + 20])

        changing = Running(change)
        try:
            outcomes = collections.Counter()
            generator = random.Random(8)
            for _ in range(400):
                outcomes[read_one(store, keys, generator.randrange(len(keys)))] += 1
        finally:
            ended.set()
        changing.result()
        assert outcomes["read"] > 0
        assert outcomes["another's"] == 0, outcomes
        store.remove(keys)


def read_one(store: tl.Store, keys: list[str], index: int) -> str:
    try:
        (found,) = store.get([keys[index]], [ROW], torch.float32, delivery="leased")
    except (tl.KeyNotFound, tl.TransferError):
        return "refused"
    return "read" if bool((found == float(index)).all()) else "another's"


def test_an_object_removed_by_this_process_while_it_is_read_is_not_delivered(
    master: Master, watched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Mooncake copies: its read lease does not keep an object from being removed."""
    monkeypatch.setenv("MC_STORE_MEMCPY", "0")
    with tl.open(master.url(segment="64MiB", local_buffer="16MiB"), namespace="beside") as store:
        (client,) = Watched.made
        store.put(["read"], [numbered()])

        def remove_and_fill(real: Any) -> None:
            assert store.remove(["read"]) == 1
            assert real.put("beside/other", (numbered() + 1).numpy().tobytes()) == 0

        client.before_return = remove_and_fill
        with pytest.raises(tl.KeyNotFound, match="removed while it was read"):
            store.get(["read"], [ROW], torch.float32, delivery="leased")
        assert client.before_return is None
        assert store.clear() == 1


def test_a_reader_whose_objects_lie_elsewhere_seldom_asks(master: Master, watched: None) -> None:
    keys = [f"elsewhere{index}" for index in range(4)]
    with owner_of(master, "64MiB"), tl.open(master.url(local_buffer="16MiB"), namespace="far") as writer:
        writer.put(keys, [numbered()] * 4)
        with tl.open(master.url(segment="16MiB", local_buffer="16MiB"), namespace="far", readers=1) as store:
            client = Watched.made[-1]
            before = client.asked
            asked = []
            for _ in range(30):
                assert local_reads(store, keys, ROW, delivery="leased") == 0
                asked.append(client.asked - before)
            # Each time, then every second call, every third, every fifth, every ninth, every sixteenth.
            assert asked[:4] == [1, 2, 3, 4]
            assert asked[-1] == 8


def test_missing_keys_and_calls_that_find_some_here_change_nothing(master: Master, watched: None) -> None:
    with owner_of(master, "64MiB"), tl.open(master.url(local_buffer="16MiB"), namespace="mid") as writer:
        writer.put(["elsewhere"], [numbered()])
        with tl.open(master.url(segment="64MiB", local_buffer="16MiB"), namespace="mid", readers=1) as store:
            client = Watched.made[-1]
            here = client.get_hostname()
            config = importlib.import_module("mooncake.store").ReplicateConfig()
            config.preferred_segment = here
            assert client.put("mid/here", numbered().numpy().tobytes(), config) == 0
            for _ in range(12):
                with pytest.raises(tl.KeyNotFound):
                    store.get(["absent"], [ROW], torch.float32, delivery="leased")
                assert local_reads(store, ["elsewhere"], ROW, delivery="leased") == 0
                assert copied_here(store, ["here"])
