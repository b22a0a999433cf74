"""One arena per host: what its processes share, and what stays when one of them goes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_rig import WITHOUT_TORCH, Served, client, eventually, place, served

import tensorlease as tl
from bench.cluster import stop_process
from tensorlease import host

np = pytest.importorskip("numpy")

MIB = 1 << 20


@pytest.fixture
def folder() -> Iterator[Path]:
    with place() as folder:
        yield folder


@pytest.fixture
def daemon(folder: Path) -> Iterator[Served]:
    with served(folder / "host.sock", "--max-bytes", "128MiB", "--keep") as daemon:
        yield daemon


@pytest.fixture
def store(daemon: Served) -> Iterator[tl.Store]:
    with tl.open(daemon.url, max_bytes="32MiB") as store:
        yield store


def test_what_one_process_puts_another_gets(daemon: Served, store: tl.Store) -> None:
    code = f"tl.open({daemon.url!r}).put(['a', 'b'], [[1, 2.5, 'x'], b'bytes'])"
    with client(code):
        assert store.get(["a", "b"]) == [[1, 2.5, "x"], b"bytes"]
    assert store.get(["b"]) == [b"bytes"], "it outlives whoever put it"


def test_a_view_is_read_only_and_lies_where_the_store_keeps_it(daemon: Served, store: tl.Store) -> None:
    values = [np.arange(1000, dtype=np.int32).reshape(10, 100), np.ones(70_000, dtype=np.float64)]
    store.put(["a", "b"], values)
    first = store.get(["a", "b"], view=True)
    again = store.get(["b", "a"], [(70_000,), (10, 100)], [np.float64, np.int32], view=True)
    for array, value in zip(first, values, strict=True):
        assert array.dtype == value.dtype
        assert np.array_equal(array, value)
        assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        first[0][0, 0] = 1
    assert first[0].ctypes.data == again[1].ctypes.data, "no copy of either"
    assert store.stats()["viewed_reads"] == 4
    with pytest.raises(tl.SizeMismatch, match="float32"):
        store.get(["a"], [(10, 100)], ["float32"], view=True)
    with pytest.raises(tl.KeyNotFound, match="missing"):
        store.get(["a", "missing"], view=True)
    with pytest.raises(tl.ConfigError, match="delivery"):
        store.get(["a"], delivery="leased", view=True)


def test_a_viewed_object_stays_until_its_last_view_is_gone(daemon: Served, store: tl.Store) -> None:
    store.put(["a"], [np.full(MIB, 7, dtype=np.uint8)])
    (array,) = store.get(["a"], view=True)
    part = array[10:20]
    store.put(["a"], [np.full(MIB, 8, dtype=np.uint8)])
    assert store.remove(["a"]) == 1
    del array
    assert part.tolist() == [7] * 10
    store.close()
    assert part.tolist() == [7] * 10
    assert sum(row["pinned_bytes"] for row in daemon.report()["clients"]) == MIB
    del part
    eventually("the end of the pin", lambda: daemon.report()["held_bytes"] == 0)


def test_what_a_client_keeps_in_hand_is_no_reason_for_a_full_store(folder: Path) -> None:
    with (
        served(folder / "small.sock", "--max-bytes", "1MiB") as daemon,
        tl.open(daemon.url, max_bytes="1MiB") as store,
    ):
        store.put(["viewed", "large"], [np.ones(100, dtype=np.uint8), np.ones(600 << 10, dtype=np.uint8)])
        kept = store.get(["viewed"], view=True)
        large = store.get(["large"], view=True)
        del large  # Less than what goes back at once, and another view lives.
        assert store.remove(["large"]) == 1
        store.put(["again"], [np.full(700 << 10, 2, dtype=np.uint8)])
        store.remove(["again"])
        store.put(["small"], [np.ones(60 << 10, dtype=np.uint8)])
        store.remove(["small"])
        # A block for the next small value was reserved ahead.
        store.put(["all"], [np.full(1000 << 10, 3, dtype=np.uint8)])
        assert kept[0].sum() == 100


def test_only_a_host_shows_values_in_place() -> None:
    with tl.open("embedded://?capacity=8MiB", max_bytes="8MiB") as store:
        store.put(["a"], [1])
        with pytest.raises(tl.ConfigError, match="host://"):
            store.get(["a"], view=True)


def test_leased_memory_is_the_hosts_and_comes_back(daemon: Served, store: tl.Store) -> None:
    value = np.arange(MIB, dtype=np.uint8)
    store.put(["a"], [value])
    before = daemon.report()["held_bytes"]
    (array,) = store.get(["a"], [(MIB,)], [np.uint8], delivery="leased")
    assert np.array_equal(array, value)
    array[0] = 9
    assert daemon.report()["held_bytes"] > before
    made = store.empty((1000,), np.float32)
    made[:] = 3
    store.put(["made"], [made])
    assert store.get(["made"])[0].tolist() == [3.0] * 1000
    del array, made
    assert store.trim() > 0
    eventually("its extents' end", lambda: daemon.clients() == [] and store.stats()["leased_bytes"] == 0)
    row = next(row for row in daemon.report()["clients"] if row["pid"] == os.getpid() and row["written_objects"])
    assert row["arena_bytes"] == 0


HOLDS_EVERYTHING = """
import numpy as np
store = tl.open(sys.argv[1], max_bytes="32MiB")
leased = store.get(["a"], [(1 << 20,)], [np.uint8], delivery="leased")
viewed = store.get(["a"], view=True)
"""


def test_whatever_a_killed_client_held_comes_back(daemon: Served, store: tl.Store) -> None:
    store.put(["a"], [np.zeros(MIB, dtype=np.uint8)])
    before = daemon.report()["held_bytes"]
    with client(HOLDS_EVERYTHING, daemon.url) as process:
        (row,) = daemon.clients()
        assert row["pid"] == process.pid
        assert row["pinned_objects"] == 1
        assert row["arena_bytes"] >= MIB
        process.kill()
        eventually("its end", lambda: daemon.clients() == [])
        assert daemon.report()["held_bytes"] == before


FORKS = """
import os, time
if os.fork() == 0:
    os.closerange(0, 3)
    time.sleep(60)
    os._exit(0)
