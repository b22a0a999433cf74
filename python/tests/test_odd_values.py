"""Values that look like what is stored and are more, or less: each comes back as it was, or is refused with a sentence that says what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from conftest import RunPython

import tensorlease as tl
from tensorlease import codec

OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 0]})
OUT_OF_ORDER = np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [4, 0]})


def records_of_bfloat16() -> Any:
    import ml_dtypes

    return np.zeros(2, [("a", ml_dtypes.bfloat16)])


ARRAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "StringDType": (lambda: np.array(["a", "bc"], np.dtypes.StringDType()), r"StringDType.*astype\('U'\)"),
    "objects in records": (
        lambda: np.array([("x", 1)], [("a", "O"), ("b", "i4")]),
        "fields of Python objects.*dict of",
    ),
    "overlapping fields": (lambda: np.zeros(2, OVERLAPPING), "overlap.*a name of its own"),
    "fields out of order": (lambda: np.zeros(2, OUT_OF_ORDER), "out of order.*a name of its own"),
    "one such record": (lambda: np.zeros(2, OVERLAPPING)[0], "overlap.*a name of its own"),
    "records of bfloat16": (records_of_bfloat16, "can't write down.*a name of its own"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_dtypes_without_a_plain_form_are_refused(store: tl.Store, name: str) -> None:
    make, said = ARRAYS[name]
    for value in (make(), {"inside": (make(),)}):
        with pytest.raises(tl.ConfigError, match=rf'"some key".*{said}'):
            store.put(["some key"], [value])
    assert store.contains(["some key"]) == [False]
    store.put(["some key"], [[make()]], allow_pickle=True)
    (found,) = store.get(["some key"], allow_pickle=True)[0]
    assert found.dtype == make().dtype
    assert found.tolist() == make().tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([[1.0]]).view(np.matrix),
        lambda: np.ma.array([1.0], mask=[True]),
        lambda: np.rec.array([(1,)], dtype=[("a", "i4")]),
    ],
    ids=["matrix", "masked", "recarray"],
)
def test_arrays_of_other_classes_are_refused_with_what_to_put(store: tl.Store, make: Callable[[], Any]) -> None:
    for value in (make(), {"inside": make()}):
        with pytest.raises(tl.ConfigError, match=r'"some key".*numpy\.asarray\(value\)'):
            store.put(["some key"], [value])


def test_a_distributed_tensor_says_how_to_put_its_part_or_the_whole(store: tl.Store) -> None:
    class DTensor(torch.Tensor):
        """As torch's own, which needs a process group: told by its name."""

    value = torch.ones(3).as_subclass(DTensor)
    for put in (value, [value]):
        with pytest.raises(tl.ConfigError, match=r"DTensor.*to_local\(\).*full_tensor\(\)"):
            store.put(["some key"], [put])
    store.put(["a"], [torch.ones(3)])
    with pytest.raises(tl.ConfigError, match="DTensor"):
        store.get_into(["a"], [value])


# ---- extension values of msgpack's own --------------------------------------------------------------------------------------

FOREIGN = [
    msgpack.ExtType(7, b"abc"),
    msgpack.ExtType(9, b"no pickle, and allow_pickle is False"),
    msgpack.ExtType(1, b"\x91\x01"),
    msgpack.ExtType(1, b"\x91"),
    msgpack.ExtType(100, b""),
    msgpack.Timestamp(1),
]


@pytest.mark.parametrize("value", FOREIGN, ids=repr)
@pytest.mark.parametrize("allow_pickle", [False, True])
def test_extension_values_of_msgpack_are_refused(store: tl.Store, value: Any, allow_pickle: bool) -> None:
    for put in (value, [value], {"x": ((value,), 1)}, {value: 1}, np.array([value, None], object)[:1]):
        with pytest.raises(tl.ConfigError, match='"a".*msgpack'):
            store.put(["a"], [put], allow_pickle=allow_pickle)
    assert store.contains(["a"]) == [False]


class Caught:
    """Says so when it is unpickled."""

    made = 0

    def __reduce__(self) -> Any:
        return _caught, ()


def _caught() -> Caught:
    Caught.made += 1
    return Caught()


