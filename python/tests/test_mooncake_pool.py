"""`pool=store` over Mooncake's own BufferPool: the reference's design, forced on over TCP, where registration costs nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mooncake_rig import cluster, counted
from tensors import DTYPES, assert_same, filled

import tensorlease as tl
from bench.cluster import Master

MIB = 1 << 20
#: One sixty-fourth of the reference's buffer of 1 GiB, so that shapes a sixty-fourth as large take as many leases as there.
LOCAL_BUFFER = "16MiB"
READERS = 4
#: Half of an equal split.
SHARE_BYTES = 2 * MIB


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with cluster(segment="256MiB") as running:
        yield running


def open_pooled(master: Master, options: dict[str, object] | None = None, **settings: Any) -> tl.Store:
    """A store whose reads go through Mooncake's pool."""
    url = master.url(**{"local_buffer": LOCAL_BUFFER, "pool": "store", "force": 1} | (options or {}))
    return tl.open(url, **{"max_bytes": "64MiB", "readers": READERS} | settings)


@pytest.fixture(scope="module")
def opened_once(master: Master) -> Iterator[tl.Store]:
    with open_pooled(master) as opened:
        yield opened


@pytest.fixture
def store(opened_once: tl.Store) -> Iterator[tl.Store]:
    """A store that must have every lease back at the end of the test."""
    yield opened_once
    with counted(opened_once) as gained:
        # As many leases at a time as there may be; one that was lost would be missing here.
        keys = [f"whole {index}" for index in range(READERS)]
        opened_once.put(keys, [filled((SHARE_BYTES,), torch.uint8)] * READERS)
        opened_once.get(keys, [(SHARE_BYTES,)] * READERS, torch.uint8)
    assert (gained["loans"], gained["fallback_reads"], gained["overflow_loans"]) == (READERS, 0, 0)


