"""What can be seen from outside: counters and log lines."""

from __future__ import annotations

import logging

import pytest
import torch
from conftest import URL
from tensorlease._core._tests import is_leased
from tensors import assert_same, filled

import tensorlease as tl
from tensorlease._core import Lease

NAMES = {
    "register_calls",
    "registered_bytes",
    "leased_bytes",
    "in_flight_bytes",
    "quarantined_bytes",
    "arena_bytes",
    "copied_bytes",
    "leased_reads",
    "copied_reads",
    "fallback_reads",
    "retries",
    "slabs_made",
    "engine_read_calls",
    "engine_write_calls",
    "wrap_seconds",
    "log_records_dropped",
}


def test_stats_are_numbers_under_the_promised_names(store: tl.Store) -> None:
    stats = store.stats()
    assert set(stats) >= NAMES
    for name, value in stats.items():
        assert isinstance(value, float if name.endswith("_seconds") else int), name
        assert value >= 0


def test_a_renamed_counter_keeps_its_older_name_for_one_version() -> None:
    with tl.open(f"{URL}&registration=pinned", max_bytes="8MiB") as store:
        store.put(["a"], [filled((1024,))])
        store.get(["a"], delivery="register-per-call")
        stats = store.stats()
        assert stats["hot_path_register_calls"] == stats["register_calls_per_read"] > 0


def test_reads_are_counted_by_how_they_were_delivered(store: tl.Store) -> None:
    store.put(["a", "b"], [filled((9000,)), filled((9000,))])
    before = store.stats()
    kept = store.get(["a", "b"], delivery="leased")
    middle = store.stats()
    assert middle["leased_reads"] - before["leased_reads"] == 2
    assert middle["copied_reads"] == before["copied_reads"]
    assert middle["leased_bytes"] >= 72_000
    store.get(["a"], delivery="copied")
    after = store.stats()
    assert after["copied_reads"] - middle["copied_reads"] == 1
    assert after["engine_read_calls"] > before["engine_read_calls"]
    assert after["wrap_seconds"] > before["wrap_seconds"]
    del kept


def test_pooled_reads_register_nothing(store: tl.Store) -> None:
    keys = [str(index) for index in range(50)]
    store.put(keys, [filled((5000,)) for _ in keys])
    store.get(keys, delivery="leased")
    before = store.stats()["register_calls"]
    for delivery in ["auto", "leased", "copied"]:
        store.get(keys, delivery=delivery)
    assert store.stats()["register_calls"] == before


def test_retained_tensors_do_not_break_later_reads() -> None:
    values = [filled((1 << 20,), torch.int8) for _ in range(24)]
    with tl.open(URL, max_bytes="16MiB") as store:
        keys = [str(index) for index in range(24)]
        store.put(keys, values)
        kept = [store.get([key], [(1 << 20,)], "int8", delivery="leased")[0] for key in keys]
        for found, expected in zip(kept, values, strict=True):
            assert_same(found, expected)
        stats = store.stats()
        assert stats["fallback_reads"] > 0
        assert stats["fallback_budget"] + stats["fallback_too_large"] == stats["fallback_reads"]
        assert stats["arena_bytes"] <= 16 << 20
        del kept, found
        assert store.stats()["leased_bytes"] == 0


def test_trim_gives_memory_back_and_reads_go_on() -> None:
    with tl.open(URL, max_bytes="64MiB") as store:
        store.put(["a"], [filled((1 << 20,), torch.int8)])
        store.get(["a"], delivery="leased")
        assert store.trim() > 0
        assert store.stats()["arena_bytes"] == 0
        assert store.get(["a"], delivery="leased")[0].shape == (1 << 20,)


def test_log_lines_come_through_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "tensorlease"), tl.open(URL, max_bytes="16MiB") as store:
        store.put(["a"], [1])
    records = [record for record in caplog.records if record.name == "tensorlease"]
    assert any(record.levelno == logging.INFO and "embedded" in record.getMessage() for record in records)


def test_log_lines_below_the_level_are_not_made(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "tensorlease"), tl.open(URL, max_bytes="16MiB") as store:
        store.put(["a"], [1])
    assert not caplog.records


def test_a_log_handler_may_use_the_store(store: tl.Store) -> None:
    seen: list[bool] = []

    class Asking(logging.Handler):
        """Calls the store from inside a log line."""

        def emit(self, record: logging.LogRecord) -> None:
            seen.extend(store.contains(["a"]))

    handler, logger = Asking(), logging.getLogger("tensorlease")
    store.put(["a"], [1])
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        tl.open(URL, max_bytes="16MiB").close()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert seen
    assert all(seen)


def test_a_lease_is_a_writable_buffer_of_its_bytes(store: tl.Store) -> None:
    import numpy as np

    store.put(["a"], [np.arange(5000, dtype=np.int16)])
    (array,) = store.get(["a"], [(5000,)], [np.int16], delivery="leased")
    lease = array.base
    assert isinstance(lease, Lease)
    assert is_leased(lease)
    assert len(lease) == 10_000
    view = memoryview(lease)
    assert not view.readonly
    assert view.nbytes == 10_000
    assert view[2] == 1
    del array, lease
    assert store.stats()["leased_bytes"] > 0
    view.release()
    assert store.stats()["leased_bytes"] == 0
