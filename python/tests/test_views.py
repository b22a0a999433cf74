"""Arrays that lie where the host's store keeps them: read-only for everybody who can be told, and ordinary in all else."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from host_rig import Served, place, served
from tensorlease._core._tests import arrays_by_call

import tensorlease as tl

np = pytest.importorskip("numpy")
VALUE = np.arange(50_000, dtype=np.float64).reshape(500, 100)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Served]:
    with place() as folder, served(folder / "host.sock", "--max-bytes", "64MiB", "--keep") as daemon:
        yield daemon


@pytest.fixture
def store(daemon: Served) -> Iterator[tl.Store]:
    with tl.open(daemon.url, max_bytes="32MiB") as store:
        store.put(["a"], [VALUE])
        yield store
        assert np.array_equal(store.get(["a"], view=True)[0], VALUE), "nothing wrote into the stored value"


@pytest.fixture(params=["by its interface", "by call"], autouse=True)
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    arrays_by_call(request.param == "by call")
    yield
    arrays_by_call(False)


def view_of(store: tl.Store) -> Any:
    return store.get(["a"], view=True)[0]


def test_torch_does_not_take_a_view_that_it_could_write(store: tl.Store) -> None:
    view = view_of(store)
    for array in (view, view[3:], view.T, view.view(np.int64)):
        with pytest.raises(BufferError, match="read-only") as caught:
            torch.from_dlpack(array)
        assert "copy" in str(caught.value)
    with pytest.raises(BufferError, match="read-only"):
        torch.utils.dlpack.from_dlpack(view, copy=False)


def test_torch_takes_a_copy_of_a_view(store: tl.Store) -> None:
    view = view_of(store)
    for tensor in (torch.from_dlpack(view, copy=True), torch.from_dlpack(view.copy()), torch.tensor(view)):
        assert np.array_equal(tensor.numpy(), VALUE)
        tensor.zero_()


def test_numpy_takes_a_view_as_read_only(store: tl.Store) -> None:
    view = view_of(store)
    other = np.from_dlpack(view)
    assert other.ctypes.data == view.ctypes.data, "no copy"
    assert not other.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        other[0] = 1


class OldTaker:
    """Asks as frameworks did before DLPack had a flag for what is read-only."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def take(self, **asked: Any) -> Any:
        return self._array.__dlpack__(**asked)


@pytest.mark.parametrize("asked", [{}, {"stream": None}, {"max_version": None}, {"max_version": (0, 8)}], ids=str)
def test_those_who_know_no_read_only_flag_are_refused(store: tl.Store, asked: dict[str, Any]) -> None:
    with pytest.raises(BufferError, match="read-only"):
        OldTaker(view_of(store)).take(**asked)
    assert "dltensor" in repr(OldTaker(view_of(store)).take(max_version=(1, 0)))


def test_what_is_made_from_a_view_is_an_ordinary_array(store: tl.Store) -> None:
    view = view_of(store)
    assert isinstance(view, np.ndarray)
    made = [view + 1, np.sqrt(view), view.sum(axis=0), np.array(view), pickle.loads(pickle.dumps(view))]
    assert [type(array) for array in made] == [np.ndarray] * len(made)
    assert all(array.flags.writeable for array in made[:4])
    assert np.array_equal(made[4], VALUE)
    assert type(view.sum()) is np.float64
    assert type(view[2, 5]) is np.float64
    assert type(view.max()) is np.float64


def test_a_view_goes_back_into_the_store_like_any_array(store: tl.Store) -> None:
    view = view_of(store)
    store.put(["b", "c"], [view, {"in": view[7]}])
    assert np.array_equal(store.get(["b"], view=True)[0], VALUE)
    assert np.array_equal(store.get(["c"])[0]["in"], VALUE[7])
    store.remove(["b", "c"])
