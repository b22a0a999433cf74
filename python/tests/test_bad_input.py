"""Every bad input is a typed error that says what to do, comes within 2 seconds, and leaves the store usable (the fixture checks that).

`docs/bad_input.md` lists these cases.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import URL, RunPython
from tensors import assert_same, filled

import tensorlease as tl

pytestmark = pytest.mark.alone

F32 = torch.float32
MESSAGE_CHARACTERS_MAX = 3000


#: Two seconds are promised; the rest is for a busy machine.
SECONDS_MAX = 5.0


@pytest.fixture(autouse=True)
def within_seconds(request: pytest.FixtureRequest) -> Iterator[None]:
    started = time.monotonic()
    yield
    # Tests that start an interpreter measure inside it.
    if "run_python" not in request.fixturenames:
        assert time.monotonic() - started < SECONDS_MAX


def refused(error: type[tl.Error], call: Callable[[], object], *parts: str) -> tl.Error:
    """The call raises this error, and its message names all of these parts."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is error
    assert 0 < len(message) < MESSAGE_CHARACTERS_MAX
    for part in parts:
        assert part in message, message
    return caught.value


def test_a_store_is_made_by_open_alone() -> None:
    refused(tl.ConfigError, lambda: tl.Store(URL), "tensorlease.open(")
    refused(tl.ConfigError, lambda: tl.Store(URL, max_bytes="64MiB"), "tensorlease.open(")


# ---- keys and lists ---------------------------------------------------------------------------------------------------------


def test_lists_of_unequal_length_are_refused(store: tl.Store) -> None:
    one = torch.zeros(1)
    refused(tl.ConfigError, lambda: store.put(["a", "b"], [one]), "values has 1", "keys has 2")
    refused(tl.ConfigError, lambda: store.get(["a"], [(1,), (1,)], [F32]), "shapes has 2", "keys has 1")
    refused(tl.ConfigError, lambda: store.get(["a", "b"], [(1,), (1,)], [F32]), "dtypes has 1")
    refused(tl.ConfigError, lambda: store.get(["a"], None, [None], [None, None]), "custom_backend_meta has 2")
    refused(tl.ConfigError, lambda: store.get_batch(["a", "b"], [(1,)], F32), "shape", "one entry per key")
    refused(tl.ConfigError, lambda: store.get_into(["a"], []), "tensors has 0")


@pytest.mark.parametrize("keys", ["abc", b"abc", {"a": 1}, 5, None, torch.zeros(2)], ids=repr)
def test_keys_that_are_no_list_are_refused(store: tl.Store, keys: Any) -> None:
    refused(tl.ConfigError, lambda: store.put(keys, [1, 2, 3]), "keys is a ", "list")
    refused(tl.ConfigError, lambda: store.get(keys), "keys is a ", "list")
    refused(tl.ConfigError, lambda: store.remove(keys), "keys is a ", "list")


def test_values_that_are_no_list_are_refused(store: tl.Store) -> None:
    refused(tl.ConfigError, lambda: store.put(["a", "b"], torch.zeros(2, 3)), "values is a Tensor", "list")
    refused(tl.ConfigError, lambda: store.put(["a", "b"], "xy"), "values is a str")


@pytest.mark.parametrize("key", [None, 1, b"x", ("a",)], ids=repr)
def test_a_key_that_is_no_str_is_refused(store: tl.Store, key: Any) -> None:
    refused(tl.ConfigError, lambda: store.put(["a", key], [1, 2]), "keys[1]", "a key is a str")
    refused(tl.ConfigError, lambda: store.contains([key]), "keys[0]")


def test_an_empty_key_is_refused(store: tl.Store) -> None:
    refused(tl.ConfigError, lambda: store.put(["a", ""], [1, 2]), "keys[1] is empty")
    refused(tl.ConfigError, lambda: store.get([""], [(1,)], [F32]), "keys[0] is empty")
    assert store.contains(["a"]) == [False]


