"""Who owns delivered memory, and when it goes back."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RunPython, assert_all_given_back
from tensorlease._core._tests import import_as_capsules, import_what_torch_refuses
from tensors import assert_same, filled

import tensorlease as tl

BIG = (64, 1024)
BIG_BYTES = 64 * 1024 * 4


def held(store: tl.Store) -> float:
    return store.stats()["leased_bytes"]


def read_one(store: tl.Store, delivery: str = "leased") -> Any:
    """One tensor of BIG."""
    store.put(["one"], [filled(BIG)])
    return store.get(["one"], [BIG], [torch.float32], delivery=delivery)[0]


@pytest.fixture(params=["exchange", "capsule"])
def way(request: pytest.FixtureRequest) -> Any:
    """Both ways into torch."""
    import_as_capsules(request.param == "capsule")
    yield request.param
    import_as_capsules(False)


@pytest.mark.parametrize("delivery", ["leased", "copied", "auto", "register-per-call"])
def test_each_tensor_has_a_storage_of_its_own_with_its_exact_bytes(store: tl.Store, delivery: str, way: str) -> None:
    values = [filled((rows, 33), torch.int16) for rows in [1, 7, 700, 9000]]
    store.put(list("abcd"), values)
    out = store.get(list("abcd"), [value.shape for value in values], torch.int16, delivery=delivery)
    for tensor in out:
        storage = tensor.untyped_storage()
        assert storage.nbytes() == tensor.numel() * 2
        assert tensor.storage_offset() == 0
        assert tensor.is_contiguous()
        assert tensor._base is None
        assert tensor._version == 0
        # The baseline packs tensors of one dtype without gaps.
        assert tensor.data_ptr() % (2 if delivery == "register-per-call" else 64) == 0
        assert not storage.resizable()
        assert len(pickle.dumps(tensor)) < storage.nbytes() + 1000
    out[0].add_(1)
    assert [tensor._version for tensor in out] == [1, 0, 0, 0]
    assert_same(out[1], values[1])


@pytest.mark.parametrize("delivery", ["leased", "copied"])
def test_a_key_asked_for_twice_gives_two_tensors(store: tl.Store, delivery: str) -> None:
    value = filled(BIG)
    store.put(["a"], [value])
    first, second = store.get(["a", "a"], [BIG] * 2, torch.float32, delivery=delivery)
    assert first.data_ptr() != second.data_ptr()
    first.zero_()
    assert_same(second, value)
    assert_same(store.get(["a"], [BIG], torch.float32)[0], value)


def test_a_tensor_can_not_be_made_larger(store: tl.Store) -> None:
    tensor = read_one(store)
    with pytest.raises(RuntimeError, match="resiz"):
        tensor.untyped_storage().resize_(2 * BIG_BYTES)


def test_leased_memory_goes_back_with_the_last_reference(store: tl.Store, way: str) -> None:
    tensor = read_one(store)
    assert held(store) >= BIG_BYTES
    del tensor
    assert held(store) == 0


KEEPERS: dict[str, Callable[[Any], Any]] = {
    "a view of a view": lambda t: t[1:][:, 2:],
    "its storage": lambda t: t.untyped_storage(),
    "its numpy array": lambda t: t.numpy(),
    "a memoryview of its array": lambda t: memoryview(t.numpy()),
    "its detached twin": lambda t: t.detach(),
    "its data": lambda t: t.data,
    "a parameter": lambda t: torch.nn.Parameter(t),
    "a capsule of it": lambda t: torch.utils.dlpack.to_dlpack(t),
    "a graph that saved it": lambda t: t.requires_grad_() ** 2,
}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS.keys())
def test_memory_stays_while_anything_of_the_tensor_lives(store: tl.Store, keep: Callable[[Any], Any]) -> None:
    tensor = read_one(store)
    kept = keep(tensor)
    del tensor
    assert held(store) >= BIG_BYTES
    del kept
    assert held(store) == 0


def test_memory_in_a_cycle_goes_back_when_the_collector_finds_it(store: tl.Store) -> None:
    tensor = read_one(store)
    tensor.me = tensor
    del tensor
    gc.collect()
    assert held(store) == 0


def test_copies_of_a_tensor_do_not_keep_its_memory(store: tl.Store) -> None:
    tensor = read_one(store)
    file = io.BytesIO()
    torch.save(tensor, file)
    copies = [copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor)), tensor.clone()]
    del tensor
    assert held(store) == 0
    file.seek(0)
    for other in copies:
        assert_same(other, torch.load(file))
        file.seek(0)


def test_sharing_a_tensor_between_processes_moves_it_out(store: tl.Store) -> None:
    tensor = read_one(store)
    expected = tensor.clone()
    tensor.share_memory_()
    assert held(store) == 0
    assert_same(tensor, expected)


def test_the_last_reference_may_go_in_another_thread(store: tl.Store) -> None:
    box = [read_one(store)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert held(store) == 0


def test_the_last_reference_may_go_in_a_weakref_callback(store: tl.Store) -> None:
    class Box:
        """Something that can be referred to weakly."""

    kept, box = [read_one(store)], Box()
    reference = weakref.ref(box, lambda _: kept.clear())
    del box
    assert reference() is None
    assert held(store) == 0


def test_the_last_reference_may_go_in_backward(store: tl.Store) -> None:
    weights = torch.ones(BIG, requires_grad=True)
    loss = (weights * read_one(store)).sum()
    assert held(store) >= BIG_BYTES
    loss.backward()
    assert weights.grad is not None
    assert held(store) == 0


def test_threads_drop_while_others_read(store: tl.Store) -> None:
    values = [filled((32, 256)) for _ in range(64)]
    keys = [str(index) for index in range(64)]
    store.put(keys, values)
    dropped: list[BaseException] = []

    def read_and_drop() -> None:
        try:
            for _ in range(15):
                out = store.get(keys, [(32, 256)] * 64, torch.float32, delivery="leased")
                assert_same(out[63], values[63])
                out.reverse()
                out.clear()
        except BaseException as error:
            dropped.append(error)

    threads = [threading.Thread(target=read_and_drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not dropped
    assert held(store) == 0


def test_tensors_outlive_their_store() -> None:
    store = tl.open("embedded://?capacity=16MiB", max_bytes="16MiB")
    expected = filled(BIG)
    store.put(["one"], [expected])
    (tensor,) = store.get(["one"], delivery="leased")
    store.close()
    del store
    gc.collect()
    assert_same(tensor, expected)
    tensor.fill_(3)
    assert tensor.sum() == 3 * tensor.numel()


@pytest.mark.parametrize("delivery", ["leased", "copied"])
def test_numpy_arrays_own_their_memory_too(store: tl.Store, delivery: str) -> None:
    value = np.arange(40_000, dtype=np.int32).reshape(-1, 4)
    store.put(["a"], [value])
    (array,) = store.get(["a"], [value.shape], [np.int32], delivery=delivery)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert len(pickle.dumps(array)) < array.nbytes + 1000
    view = array[5:, 1]
    assert (held(store) >= value.nbytes) == (delivery == "leased")
    del array
    np.testing.assert_array_equal(view, value[5:, 1])
    view[...] = 0
    del view
    assert held(store) == 0
    np.testing.assert_array_equal(store.get(["a"])[0].numpy(), value)


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_as_it_was_after_a_read(store: tl.Store, was_enabled: bool) -> None:
    keys = [str(index) for index in range(600)]
    store.put(keys, [torch.zeros(2)] * 600)
    try:
        if not was_enabled:
            gc.disable()
        store.get(keys, [(2,)] * 600, torch.float32)
        assert gc.isenabled() == was_enabled
        with pytest.raises(tl.SizeMismatch):
            store.get(keys, [(2,)] * 599 + [(3,)], torch.float32)
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()


@pytest.mark.parametrize("flavour", ["tensors", "batches"])
def test_nobody_finds_the_collector_off_during_a_read(store: tl.Store, way: str, flavour: str) -> None:
    """A library that saves `gc.isenabled()` and restores it later would leave it off for good."""
    keys = [str(index) for index in range(2000)]
    store.put(keys, [torch.zeros(2)] * 2000)
    # Some have no bytes: torch makes those itself, and lets other threads run meanwhile.
    store.put(["empty"], [torch.zeros(0)])
    wanted = [key for key in keys for key in (key, "empty")]
    shapes = [shape for _ in keys for shape in ((2,), (0,))]
    stop, found_off = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            if not gc.isenabled():
                found_off.append(True)

    looking, interval = threading.Thread(target=look), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    looking.start()
    try:
        for _ in range(3):
            if flavour == "tensors":
                store.get(wanted, shapes, torch.float32)
            else:
                store.get_batches({key: ([key, key], (2,), torch.float32) for key in keys})
    finally:
        stop.set()
        looking.join()
        sys.setswitchinterval(interval)
    assert not found_off
    assert gc.isenabled()


def test_many_tensors_set_off_few_collections(store: tl.Store) -> None:
    keys = [str(index) for index in range(20_000)]
    store.put(keys, [torch.zeros(2)] * 20_000)
    before = [generation["collections"] for generation in gc.get_stats()]
    out = store.get(keys, [(2,)] * 20_000, torch.float32)
    after = [generation["collections"] for generation in gc.get_stats()]
    assert len(out) == 20_000
    # Without the pause one for each 700 tensors.
    assert sum(after) - sum(before) <= 8


REFUSES = """
import ctypes, gc, threading
import torch
api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
NAME = b"dlpack_exchange_api"
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
class Managed(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("manager", ctypes.c_void_p), ("deleter", DELETER)]
calls = 0
@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(Managed), ctypes.POINTER(ctypes.c_void_p))
def refuses(managed, out):
    global calls
    calls += 1
    # A framework may give back in a thread of its own what it refuses.
    giving_back = threading.Thread(target=lambda: managed.contents.deleter(ctypes.addressof(managed.contents)))
    giving_back.start()
    giving_back.join()
    return -1
