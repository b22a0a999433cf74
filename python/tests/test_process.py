"""The store in its process: signals, forks, the end of the interpreter, pickling, the environment."""

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
from conftest import URL, RunPython
from host_rig import place
from tensors import assert_same, filled

import tensorlease as tl

HANGING = "embedded://?capacity=32MiB&faults=slow:3s"


@pytest.mark.parametrize("what", ["get", "put", "wait"])
@pytest.mark.alone
def test_ctrl_c_ends_a_call_at_once(what: str) -> None:
    store = tl.open(HANGING, max_bytes="16MiB")
    calls: dict[str, Any] = {
        "get": lambda: store.get(["a"], [(4000,)], "float32"),
        "put": lambda: store.put(["a"], [torch.zeros(4000)]),
        "wait": lambda: store.wait(["a"], 20),
    }
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    started = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        calls[what]()
    took = time.monotonic() - started
    timer.join()
    assert 0.25 < took < 2.5
    started = time.monotonic()
    store.close(timeout=0.2)
    assert time.monotonic() - started < 2.5


@pytest.mark.alone
def test_a_timeout_tells_how_long_its_caller_has_waited() -> None:
    store = tl.open(HANGING, max_bytes="16MiB")
    for call in (
        lambda: store.put(["a"], [torch.zeros(4000)], timeout=0.4),
        lambda: store.get_into(["a"], [torch.zeros(4000)], timeout=0.4),
        lambda: store.wait(["a"], timeout=0.4),
    ):
        with pytest.raises(tl.Timeout) as caught:
            call()
        (waited,) = re.findall(r"within (\d+) ms", str(caught.value))
        assert 400 <= int(waited) < 3000
    store.close(timeout=0)


def test_what_a_signal_handler_raises_reaches_the_caller() -> None:
    def handler(*_: object) -> None:
        raise ZeroDivisionError("from the handler")

    before = signal.signal(signal.SIGALRM, handler)
    store = tl.open(HANGING, max_bytes="16MiB")
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(ZeroDivisionError, match="from the handler"):
            store.wait(["a"], 20)
    finally:
        signal.signal(signal.SIGALRM, before)
        store.close(timeout=0)


def test_other_threads_run_during_a_call() -> None:
    store = tl.open("embedded://?capacity=32MiB&faults=slow:300ms", max_bytes="16MiB")
    turns = 0
    done = threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.wait(0.005):
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    store.put(["a"], [1])
    done.set()
    thread.join()
    store.close()
    assert turns > 2


def test_a_forked_child_reads_its_copy_and_gives_nothing_back(store: tl.Store) -> None:
    expected = filled((64, 1024), torch.int32)
    store.put(["a"], [expected])
    (tensor,) = store.get(["a"], delivery="leased")
    held = store.stats()["leased_bytes"]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # numpy: torch's threads are not there after a fork.
            assert tensor.numpy().tobytes() == expected.numpy().tobytes()
            tensor.numpy()[...] = 0
            del tensor
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.stats()["leased_bytes"] == held
    assert_same(tensor, expected)