def test_a_key_with_a_lone_surrogate_is_refused(store: tl.Store) -> None:
    refused(tl.ConfigError, lambda: store.put(["\ud800"], [1]), "surrogate", "\\ud800")


def test_a_key_too_long_for_any_engine_is_refused(store: tl.Store) -> None:
    store.put(["é" * 20_000], [1])
    refused(tl.ConfigError, lambda: store.put(["é" * 20_000 + "k"], [1]), "40001 bytes", "at most 40000")


@pytest.mark.parametrize("key", ["k" * 10_000, "ключ/鍵/🔑", "with\0nul", " ", "\n", "a/../b", "%s{}"], ids=ascii)
def test_long_unicode_and_odd_keys_work(store: tl.Store, key: str) -> None:
    value = filled((3,))
    store.put([key, key + "x"], [value, "text"])
    assert_same(store.get([key], [(3,)], [F32])[0], value)
    assert store.get([key + "x"]) == ["text"]
    assert store.contains([key]) == [True]
    refused(tl.SizeMismatch, lambda: store.get([key], [(4,)], [F32]))
    assert store.remove([key, key + "x"]) == 2
    error = refused(tl.KeyNotFound, lambda: store.get([key], [(3,)], [F32]))
    assert [failure.key for failure in error.failures] == [key]


def test_a_key_twice_in_one_put_is_refused(store: tl.Store) -> None:
    refused(tl.ConfigError, lambda: store.put(["a", "b", "a"], [1, 2, 3]), '"a"', "twice")
    assert store.contains(["a", "b"]) == [False, False]


def test_missing_keys_are_all_named(store: tl.Store) -> None:
    store.put(["there"], [torch.zeros(2)])
    keys = ["there"] + [f"missing/{index}" for index in range(50)]
    error = refused(tl.KeyNotFound, lambda: store.get(keys, [(2,)] * 51, F32), "missing/0", "40 more")
    assert {failure.key for failure in error.failures} == set(keys[1:])
    assert {failure.kind for failure in error.failures} == {"not_found"}
    assert isinstance(error, KeyError)
    assert not str(error).startswith(("'", '"'))
    error = refused(tl.KeyNotFound, lambda: store.get(["nope"]), "nope")
    assert store.remove(["nope"]) == 0


# ---- dtypes and shapes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["float31", "", torch.qint8, torch.int4, np.dtype("U3"), np.dtype("O"), float, 7, np.float128], ids=repr
)
def test_an_unknown_dtype_is_refused(store: tl.Store, dtype: Any) -> None:
    refused(tl.ConfigError, lambda: store.get(["some key"], [(1,)], [dtype]), "some key", "bfloat16")
    refused(tl.ConfigError, lambda: store.get_batch(["a"], (1,), dtype), "dtype of the batch", "bfloat16")


def test_a_dtype_in_foreign_byte_order_is_refused(store: tl.Store) -> None:
    refused(tl.ConfigError, lambda: store.get(["a"], [(1,)], [np.dtype(">f4")]), "byte order")


@pytest.mark.parametrize("shape", [(-1,), (2, -3), (2**63,), (1.5,), ("3",), (None,), "33", 1.5, (1,) * 65], ids=str)
def test_a_shape_that_is_none_is_refused(store: tl.Store, shape: Any) -> None:
    refused(tl.ConfigError, lambda: store.get(["some key"], [shape], [F32]), "shape", "some key")


@pytest.mark.parametrize("shape", [(2**62, 4), (2**32, 2**32), (2**61,), (2**31, 2**31, 4)], ids=str)
def test_a_shape_that_overflows_is_refused(store: tl.Store, shape: Any) -> None:
    refused(tl.ConfigError, lambda: store.get(["some key"], [shape], [torch.float64]), "some key", "more bytes than")


def test_a_shape_larger_than_the_arena_is_an_error_in_time(store: tl.Store) -> None:
    store.put(["a"], [torch.zeros(2)])
    refused(tl.SizeMismatch, lambda: store.get(["a"], [(2**40,)], [torch.int8]), '"a"', "1099511627776")