"""


def test_a_forked_child_does_not_keep_what_its_dead_parent_held(daemon: Served, store: tl.Store) -> None:
    store.put(["a"], [np.zeros(MIB, dtype=np.uint8)])
    # The child has the parent's socket, and lives on; what the test listens to it leaves alone.
    code = HOLDS_EVERYTHING + FORKS
    with client(code, daemon.url) as process:
        process.kill()
        eventually("the end of the parent's session", lambda: daemon.clients() == [])


def test_a_killed_daemon_is_an_error_at_once_and_tensors_stay_readable(folder: Path) -> None:
    socket = folder / "host.sock"
    with served(socket) as daemon:
        store = tl.open(daemon.url, max_bytes="32MiB")
        store.put(["a"], [np.full(MIB, 5, dtype=np.uint8)])
        (leased,) = store.get(["a"], [(MIB,)], [np.uint8], delivery="leased")
        (viewed,) = store.get(["a"], view=True)
        daemon.process.kill()
        daemon.process.wait()
        for call in (lambda: store.get(["a"]), lambda: store.put(["b"], [1]), lambda: store.contains(["a"])):
            with pytest.raises(tl.EngineUnavailable):
                call()
        assert leased.sum() == viewed.sum() == 5 * MIB
        with pytest.raises(tl.EngineUnavailable, match="tensorlease serve"):
            tl.open(daemon.url)
    with served(socket) as daemon, tl.open(daemon.url) as other:
        assert other.contains(["a"]) == [False]
        store.close()
        other.put(["a"], [1])
        assert leased.sum() == viewed.sum() == 5 * MIB


@pytest.mark.freezes
def test_a_stopped_daemon_holds_nobody_longer_than_its_timeout(daemon: Served, store: tl.Store) -> None:
    store.put(["a"], [1])
    stop_process(daemon.process)
    try:
        with pytest.raises(tl.Timeout):
            store.get(["a"], timeout=0.3)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert store.get(["a"]) == [1]


@pytest.mark.alone
def test_a_full_host_is_an_error_or_a_wait_for_room(daemon: Served, store: tl.Store) -> None:
    store.put(["large"], [np.zeros(100 * MIB, dtype=np.uint8)])
    value = np.ones(64 * MIB, dtype=np.uint8)
    with pytest.raises(tl.StoreFull, match=f"{64 * MIB} bytes asked"):
        store.put(["b"], [value])
    with pytest.raises(tl.StoreFull):
        store.put(["b"], [value], timeout=0.2)
    assert store.contains(["b", "large"]) == [False, True]
    code = "store = tl.open(sys.argv[1])\nprint('ready', flush=True)\nsys.stdin.read(1)\nstore.remove(['large'])\n"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{WITHOUT_TORCH}import tensorlease as tl\n{code}", daemon.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert process.stdin is not None
    process.stdin.write("x")
    process.stdin.flush()
    store.put(["b"], [value], timeout=30)
    assert store.get(["b"])[0].sum() == 64 * MIB
    process.communicate()


@pytest.mark.alone
def test_a_value_that_never_fits_is_refused_without_a_wait(daemon: Served, store: tl.Store) -> None:
    start = time.monotonic()
    with pytest.raises(tl.StoreFull, match="larger than the host's whole arena .* larger --max-bytes"):
        store.put(["a", "b"], [1, np.zeros(daemon.report()["capacity_bytes"] + 1, dtype=np.uint8)], timeout=30)
    assert time.monotonic() - start < 15
    assert store.contains(["a", "b"]) == [True, False]


def test_a_store_of_a_host_pickles(daemon: Served, store: tl.Store) -> None:
    store.put(["a"], ["value"])
    with pickle.loads(pickle.dumps(store)) as again:
        assert again.get(["a"]) == ["value"]


def test_a_folder_that_others_may_write_to_is_refused_before_anything_is_put_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = folder / "tensorlease"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with pytest.raises(tl.ConfigError, match="is not a folder of this user alone; remove it, or set XDG_RUNTIME_DIR"):
        tl.open()
    assert list(shared.iterdir()) == []


def test_a_path_never_starts_a_daemon(folder: Path) -> None:
    with pytest.raises(tl.EngineUnavailable, match="tensorlease serve"):
        tl.open(f"host://{folder}/host.sock")
    with pytest.raises(tl.ConfigError, match="absolute"):
        tl.open("host://relative/host.sock")
    with pytest.raises(tl.ConfigError, match="no option"):
        tl.open(f"host://{folder}/host.sock?capacity=1GiB")
    assert list(folder.iterdir()) == []


def test_a_daemon_ends_when_it_is_told_to(folder: Path) -> None:
    socket = folder / "host.sock"
    with served(socket, "--keep") as daemon, tl.open(daemon.url) as store:
        store.put(["a"], [1])
        assert "has ended" in daemon.end()
        assert daemon.process.returncode == 0
        assert not socket.exists()
        with pytest.raises(tl.EngineUnavailable):
            store.get(["a"])


def test_one_daemon_serves_a_place(daemon: Served) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "tensorlease", "serve", "--socket", daemon.socket],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert second.returncode == 1
    assert "runs already" in second.stderr


def test_the_command_says_who_holds_what(daemon: Served, store: tl.Store) -> None:
    store.put(["a"], [np.zeros(MIB, dtype=np.uint8)])
    command = [sys.executable, "-m", "tensorlease", "stats", "--host", "--socket", daemon.socket]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert "1 object of 1 MiB" in done.stdout
    assert str(os.getpid()) in done.stdout
    assert host.report_text(daemon.report()).splitlines()[1].split()[0] == "process"


MANY = """
import os
ready, go = os.pipe(), os.pipe()
children = []
for number in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        os.close(go[1])
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        status = 1
        try:
            with tl.open(max_bytes="8MiB") as store:
                key = f"key/{number}"
                store.put([key], [number])
                assert store.get([key]) == [number]
            status = 0
        finally:
            os._exit(status)
    children.append(pid)