def test_nothing_is_unpickled_without_being_allowed(store: tl.Store) -> None:
    import pickle

    data = pickle.dumps(Caught())
    with pytest.raises(tl.ConfigError, match="msgpack"):
        store.put(["a"], [msgpack.ExtType(9, data)])
    before = Caught.made
    for value in ([Caught()], {"x": (Caught(),)}, {((Caught(),),): 1} if Caught.__hash__ else [Caught()]):
        store.put(["a"], [value], allow_pickle=True)
        with pytest.raises(tl.ConfigError, match="allow_pickle=True"):
            store.get(["a"])
    assert Caught.made == before
    store.get(["a"], allow_pickle=True)
    assert Caught.made == before + 1


def test_a_pickled_object_that_can_not_be_made_is_not_called_damage(store: tl.Store) -> None:
    store.put(["a"], [Failing()], allow_pickle=True)
    with pytest.raises(tl.CodecError, match="can't be made here.*no such thing") as caught:
        store.get(["a"], allow_pickle=True)
    assert "damaged" not in str(caught.value)
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_pickled_object_that_is_too_deep_is_named_as_such(store: tl.Store) -> None:
    store.put(["a"], [TooDeep()], allow_pickle=True)
    with pytest.raises(tl.OutOfStack, match='"?a"?'):
        store.get(["a"], allow_pickle=True)


class TooDeep:
    """Is pickled, and unpickling it never ends."""

    def __reduce__(self) -> Any:
        return _deeper, ()


def _deeper() -> Any:
    return _deeper()


class Failing:
    """Can be pickled and not unpickled."""

    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise LookupError("no such thing")


# ---- what a process runs out of ---------------------------------------------------------------------------------------------

OUT_OF_MEMORY = """
import resource, tensorlease as tl
from tensorlease import codec
values = {"text": [str(i) for i in range(1_000_000)], "tuples": [(i, str(i)) for i in range(300_000)]}
stored = {key: b"".join(codec.encode(value, key, False)) for key, value in values.items()}
del values
used = int(open("/proc/self/statm").read().split()[0]) * 4096
for key, data in stored.items():
    # Python keeps what was freed: what is made first takes that, and then the rest.
    kept = []
    resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), resource.RLIM_INFINITY))
    try:
        while True:
            kept.append(codec.decode(data, key, False))
    except MemoryError as error:
        assert type(error) is tl.OutOfMemory and key in str(error) and "damage" not in str(error), error
        assert isinstance(error.__cause__, MemoryError)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    del kept
    codec.decode(data, key, False)
"""


def test_out_of_memory_while_a_value_is_made_is_not_called_damage(run_python: RunPython) -> None:
    run_python(OUT_OF_MEMORY)


OUT_OF_MEMORY_FOR_TENSORS = """
import resource, torch, tensorlease as tl
from tensorlease import codec, torch_values
parts = codec.encode([torch.ones(200_000) for _ in range(100)], "tensors", False)
data = b"".join(part if isinstance(part, bytes) else part.numpy().tobytes() for part in parts)
columns = torch.ones(4000, 8000)[:, ::2]
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), resource.RLIM_INFINITY))
for call in (lambda: codec.decode(data, "tensors", False), lambda: torch_values.prepare(columns, "tensors")):
    try:
        call()
    except tl.OutOfMemory as error:
        assert "tensors" in str(error) and isinstance(error.__cause__, RuntimeError | MemoryError), error
    else:
        raise AssertionError("there was memory")
"""


def test_a_torch_without_memory_is_not_called_damage_either(run_python: RunPython) -> None:
    run_python(OUT_OF_MEMORY_FOR_TENSORS, torch=True)