original = api.PyCapsule_GetPointer(torch.Tensor.__dlpack_c_exchange_api__, NAME)
table = (ctypes.c_void_p * 7).from_buffer_copy(ctypes.string_at(original, 7 * 8))
table[4] = ctypes.cast(refuses, ctypes.c_void_p)
torch.Tensor.__dlpack_c_exchange_api__ = api.PyCapsule_New(ctypes.addressof(table), NAME, None)
import tensorlease as tl
from tensorlease._core._tests import import_what_torch_refuses
store = tl.open("embedded://?capacity=32MiB", max_bytes="16MiB")
kept = [store.empty((4096,), torch.uint8).fill_(index) for index in range(8)]
for _ in range(50):
    try:
        import_what_torch_refuses(store._core, False)
    except Exception:
        pass
    else:
        raise AssertionError("it was refused")
assert calls > 50
assert [tensor[0].item() for tensor in kept] == list(range(8))
assert all(tensor.sum().item() == 4096 * index for index, tensor in enumerate(kept))
kept.clear()
gc.collect()
assert store.stats()["leased_bytes"] == 0, store.stats()["leased_bytes"]
print("given back once")
"""


def test_what_a_framework_refuses_and_gives_back_elsewhere_is_given_back_once(run_python: RunPython) -> None:
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch has no exchange interface")
    assert run_python(REFUSES, torch=True).stdout == "given back once\n"


@pytest.mark.parametrize("as_capsule", [True, False])
def test_a_tensor_that_torch_refuses_gives_its_memory_back_once(store: tl.Store, as_capsule: bool) -> None:
    for _ in range(3):
        with pytest.raises((RuntimeError, BufferError)):
            import_what_torch_refuses(store._core, as_capsule)
        assert held(store) == 0


def test_a_put_keeps_no_reference_to_its_values(store: tl.Store) -> None:
    values = [filled(BIG), np.zeros(5000), {"in": filled((2000,))}, np.zeros((3, 4)).T]
    references = [weakref.ref(value) for value in (values[0], values[1], values[2]["in"], values[3])]
    store.put(list("abcd"), values)
    with pytest.raises(tl.ConfigError):
        store.put(["e", "f"], [values[0], object()])
    target = torch.zeros(BIG)
    references.append(weakref.ref(target))
    store.get_into(["a"], [target])
    del values, target
    # Objects dropped without the GIL go with the next call.
    store.stats()
    assert [reference() for reference in references] == [None] * 5


def test_a_read_that_fails_gives_everything_back(store: tl.Store) -> None:
    store.put(["a", "b"], [filled(BIG), {"no": "tensor"}])
    for keys, shapes in [(["a", "missing"], [BIG, BIG]), (["a", "a"], [BIG, (1,)]), (["a", "b"], [BIG, BIG])]:
        with pytest.raises(tl.Error):
            store.get(keys, shapes, torch.float32, delivery="leased")
        assert_all_given_back(store)
    with pytest.raises(tl.SizeMismatch):
        store.get(["a", "b"], [BIG, None], [torch.float32, None], [None, {"packed_size": 1}], delivery="leased")
    assert_all_given_back(store)