def test_shapes_without_dtypes_and_dtypes_without_shapes_are_refused(store: tl.Store) -> None:
    refused(tl.ConfigError, lambda: store.get(["some key"], [(1,)]), "some key", "dtypes is missing")
    refused(tl.ConfigError, lambda: store.get(["some key"], None, [F32]), "some key", "shapes is missing")
    refused(tl.ConfigError, lambda: store.get(["some key"], [None], [F32]), "some key", "no shape")
    refused(tl.ConfigError, lambda: store.get(["a", "b"], (3, 4), F32), "one shape", "list")


def test_another_dtype_or_shape_than_stored_is_refused(store: tl.Store) -> None:
    store.put(["stored"], [filled((2, 6))])
    for shape, dtype in [
        ((6, 2), F32),
        ((12,), F32),
        ((2, 6), torch.int32),
        ((2, 5), F32),
        ((2, 6), torch.float64),
        ((2, 7), F32),
    ]:
        error = refused(
            tl.SizeMismatch, lambda shape=shape, dtype=dtype: store.get(["stored"], [shape], [dtype]), "stored"
        )
        assert [failure.key for failure in error.failures] == ["stored"]
        assert isinstance(error, ValueError)


def test_a_value_where_a_tensor_was_expected_and_the_reverse_are_refused(store: tl.Store) -> None:
    tensor = torch.arange(4.0)
    metas = store.put(["value", "tensor"], [{"a": 1}, tensor])
    refused(tl.SizeMismatch, lambda: store.get(["value"], [(4,)], [F32]), "value")
    (array,) = store.get(["tensor"], None, [None])
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0]
    del array
    refused(tl.SizeMismatch, lambda: store.get(["tensor"], None, [None], [metas[0]]), "tensor")
    refused(tl.SizeMismatch, lambda: store.get(["value"], None, [None], [{"packed_size": 1}]), "value")


@pytest.mark.parametrize("meta", [{}, {"packed_size": "x"}, {"packed_size": -1}, {"packed_size": None}, 7], ids=str)
def test_a_meta_that_put_did_not_return_is_refused(store: tl.Store, meta: Any) -> None:
    refused(tl.ConfigError, lambda: store.get(["some key"], None, [None], [meta]), "some key", "what put() returned")


# ---- tensors ----------------------------------------------------------------------------------------------------------------


def shape_that_its_storage_does_not_hold() -> torch.Tensor:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(40)
    return tensor