def put_rows(store: tl.Store, count: int, item_bytes: int, key: str = "row") -> tuple[list[str], list[torch.Tensor]]:
    """Rows of bytes that tell them apart."""
    keys = [f"{key} {item_bytes} {index}" for index in range(count)]
    values = [torch.arange(index, index + item_bytes // 4, dtype=torch.int32) for index in range(count)]
    store.put(keys, values)
    return keys, values


def assert_all_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


# ---- leases and rounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share, of_64, of_1024", [("half", 8, 10), ("quarter", 4, 5)])
def test_a_read_takes_as_many_leases_as_the_reference_counts(
    master: Master, share: str, of_64: int, of_1024: int
) -> None:
    with open_pooled(master, {"share": share}) as store:
        for count, item_bytes, leases in [(64, MIB // 4, of_64), (1024, MIB // 64, of_1024)]:
            keys, values = put_rows(store, count, item_bytes)
            with counted(store) as gained:
                out = store.get(keys, [(item_bytes // 4,)] * count, torch.int32)
            assert_all_same(out, values)
            assert gained["loans"] == gained["engine_read_calls"] == leases
            assert gained["register_calls"] == gained["overflow_loans"] == gained["fallback_reads"] == 0
            store.remove(keys)


def test_batch_keys_bounds_the_keys_of_one_lease(master: Master) -> None:
    with open_pooled(master, batch_keys=50) as store:
        keys, values = put_rows(store, 220, 64)
        with counted(store) as gained:
            assert_all_same(store.get(keys, [(16,)] * 220, torch.int32), values)
        assert gained["loans"] == 5


def test_a_read_larger_than_the_local_buffer_goes_in_rounds(store: tl.Store) -> None:
    keys, values = put_rows(store, 96, MIB // 2)
    with counted(store) as gained:
        assert_all_same(store.get(keys, [(MIB // 8,)] * 96, torch.int32), values)
    assert gained["loans"] == 96 * MIB // 2 // SHARE_BYTES
    assert gained["register_calls"] == 0
    store.remove(keys)


# ---- what is read ----------------------------------------------------------------------------------------------------------------


def test_mixed_dtypes_scalars_and_empty_tensors_come_through_leases(store: tl.Store) -> None:
    shapes = [(), (0,), (4,), (3, 0), (2, 3)]
    wanted = [(shape, dtype) for shape in shapes for dtype in DTYPES]
    keys, values = [f"mixed {index}" for index in range(len(wanted))], [filled(*spec) for spec in wanted]
    store.put(keys, values)
    with counted(store) as gained:
        out = store.get(keys, [shape for shape, _ in wanted], [dtype for _, dtype in wanted])
    assert_all_same(out, values)
    assert 0 < gained["loans"] == gained["engine_read_calls"]
    assert gained["register_calls"] == 0


def test_an_empty_tensor_beside_a_full_one_is_read(store: tl.Store) -> None:
    values = [torch.empty(0), filled((4,))]
    store.put(["empty", "full"], values)
    assert_all_same(store.get(["empty", "full"], [(0,), (4,)], torch.float32), values)


def test_ragged_rows_at_odd_addresses_come_through_leases(store: tl.Store) -> None:
    lens = [1 + 977 * index % 5003 for index in range(300)]
    keys, values = [f"ragged {index}" for index in range(300)], [filled((length,), torch.uint8) for length in lens]
    store.put(keys, values)
    with counted(store) as gained:
        assert_all_same(store.get(keys, [(length,) for length in lens], torch.uint8), values)
    # Back to back, without padding: all of it fits into one share.
    assert sum(lens) < SHARE_BYTES
    assert gained["loans"] == 1
    assert gained["copied_bytes"] == sum(lens)


def test_batches_destinations_and_values_that_are_no_tensors_come_through_leases(store: tl.Store) -> None:
    keys, values = put_rows(store, 8, 4096)
    packed = {"words": ["a", "b"], "number": 7}
    (meta,) = store.put(["packed"], [packed])
    with counted(store) as gained:
        assert_same(store.get_batch(keys, (1024,), torch.int32), torch.stack(values))
        destinations = [torch.zeros(1024, dtype=torch.int32) for _ in keys]
        store.get_into(keys, destinations)
        assert_all_same(destinations, values)
        assert store.get(["packed"], None, [None], [meta]) == [packed]
    assert gained["loans"] == 3
    assert gained["register_calls"] == gained["fallback_reads"] == 0


def test_tensors_of_earlier_reads_stay_as_they_are(store: tl.Store) -> None:
    keys, values = put_rows(store, 32, MIB // 4, key="early")
    others, _ = put_rows(store, 32, MIB // 4, key="late")
    early = store.get(keys, [(MIB // 16,)] * 32, torch.int32)
    for _ in range(3):
        late = store.get(others, [(MIB // 16,)] * 32, torch.int32)
        for tensor in late:
            tensor.fill_(-1)
    assert_all_same(early, values)
    store.remove(keys + others)


# ---- too large for a lease --------------------------------------------------------------------------------------------------------


def test_eight_values_larger_than_a_share_are_one_registration_and_one_transfer(store: tl.Store) -> None:
    keys, values = put_rows(store, 8, 3 * MIB)
    with counted(store) as gained:
        assert_all_same(store.get(keys, [(3 * MIB // 4,)] * 8, torch.int32), values)
    assert gained["register_calls_per_read"] == gained["engine_read_calls"] == 1
    assert gained["fallback_loan_too_large"] == gained["fallback_reads"] == gained["registered_reads"] == 8
    assert gained["loans"] == 0
    store.remove(keys)


def test_a_large_value_among_small_ones_leaves_them_their_leases(store: tl.Store) -> None:
    values = [filled((100,)), filled((3 * MIB,), torch.uint8), filled((100,))]
    store.put(["a", "large", "b"], values)
    shapes, dtypes = [(100,), (3 * MIB,), (100,)], [torch.float32, torch.uint8, torch.float32]
    with counted(store) as gained:
        assert_all_same(store.get(["a", "large", "b"], shapes, dtypes), values)
    assert gained["loans"] == gained["register_calls_per_read"] == gained["fallback_loan_too_large"] == 1


def test_strict_refuses_what_is_larger_than_a_share(master: Master) -> None:
    with open_pooled(master, strict=True) as store:
        value = filled((3 * MIB,), torch.uint8)
        store.put(["large", "small"], [value, filled((4,))])
        with pytest.raises(tl.FallbackError, match="local_buffer"):
            store.get(["small", "large"], [(4,), (3 * MIB,)], [torch.float32, torch.uint8])
        assert store.stats()["fallback_reads"] == 0
        assert len(store.get(["small"], [(4,)], torch.float32)) == 1


# ---- failures ---------------------------------------------------------------------------------------------------------------------


def test_a_read_that_fails_gives_its_leases_back_and_tells_its_own_error(store: tl.Store) -> None:
    keys, _ = put_rows(store, 4, MIB)
    for _ in range(3):
        with pytest.raises(tl.KeyNotFound) as missing:
            store.get([*keys, "missing"], [(MIB // 4,)] * 5, torch.int32)
        assert [failure.key for failure in missing.value.failures] == ["missing"]
        with pytest.raises(tl.SizeMismatch) as mismatch:
            store.get(keys, [(MIB // 4,)] * 3 + [(MIB // 4 - 1,)], torch.int32)
        assert [failure.key for failure in mismatch.value.failures] == [keys[3]]
    store.remove(keys)


# ---- where there is no pool ------------------------------------------------------------------------------------------------------


def test_over_tcp_the_pool_is_left_alone_unless_it_is_forced(master: Master, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tensorlease")
    url = master.url(local_buffer=LOCAL_BUFFER, pool="store")
    with tl.open(url, max_bytes="64MiB", readers=READERS) as store:
        keys, values = put_rows(store, 400, MIB // 64)
        with counted(store) as gained:
            assert_all_same(store.get(keys, [(MIB // 256,)] * 400, torch.int32), values)
        # One call where the pool would have made four, and no copy.
        assert gained["engine_read_calls"] == 1
        assert gained["loans"] == gained["copied_bytes"] == gained["register_calls"] == 0
        store.remove(keys)
    assert caplog.records == []


def test_a_mooncake_without_the_pool_reads_by_registration_and_names_the_version_once(
    master: Master, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import mooncake.store

    monkeypatch.delattr(mooncake.store, "BufferPool")
    caplog.set_level(logging.WARNING, "tensorlease")
    with open_pooled(master) as store:
        keys, values = put_rows(store, 4, 4096)
        for _ in range(2):
            with counted(store) as gained:
                assert_all_same(store.get(keys, [(1024,)] * 4, torch.int32), values)
            assert gained["register_calls_per_read"] == gained["engine_read_calls"] == 1
            assert gained["fallback_no_loan"] == gained["registered_reads"] == 4
    (warning,) = caplog.records
    assert "mooncake-transfer-engine 0.3.12" in warning.getMessage()


def test_closing_closes_the_pool_before_the_store_and_leaves_tensors_valid(
    master: Master, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tensorlease")
    store = open_pooled(master)
    keys, values = put_rows(store, 4, MIB)
    out = store.get(keys, [(MIB // 4,)] * 4, torch.int32)
    caplog.clear()
    store.close()
    store.close()
    # A pool that is refused its close says so.
    assert caplog.records == []
    assert_all_same(out, values)
    with pytest.raises(tl.Closed):
        store.get(keys, [(MIB // 4,)] * 4, torch.int32)
