"""Where torch is not installed numpy arrays come and go. Each test runs in an interpreter that can't import torch."""

from __future__ import annotations

from conftest import RunPython

OPEN = """
import pytest
import numpy as np
import tensorlease as tl
store = tl.open("embedded://?capacity=32MiB", max_bytes="16MiB")
"""


def test_arrays_come_and_go(run_python: RunPython) -> None:
    run_python(
        OPEN
        + """
arrays = [np.arange(6, dtype=d).reshape(2, 3) for d in ("float32", "int64", "complex64", "uint16")] + [np.zeros((0, 3), "i4"), np.array(7.5)]
keys = [str(i) for i in range(len(arrays))]
assert store.put(keys, arrays) == [None] * len(keys)
for dtypes in ([a.dtype for a in arrays], [a.dtype.name for a in arrays], ["torch." + a.dtype.name for a in arrays]):
    for delivery in ("auto", "leased", "copied", "register-per-call"):
        for found, expected in zip(store.get(keys, [a.shape for a in arrays], dtypes, delivery=delivery), arrays):
            assert type(found) is np.ndarray and found.dtype == expected.dtype and found.flags.writeable
            np.testing.assert_array_equal(found, expected)
np.testing.assert_array_equal(store.get(["0"])[0], arrays[0])
many = [np.full(9, i) for i in range(1000)]
store.put([f"m{i}" for i in range(1000)], many)
out = store.get([f"m{i}" for i in range(1000)], [(9,)] * 1000, "int64", delivery="leased")
assert all((a == b).all() for a, b in zip(out, many))
del out, found
assert store.stats()["leased_bytes"] == 0
"""
    )


def test_other_values_batches_and_destinations_work(run_python: RunPython) -> None:
    run_python(
        OPEN
        + """
value = {"a": [1, (2, b"x")], "array": np.array(["x"]), 3: np.arange(3)}
metas = store.put(["v"], [value])
(found,) = store.get(["v"], None, [None], metas)
assert found["a"] == value["a"] and (found["array"] == value["array"]).all() and (found[3] == value[3]).all()
rows = [np.full((3,), i, np.float32) for i in range(4)]
store.put(list("abcd"), rows)
np.testing.assert_array_equal(store.get_batch(list("abcd"), (3,), "float32"), np.stack(rows))
target = np.zeros(3, np.float32)
store.get_into(["c"], [target])
assert (target == 2).all()
fresh = store.empty((2, 2), "float64")
assert type(fresh) is np.ndarray and fresh.shape == (2, 2)
store.put(["e"], [fresh])
store.close()
"""
    )


def test_what_needs_torch_or_ml_dtypes_says_so(run_python: RunPython) -> None:
    run_python(
        OPEN
        + """
import sys
store.put(["a"], [np.zeros(2, np.float32)])
with pytest.raises(tl.ConfigError, match="install torch"):
    store.get_batch(["a"], [(2,)], "float32")
import ml_dtypes
store.put(["b"], [np.zeros(2, ml_dtypes.bfloat16)])
assert store.get(["b"], [(2,)], "bfloat16")[0].dtype == ml_dtypes.bfloat16
store.put(["h"], [np.zeros(2, np.int32)])
with pytest.raises(tl.ConfigError, match="complex32"):
    store.empty(2, "complex32")
sys.modules["ml_dtypes"] = None
with pytest.raises(tl.ConfigError, match="install ml_dtypes or torch"):
    store.empty(2, "float8_e5m2")
assert store.get(["a"])[0].sum() == 0
"""
    )


def test_tensors_in_containers_come_as_arrays_and_only_then_need_numpy(run_python: RunPython) -> None:
    code = """
import base64, sys
from tensorlease import codec
data = base64.b64decode(sys.argv[1])
found = codec.decode(data, "key", False)
assert found[0].tolist() == [1.0, 2.0] and type(found[0]).__module__ == "numpy", found
sys.modules["numpy"] = None
import tensorlease as tl
try:
    codec.decode(data, "key", False)
except tl.ConfigError as error:
    assert "install numpy" in str(error)
else:
    raise AssertionError
"""
    import base64

    import torch

    from tensorlease import codec

    parts = codec.encode([torch.tensor([1.0, 2.0])], "key", False)
    data = b"".join(part if isinstance(part, bytes) else part.numpy().tobytes() for part in parts)
    run_python(f"import sys; sys.argv.append({base64.b64encode(data).decode()!r})\n" + code)


def test_without_numpy_other_values_still_work(run_python: RunPython) -> None:
    run_python("""
import sys
sys.modules["numpy"] = None
import tensorlease as tl
with tl.open("embedded://?capacity=32MiB", max_bytes="16MiB") as store:
    metas = store.put(["a", "b"], ["text", [1, 2]])
    assert store.get(["a", "b"], None, [None, None], metas) == ["text", [1, 2]]
    try:
        store.empty(2, "float32")
    except tl.ConfigError as error:
        assert "install one of them" in str(error)
    else:
        raise AssertionError
""")