def freed_storage() -> torch.Tensor:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("make", [shape_that_its_storage_does_not_hold, freed_storage])
def test_a_tensor_whose_storage_does_not_hold_it_is_refused(store: tl.Store, make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    refused(tl.ConfigError, lambda: store.put(["some key"], [tensor]), "some key", "storage", "4000")
    refused(tl.ConfigError, lambda: store.put(["some key"], [{"inside": tensor}]), "some key", "storage")
    store.put(["a"], [torch.zeros(1000)])
    refused(tl.ConfigError, lambda: store.get_into(["a"], [tensor]), "storage")


def test_a_leased_tensor_whose_resize_failed_reaches_no_other_lease(store: tl.Store) -> None:
    store.put(["a", "secret", "long"], [torch.zeros(10000), torch.full((10000,), 42.0), torch.ones(20000)])
    tensor, secret = store.get(["a", "secret"], [(10000,)] * 2, F32, delivery="leased")
    with pytest.raises(RuntimeError):
        tensor.resize_(20000)
    refused(tl.ConfigError, lambda: store.put(["leak"], [tensor]), "leak", "storage")
    refused(tl.ConfigError, lambda: store.get_into(["long"], [tensor]), "storage")
    assert secret.unique().tolist() == [42.0]
    del secret


def test_tensors_without_memory_of_their_own_are_refused(store: tl.Store) -> None:
    functional = torch._to_functional_tensor(torch.ones(3))
    refused(tl.ConfigError, lambda: store.put(["some key"], [functional]), "some key")

    def inside(row: torch.Tensor) -> torch.Tensor:
        refused(tl.ConfigError, lambda: store.put(["some key"], [row]), "some key")
        return row

    torch.func.vmap(inside)(torch.ones(2, 3))
    refused(tl.ConfigError, lambda: store.put(["some key"], [torch.nn.UninitializedParameter()]), "some key")


def test_integers_of_less_than_a_byte_are_refused(store: tl.Store) -> None:
    tensor = torch.empty(4, dtype=torch.uint8).view(torch.uint4)
    refused(tl.ConfigError, lambda: store.put(["some key"], [tensor]), "some key", "uint4")


@pytest.mark.parametrize("timeout", ["5s", [1], 1j, 10**400], ids=str)
def test_a_timeout_that_is_no_number_is_refused(store: tl.Store, timeout: Any) -> None:
    refused(tl.ConfigError, lambda: store.get(["a"], timeout=timeout), "timeout")
    refused(tl.ConfigError, lambda: store.wait(["a"], timeout), "timeout")


def test_a_wait_that_ends_names_what_is_not_there(store: tl.Store) -> None:
    store.put(["there"], [1])
    error = refused(tl.Timeout, lambda: store.wait(["there", "some key"], 0.05), "some key")
    assert [failure.key for failure in error.failures] == ["some key"]


def test_fields_that_are_no_mapping_and_a_strict_that_is_no_bool_are_refused(store: tl.Store) -> None:
    refused(tl.ConfigError, lambda: store.get_batches([("a", 1)]), "get_batches")  # type: ignore[arg-type]
    refused(tl.ConfigError, lambda: tl.open(URL, strict="no"), "strict")  # type: ignore[arg-type]


def test_a_wrong_dtype_is_told_what_is_there(store: tl.Store) -> None:
    store.put(["some key"], [torch.zeros(3, dtype=torch.int64)])
    refused(
        tl.SizeMismatch,
        lambda: store.get(["some key"], [(6,)], [F32]),
        "some key",
        "stored as int64 (3,)",
        "you asked for float32 (6,)",
        "24 bytes",
    )


def test_non_contiguous_tensors_are_stored_by_value(store: tl.Store) -> None:
    value = filled((5, 6), torch.int32)[:, ::2].t()
    store.put(["a"], [value])
    assert_same(store.get(["a"], [(3, 5)], [torch.int32])[0], value)


def test_tensors_that_require_grad_are_stored_detached(store: tl.Store) -> None:
    value = filled((3,), torch.float16).requires_grad_()
    store.put(["a", "b"], [value, [value]])
    tensor, (inside,) = store.get(["a", "b"])
    for found in [tensor, inside]:
        assert_same(found, value.detach())
        assert not found.requires_grad


@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:.*beta", "ignore:.*prototype")
@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: torch.eye(3).to_sparse(), ["sparse", "to_dense"]),
        (lambda: torch.eye(4).to_sparse_csr(), ["sparse_csr", "to_dense"]),
        (lambda: torch.zeros(3, device="meta"), ["meta"]),
        (lambda: torch.nn.Parameter(torch.zeros(3, device="meta")), ["meta"]),
        (lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8), ["quantized", "dequantize"]),
        (
            lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
            ["nested", "unbind"],
        ),
        (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), ["nested", "unbind"]),
        (lambda: _fake(), ["fake"]),
    ],
    ids=["sparse", "csr", "meta", "meta-parameter", "quantized", "jagged", "nested", "fake"],
)
def test_tensors_without_plain_memory_are_refused(store: tl.Store, make: Callable[[], Any], parts: list[str]) -> None:
    value = make()
    refused(tl.ConfigError, lambda: store.put(["ok", "some key"], [torch.zeros(1), value]), "some key", *parts)
    refused(tl.ConfigError, lambda: store.put(["some key"], [{"inside": value}]), "some key", *parts)
    assert store.contains(["ok"]) == [False]


def _fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(3)