def test_copies_stay_readable_in_a_child_that_the_arena_is_left_out_of() -> None:
    expected = filled((1000, 100))
    with tl.open(URL, max_bytes="16MiB", fork="exclude") as excluded:
        excluded.put(["a", "small"], [expected, [1, 2]])
        (tensor,) = excluded.get(["a"], delivery="copied")
        child = os.fork()
        if child == 0:
            os._exit(0 if tensor.numpy().tobytes() == expected.numpy().tobytes() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        del tensor


def test_a_child_may_open_a_store_of_its_own(store: tl.Store) -> None:
    store.put(["a"], [filled((10,))])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with tl.open(URL, max_bytes="16MiB") as own:
                own.put(["a"], [[1, 2]])
                code = 0 if own.get(["a"]) == [[1, 2]] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


FORK_WARNING = """
import logging, os
import tensorlease as tl
logging.basicConfig(level=logging.WARNING)
def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
with tl.open("embedded://?capacity=32MiB", max_bytes="16MiB"):
    fork()
with tl.open("embedded://?capacity=32MiB&registration=pinned", max_bytes="16MiB", fork="exclude"):
    fork()
print("nothing pinned is copied", flush=True)
with tl.open("embedded://?capacity=32MiB&registration=pinned", max_bytes="16MiB") as store:
    assert store.stats()["pinned_bytes"] == 8 << 20
    fork()
    fork()
"""


def test_a_fork_with_pinned_memory_warns_once_what_it_costs(run_python: RunPython) -> None:
    ended = run_python(FORK_WARNING)
    assert ended.stdout == "nothing pinned is copied\n"
    warnings = [line for line in ended.stderr.splitlines() if "pinned" in line]
    assert len(warnings) == 1, ended.stderr
    assert str(8 << 20) in warnings[0]
    assert "spawn" in warnings[0]


EXIT = """
import atexit, asyncio, os, threading, time
started = time.monotonic()
MODE = {mode!r}
import tensorlease as tl
if MODE == "torch":
    import torch
    value, dtype = torch.arange(40000.0), torch.float32
else:
    import numpy as np
    value, dtype = np.arange(40000.0, dtype=np.float32), np.float32
store = tl.open("embedded://?capacity=32MiB", max_bytes="16MiB")
hanging = tl.open("embedded://?capacity=32MiB&faults=slow:20s", max_bytes="16MiB")
store.put(["a", "b"], [value, {{"x": value}}])
alive = store.get(["a", "a", "b"], delivery="leased")
class Cycle: pass
cycle = Cycle()
cycle.me, cycle.tensor = cycle, store.get(["a"], [(40000,)], dtype, delivery="leased")
class AtExit:
    def __init__(self): self.held = store.get(["a"], delivery="leased")
    def __del__(self): self.held.clear()
late = AtExit()
local = threading.local()
local.tensor = store.get(["a"], delivery="copied")
def hang():
    mine = store.get(["a"], delivery="leased") if MODE == "numpy" else None
    try:
        hanging.get(["a"], [(4,)], "float32")
    except tl.Error:
        pass
threading.Thread(target=hang, daemon=True).start()
async def start():
    asyncio.ensure_future(hanging.aget(["a"], [(4,)], "float32"))
    await asyncio.sleep(0.1)
asyncio.run(start())
def read_forever():
    try:
        while True:
            store.get(["a"], delivery="leased")
    except tl.Error:
        pass
# A daemon thread that drops torch tensors while the interpreter ends aborts the process, also without tensorlease: torch takes the GIL back in a
# C++ destructor, where Python ends the thread.
if MODE == "numpy":
    threading.Thread(target=read_forever, daemon=True).start()
time.sleep(0.1)
print("end", flush=True)
atexit.register(lambda: print("before", round(time.monotonic() - started, 1), flush=True))
"""


@pytest.mark.parametrize("mode", ["torch", "numpy"])
@pytest.mark.alone
def test_the_interpreter_ends_in_time_with_tensors_alive_and_calls_running(run_python: RunPython, mode: str) -> None:
    started = time.monotonic()
    done = run_python(EXIT.format(mode=mode), torch=mode == "torch")
    assert done.stdout.startswith("end")
    assert "Traceback" not in done.stderr, done.stderr
    # An import of torch on a busy machine, and the bound on each of the two stores.
    assert time.monotonic() - started < 40


DROPPED = """
import threading, time
from tensorlease import errors
from tensorlease._core import CoreStore
import tensorlease as tl
store = tl.open("embedded://?capacity=32MiB&faults=slow:2s", max_bytes="16MiB")
settings = dict(store._settings)
store.close(timeout=0)
core = CoreStore.open("embedded://?capacity=32MiB&faults=slow:2s", **settings)
try:
    core.wait(["a"], timeout=0.1, interrupt=None)
except errors.Timeout:
    pass
turns, done = 0, threading.Event()
def count():
    global turns
    while not done.wait(0.01):
        turns += 1
counting = threading.Thread(target=count)
counting.start()
started = time.monotonic()
# Its close waits for the call that still runs.
del core
took = time.monotonic() - started
turns_meanwhile = turns
done.set()
counting.join()
assert took > 0.3, took
assert turns_meanwhile > 5, turns_meanwhile
print("others went on")
"""


@pytest.mark.alone
def test_a_store_that_is_dropped_unclosed_stops_no_other_thread(run_python: RunPython) -> None:
    assert run_python(DROPPED).stdout == "others went on\n"


QUIET_END = """
import asyncio, sys
import tensorlease as tl
store = tl.open(sys.argv[1], max_bytes="16MiB")
store.put(["a"], [list(range(100))])
async def main():
    # A busy machine is no reason for a line about a slow step.
    asyncio.get_running_loop().slow_callback_duration = 60
    assert await store.aget(["a"]) == [list(range(100))]
    await store.await_keys(["a"], 10)
    asyncio.create_task(store.await_keys(["never"], 50))
    await asyncio.sleep(0.05)
asyncio.run(main())
store.remove(["a"])
if sys.argv[2] == "closed":
    store.close()
elif sys.argv[2] == "dropped":
    del store
print("end")
"""


@pytest.mark.parametrize("how", ["closed", "dropped", "left open"])
@pytest.mark.parametrize("url", ["embedded://", "host://"])
def test_an_interpreter_that_shows_every_warning_ends_in_silence(
    monkeypatch: pytest.MonkeyPatch, url: str, how: str
) -> None:
    with place() as folder:
        # A daemon of its own, which this very process starts, and which outlives it.
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", QUIET_END, url, how]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


def test_a_store_dropped_without_close_is_closed() -> None:
    store = tl.open(URL, max_bytes="16MiB")
    core = store._core
    del store
    gc.collect()
    assert core.is_closed


def test_an_embedded_store_does_not_pickle(store: tl.Store) -> None:
    with pytest.raises(tl.ConfigError, match="private to this open"):
        pickle.dumps(store)


def test_a_store_pickles_as_its_url_and_settings(store: tl.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(store, "_url", "elsewhere://host")
    monkeypatch.setattr(tl.Store, "_start", lambda self, url, settings: opened.append((url, settings)))
    assert isinstance(pickle.loads(pickle.dumps(store)), tl.Store)
    assert opened == [("elsewhere://host", store._settings)]
    assert opened[0][1]["max_bytes"] == 64 << 20


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORLEASE_URL", "embedded://?capacity=8MiB")
    with tl.open(max_bytes="8MiB") as store:
        assert store.url == "embedded://?capacity=8MiB"
    monkeypatch.setenv("TENSORLEASE_URL", "nonsense://")
    with pytest.raises(tl.ConfigError, match="nonsense"):
        tl.open()


def test_namespaces_keep_keys_apart(store: tl.Store) -> None:
    store.put(["a"], [1])
    assert store.clear() == 1
    assert store.contains(["a"]) == [False]


def test_errors_pickle_with_what_they_know() -> None:
    failures = [("k", "not_found", -704, "no such object")]
    error = pickle.loads(pickle.dumps(tl.KeyNotFound("k is missing", failures=failures)))
    assert type(error) is tl.KeyNotFound
    assert str(error) == "k is missing"
    assert error.failures == [tl.KeyFailure("k", "not_found", -704, "no such object")]
    exhausted = pickle.loads(pickle.dumps(tl.ArenaExhausted("full", asked=5, free=3, largest=2, held=1)))
    assert (exhausted.asked, exhausted.free, exhausted.largest, exhausted.held) == (5, 3, 2, 1)


def test_values_that_are_no_tensors_import_neither_torch_nor_numpy(run_python: RunPython) -> None:
    code = """
import sys
import tensorlease as tl
with tl.open("embedded://?capacity=8MiB", max_bytes="8MiB") as store:
    store.put(["a", "b"], [[1, "x"], {"c": b"d"}])
    assert store.get(["a", "b"]) == [[1, "x"], {"c": b"d"}]
    assert store.get(["a"], [None], [None], custom_backend_meta=store.put(["a"], [[2]])) == [[2]]
assert not {"torch", "numpy"} & set(sys.modules)
"""
    run_python(code, torch=True)