def test_the_recursion_limit_is_not_called_damage(store: tl.Store) -> None:
    store.put(["a"], [[(1, {2: (3,)})]])
    seen: set[type[BaseException]] = set()

    def at_depth(depth: int) -> None:
        if depth:
            at_depth(depth - 1)
            return
        try:
            assert store.get(["a"]) == [[(1, {2: (3,)})]]
            store.put(["b"], [[(1, {2: (3,)})]])
        except RecursionError as error:
            seen.add(type(error))

    frames = 0
    frame: Any = sys._getframe()
    while frame is not None:
        frames, frame = frames + 1, frame.f_back
    for depth in range(sys.getrecursionlimit() - frames - 20, sys.getrecursionlimit() - frames):
        try:
            at_depth(depth)
        except RecursionError:
            break
    assert tl.OutOfStack in seen
    assert store.get(["a"]) == [[(1, {2: (3,)})]]


# ---- tensors in containers --------------------------------------------------------------------------------------------------

WHO_IMPORTED = """
import sys
import tensorlease as tl
store = tl.open("embedded://?capacity=32MiB", max_bytes="16MiB")
import base64
from tensorlease import codec
data = base64.b64decode(sys.argv[1])
assert "torch" not in sys.modules
first = codec.decode(data, "key", False)
import torch
second = codec.decode(data, "key", False)
for found in (first, second):
    assert type(found["x"]) is torch.Tensor and found["x"].dtype == torch.bfloat16, found
    assert type(found["deep"][0][0]) is torch.Tensor
    assert type(found["array"]).__module__ == "numpy"
"""


def test_tensors_in_containers_are_torchs_whoever_has_imported_torch(run_python: RunPython) -> None:
    import base64

    value = {"x": torch.ones(3, dtype=torch.bfloat16), "deep": ((torch.zeros(2),),), "array": np.ones(2)}
    parts = codec.encode(value, "key", False)
    data = b"".join(
        part
        if isinstance(part, bytes)
        else part.view(torch.uint8).numpy().tobytes()
        if isinstance(part, torch.Tensor)
        else part.tobytes()
        for part in parts
    )
    code = f"import sys; sys.argv.append({base64.b64encode(data).decode()!r})\n" + WHO_IMPORTED
    run_python(code, torch=True)


def test_a_torch_that_can_not_be_imported_is_named(run_python: RunPython, tmp_path: Any) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.99: cannot open shared object file')\n")
    run_python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        + """
import numpy as np, tensorlease as tl
with tl.open("embedded://?capacity=32MiB", max_bytes="16MiB") as store:
    store.put(["a"], [np.ones(3)])
    for call in (lambda: store.get(["a"]), lambda: store.empty((2,), "float32")):
        try:
            call()
        except tl.ConfigError as error:
            assert "importing torch fails" in str(error) and "libcudart" in str(error), error
            assert isinstance(error.__cause__, OSError)
        else:
            raise AssertionError
    assert store.get(["a"], [(3,)], [np.float64])[0].sum() == 3
""",
        torch=True,
        env={**os.environ},
    )


def test_what_ml_dtypes_alone_knows_says_so_in_a_container(run_python: RunPython) -> None:
    run_python("""
import sys, numpy as np, ml_dtypes, tensorlease as tl
with tl.open("embedded://?capacity=32MiB", max_bytes="16MiB") as store:
    store.put(["a"], [[np.ones(2, ml_dtypes.bfloat16)]])
    assert store.get(["a"])[0][0].dtype == ml_dtypes.bfloat16
    sys.modules["ml_dtypes"] = None
    try:
        store.get(["a"])
    except tl.ConfigError as error:
        assert "install ml_dtypes" in str(error)
    else:
        raise AssertionError
""")


WHILE_TORCH_IS_IMPORTED = """
import threading
import numpy as np
import tensorlease as tl
store = tl.open("embedded://?capacity=16MiB", max_bytes="16MiB")
value = {"x": np.arange(3), "y": np.float32(1)}
failed = []
def put():
    try:
        while importing.is_alive():
            store.put(["a"], [value])
    except Exception as error:
        failed.append(error)
importing = threading.Thread(target=__import__, args=["torch"])
importing.start()
put()
importing.join()
assert not failed, failed
(stored,) = store.get(["a"])
assert stored["x"].tolist() == [0, 1, 2] and stored["y"] == 1
"""


def test_values_are_stored_while_another_thread_imports_torch(run_python: RunPython) -> None:
    run_python(WHILE_TORCH_IS_IMPORTED, torch=True)