# ---- other arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan])
def test_a_timeout_that_is_none_is_refused(store: tl.Store, timeout: float) -> None:
    refused(tl.ConfigError, lambda: store.get(["a"], timeout=timeout), "timeout")
    refused(tl.ConfigError, lambda: store.put(["a"], [1], timeout=timeout), "timeout")
    refused(tl.ConfigError, lambda: store.wait(["a"], timeout), "timeout")


@pytest.mark.parametrize("timeout", [1e300, math.inf, 5])
def test_a_very_long_timeout_works(store: tl.Store, timeout: float) -> None:
    store.put(["a"], [1], timeout=timeout)
    assert store.get(["a"], timeout=timeout) == [1]


def test_a_wait_ends_at_its_timeout(store: tl.Store) -> None:
    started = time.monotonic()
    error = refused(tl.Timeout, lambda: store.wait(["never"], timeout=0.1))
    assert isinstance(error, TimeoutError)
    assert 0.1 <= time.monotonic() - started < 2


@pytest.mark.parametrize("delivery", ["", "Leased", "fast"])
def test_an_unknown_delivery_is_refused(store: tl.Store, delivery: str) -> None:
    refused(tl.ConfigError, lambda: store.get(["a"], delivery=delivery), "delivery", "leased", "register-per-call")
    refused(tl.ConfigError, lambda: tl.open(URL, delivery=delivery), "delivery", "leased")


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("", ["embedded://"]),
        ("nonsense", ["nonsense"]),
        ("redis://localhost", ["redis", "embedded://"]),
        ("embedded://?colour=red", ["colour", "capacity"]),
        ("embedded://?capacity=lots", ["capacity", "lots"]),
        ("embedded://?capacity=1", ["capacity", "page"]),
        ("embedded://?registration=maybe", ["registration", "pinned"]),
        ("embedded://host", ["host"]),
        ("embedded://?faults=boom", ["boom", "slow"]),
    ],
)
def test_an_unknown_url_or_option_is_refused(url: str, parts: list[str]) -> None:
    refused(tl.ConfigError, lambda: tl.open(url), *parts)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_bytes", "much"),
        ("max_bytes", -1),
        ("max_bytes", 1.5),
        ("max_bytes", 0),
        ("max_bytes", "99999999999TiB"),
        ("readers", 0),
        ("readers", 100_000),
        ("readers", "4"),
        ("retries", -1),
        ("prewarm", "2GiB"),
        ("bounce_bytes", "2GiB"),
        ("copy_cache_bytes", "x"),
        ("quarantine_bytes", None.__class__),
        ("fork", "copy"),
        ("namespace", 7),
        ("namespace", "n" * 5000),
        ("call_timeout", 0),
        ("call_timeout", math.nan),
    ],
    ids=str,
)
def test_an_option_out_of_range_is_refused(option: str, value: Any) -> None:
    settings = {"max_bytes": "64MiB", option: value}
    refused(tl.ConfigError, lambda: tl.open(URL, **settings), option)


def test_more_memory_than_the_machine_has_is_refused() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    refused(tl.ConfigError, lambda: tl.open(URL, max_bytes=4 * pages), "max_bytes", "lower it")
    refused(tl.ConfigError, lambda: tl.open(f"embedded://?capacity={4 * pages}"), "capacity")


def test_an_arena_of_one_page_works() -> None:
    value = filled((100_000,))
    with tl.open(URL, max_bytes=os.sysconf("SC_PAGE_SIZE")) as store:
        store.put(["a", "b"], [value, "text"])
        for delivery in ["auto", "leased", "copied"]:
            found, text = store.get(["a", "b"], [value.shape, None], [F32, None], delivery=delivery)
            assert_same(found, value)
            assert text == "text"


def test_a_full_store_says_so_and_keeps_what_it_has() -> None:
    value = filled((1 << 20,), torch.int8)
    with tl.open("embedded://?capacity=8MiB", max_bytes="16MiB") as store:
        store.put(["kept"], [value])
        keys = [f"more/{index}" for index in range(20)]
        error = refused(tl.StoreFull, lambda: store.put(keys, [value] * 20), "more/")
        assert isinstance(error, MemoryError)
        assert {failure.key for failure in error.failures} <= set(keys)
        assert_same(store.get(["kept"])[0], value)
        store.clear()
        store.put(keys[:4], [value] * 4)