left = len(children)
while left:
    left -= len(os.read(ready[0], left))
os.close(go[1])
bad = [pid for pid in children if os.waitpid(pid, 0)[1] != 0]
assert not bad, f"{len(bad)} of {len(children)} were not served"
"""


def test_of_all_that_open_at_once_one_starts_the_daemon(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TENSORLEASE_URL"}
    environment["XDG_RUNTIME_DIR"] = str(folder)
    text = f"{WITHOUT_TORCH}import tensorlease as tl\n{MANY}"
    command = [sys.executable, "-c", text, "100"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=55)
    assert done.returncode == 0, done.stderr
    log = folder / "tensorlease" / "host.log"
    assert log.read_text().count("tensorlease: serving host://") == 1
    socket = str(folder / "tensorlease" / "host.sock")
    report = host.report(socket)
    assert report["objects"] == 100
    assert os.readlink(f"/proc/{report['pid']}/cwd") == "/"
    assert os.getsid(report["pid"]) == report["pid"], "a session of its own"
    os.kill(report["pid"], signal.SIGTERM)
    eventually("its end", lambda: not host.host_listens(socket))


def test_a_started_daemon_ends_when_nobody_needs_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("TENSORLEASE_URL", raising=False)
    with tl.open(max_bytes="8MiB") as store:
        assert store.url == "host://"
        store.put(["a"], [1])
        socket = host.host_socket(None)
        time.sleep(0.1)
        assert host.host_listens(socket)
        store.remove(["a"])
    eventually("its end", lambda: "has ended" in (folder / "tensorlease" / "host.log").read_text())
    with tl.open(max_bytes="8MiB") as store:
        assert store.contains(["a"]) == [False], "the next one is another"
    assert host.report(socket)["objects"] == 0
    os.kill(host.report(socket)["pid"], signal.SIGTERM)