def test_a_strict_store_names_the_fallback_it_would_need() -> None:
    value = filled((3 << 20,), torch.int8)
    with tl.open(URL, max_bytes="16MiB", strict=True) as store:
        keys = [f"{index}" for index in range(8)]
        store.put(keys, [value] * 8)
        error = refused(tl.FallbackError, lambda: store.get(keys, delivery="leased"), "max_bytes")
        assert not isinstance(error, tl.ConfigError)
        assert store.stats()["leased_bytes"] == 0
        assert_same(store.get(keys[:1], delivery="leased")[0], value)


def test_every_call_on_a_closed_store_says_so() -> None:
    store = tl.open(URL, max_bytes="16MiB")
    store.put(["a"], [1])
    store.close()
    store.close()
    assert store.closed
    calls: list[Callable[[], object]] = [
        lambda: store.put(["a"], [1]),
        lambda: store.get(["a"]),
        lambda: store.get_batch(["a"], (1,), F32),
        lambda: store.get_into(["a"], [torch.zeros(1)]),
        lambda: store.empty((1,), F32),
        lambda: store.contains(["a"]),
        lambda: store.wait(["a"]),
        lambda: store.remove(["a"]),
        lambda: store.clear(),
        lambda: store.trim(),
    ]
    for call in calls:
        refused(tl.Closed, call, "closed")
    assert store.stats()["leased_bytes"] == 0
    assert repr(store) == f"<tensorlease.Store {URL} closed>"


def test_use_after_a_fork_says_so(store: tl.Store) -> None:
    store.put(["a"], [filled((1000,))])
    (tensor,) = store.get(["a"], delivery="leased")
    expected = tensor.sum().item()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            calls: list[Callable[[], object]] = [
                lambda: store.get(["a"]),
                lambda: store.put(["b"], [1]),
                lambda: store.contains(["a"]),
                lambda: store.remove(["a"]),
                lambda: store.stats(),
                lambda: store.trim(),
            ]
            for call in calls:
                refused(tl.Closed, call, "fork")
            readable = math.isnan(expected) or tensor.sum().item() == expected
            del tensor
            store.close()
            code = 0 if readable else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.stats()["leased_bytes"] > 0
    del tensor


# ---- what the system refuses ------------------------------------------------------------------------------------------------

PINNED = """
import time, tensorlease as tl
started = time.monotonic()
try:
    store = tl.open("embedded://?capacity=64MiB&registration=pinned", max_bytes="64MiB")
except tl.EngineUnavailable as error:
    print("refused", error)
else:
    print("opened")
assert time.monotonic() - started < 2
with tl.open("embedded://?capacity=64MiB", max_bytes="16MiB") as store:
    store.put(["a"], [1])
    assert store.get(["a"]) == [1]
"""


def test_a_memlock_limit_that_is_too_low_is_named(run_python: RunPython) -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        # Root may pin without limit unless it gives CAP_IPC_LOCK up.
        ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)

    done = run_python(PINNED, preexec_fn=lower)
    assert done.stdout.startswith("refused")
    assert "memlock" in done.stdout.lower()


def test_an_io_uring_that_is_refused_is_named(run_python: RunPython) -> None:
    done = run_python(PINNED, preexec_fn=_refuse_io_uring)
    assert done.stdout.startswith("refused")
    assert "io_uring" in done.stdout


def _refuse_io_uring() -> None:
    """A seccomp filter that answers io_uring_setup with EPERM, as containers do."""

    class Filter(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]

    io_uring_setup, eperm = 425, 1
    steps = (Filter * 4)(
        Filter(0x20, 0, 0, 0),  # load the number of the call
        Filter(0x15, 0, 1, io_uring_setup),
        Filter(0x06, 0, 0, 0x00050000 | eperm),
        Filter(0x06, 0, 0, 0x7FFF0000),
    )
    program = Program(4, steps)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
