"""The host's daemon as a process: its descriptors, signals, log and end; and clients that become other programs."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import RunPython
from host_rig import WITHOUT_TORCH, Served, client, eventually, place, served

import tensorlease as tl
from bench.cluster import stop_process
from tensorlease import host, host_end
from tensorlease.sizes import format_bytes

SECONDS = 60
MIB = 1 << 20
#: Runs a command without standard streams.
CLOSED = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with place() as made:
        yield made


@pytest.fixture
def daemon(folder: Path) -> Iterator[Served]:
    with served(folder / "host.sock", "--max-bytes", "64MiB", "--keep") as running:
        yield running


@pytest.fixture
def runtime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this user's daemon, which no other test shares. A daemon that starts there ends with the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("TENSORLEASE_URL", raising=False)
    yield folder / "tensorlease"
    end(host.host_holder(str(folder / "tensorlease" / "host.sock")))


def end(pid: int | None) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def state(pid: int) -> str | None:
    """Of a process, as in `ps`; None: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def low_descriptors(pid: int) -> dict[int, str]:
    found = {}
    for number in range(3):
        with contextlib.suppress(OSError):
            found[number] = os.readlink(f"/proc/{pid}/fd/{number}")
    return found


# ---- descriptors ----------------------------------------------------------------------------------------------------

WITHOUT_STREAMS = """
import ctypes, json, os, sys
import numpy as np
def low():
    return [number for number in range(3) if os.path.lexists(f"/proc/self/fd/{number}")]
found = {"before": low()}
for url in sys.argv[2:]:
    try:
        store = tl.open(url, max_bytes="16MiB")
    except (tl.ConfigError, tl.EngineUnavailable):
        found[url] = "refused"
        continue
    store.put(["b/" + url], [np.ones(100_000, np.uint8)])
    held = [store.get(["b/" + url], delivery=delivery) for delivery in ("copied", "leased")]
    if url.startswith("host:"):
        held.append(store.get(["a"], view=True))
    libc = ctypes.CDLL(None)
    libc.puts(b"hello from a C library")
    libc.fflush(None)
    found[url] = low()
    found[url + " again"] = len(store.get(["b/" + url])[0])
with open(sys.argv[1], "w") as out:
    json.dump(found, out)
"""


def test_without_standard_streams_no_descriptor_of_a_client_is_below_three(daemon: Served, folder: Path) -> None:
    out = folder / "found.json"
    urls = ["embedded://", "embedded://?registration=pinned", daemon.url]
    with tl.open(daemon.url) as store:
        store.put(["a"], [np.zeros(100_000, np.uint8)])
        code = f"{WITHOUT_TORCH}import tensorlease as tl\n{WITHOUT_STREAMS}"
        command = [*CLOSED, sys.executable, "-c", code, str(out), *urls]
        assert subprocess.run(command, timeout=SECONDS, check=False).returncode == 0
        assert not store.get(["a"])[0].any(), "what a C library printed is no part of an object"
    found = json.loads(out.read_text())
    assert found.pop("before") == []
    for url in urls:
        if found[url] != "refused":
            assert found[url] == [], url
            assert found[f"{url} again"] == 100_000


def test_a_daemon_without_standard_streams_has_the_null_device_there(folder: Path) -> None:
    path = str(folder / "host.sock")
    command = [*CLOSED, sys.executable, "-m", "tensorlease", "serve", "--socket", path, "--max-bytes", "16MiB"]
    process = subprocess.Popen(command)
    try:
        eventually("its socket", lambda: host.host_listens(path))
        with tl.open(f"host://{path}", max_bytes="8MiB") as store:
            store.put(["a"], [1])
        assert low_descriptors(process.pid) == dict.fromkeys(range(3), os.devnull)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def test_a_daemon_that_open_starts_without_standard_streams_has_its_log_there(runtime: Path) -> None:
    code = f"{WITHOUT_TORCH}import tensorlease as tl\ntl.open(max_bytes='8MiB').put(['a'], [1])"
    assert subprocess.run([*CLOSED, sys.executable, "-c", code], timeout=SECONDS, check=False).returncode == 0
    log = str(runtime / "host.log")
    assert low_descriptors(host.report(None)["pid"]) == {0: os.devnull, 1: log, 2: log}
    assert "serving host://" in Path(log).read_text()


# ---- its log --------------------------------------------------------------------------------------------------------


def full_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    return reading, writing


@pytest.mark.parametrize("output", ["full disk", "pipe that nobody reads", "pipe whose reader has gone"])
def test_a_daemon_whose_output_cannot_be_written_serves_and_ends_in_order(folder: Path, output: str) -> None:
    path = str(folder / "host.sock")
    kept = -1
    if output == "full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    elif output == "pipe that nobody reads":
        kept, descriptor = full_pipe()
    else:
        reading, descriptor = os.pipe()
        os.close(reading)
    command = [sys.executable, "-m", "tensorlease", "serve", "--socket", path, "--max-bytes", "16MiB"]
    process = subprocess.Popen(command, stdout=descriptor, stderr=descriptor)
    os.close(descriptor)
    try:
        eventually("its socket", lambda: host.host_listens(path))
        with tl.open(f"host://{path}", max_bytes="8MiB") as store:
            store.put(["a"], [b"x" * 1000])
            # Makes it warn: one more line that can't be written.
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(path)
                stranger.sendall(b"\x04\0\0\0what")
                assert stranger.recv(1) == b""
            time.sleep(2 * host.SIGNAL_SECONDS)
            assert store.get(["a"]) == [b"x" * 1000]
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        if kept >= 0:
            os.close(kept)


def test_a_log_says_how_many_lines_were_lost() -> None:
    from tensorlease.host import DaemonLog

    reading, writing = full_pipe()
    log = DaemonLog(writing)
    log.say("lost")
    log.say("lost too")
    assert log.dropped == 2
    os.set_blocking(reading, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(reading, 65536):
            pass
    log.say("kept")
    assert log.dropped == 0
    assert os.read(reading, 4096) == b"tensorlease: 2 lines before this one could not be written\nkept\n"
    os.close(reading)
    os.close(writing)


def test_open_names_a_log_that_cannot_be_written_where_the_daemon_does_not_start(runtime: Path) -> None:
    # Neither the log nor the daemon's memory can be as long as a byte.
    code = f"""{WITHOUT_TORCH}
import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
import tensorlease as tl
try:
    tl.open(max_bytes="8MiB")
except tl.EngineUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    log = runtime / "host.log"
    assert f"its log {log} can't be written: File too large; make room there, or set XDG_RUNTIME_DIR" in done.stdout, (
        done
    )


FULL_DISK = """
mount -t tmpfs -o size=8k none "$1" || exit 77
chmod 700 "$1"; mkdir -m700 "$1/tensorlease"; head -c 8192 /dev/zero > "$1/full"
XDG_RUNTIME_DIR="$1" exec "$2" -c "$3"
"""


def test_a_full_disk_keeps_nobody_from_a_daemon(folder: Path) -> None:
    code = f"""{WITHOUT_TORCH}
import os, signal, time
import tensorlease as tl
from tensorlease import host
store = tl.open(max_bytes="8MiB")
time.sleep(0.5)
store.put(["a"], [b"x" * 100])
assert store.get(["a"]) == [b"x" * 100]
os.kill(host.report(None)["pid"], signal.SIGTERM)
print("served")
"""
    environment = {name: value for name, value in os.environ.items() if name != "TENSORLEASE_URL"}
    command = ["unshare", "-m", "sh", "-c", FULL_DISK, "sh", str(folder), sys.executable, code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    assert done.stdout == "served\n", done


# ---- signals, limits, parents ---------------------------------------------------------------------------------------

INHERITED = """
import os, resource, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1})
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
_, most = resource.getrlimit(resource.RLIMIT_CPU)
resource.setrlimit(resource.RLIMIT_CPU, (1000, most))
import tensorlease as tl
tl.open(max_bytes="8MiB").put(["a"], [1])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_daemon_ends_when_it_is_told_to_whatever_its_starter_blocked_or_ignored(
    runtime: Path, run_python: RunPython, number: int
) -> None:
    run_python(INHERITED)
    pid = host.report(None)["pid"]
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    assert int(status["SigBlk"], 16) == 0, "no signal is blocked"
    soft, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
    assert soft == hard, "no processor time that its starter had for itself ends it"
    os.kill(pid, number)
    eventually("its end", lambda: state(pid) in (None, "Z"))
    assert "the daemon has ended" in (runtime / "host.log").read_text(), "in order"


def test_a_daemon_that_ends_is_no_zombie_of_the_process_that_started_it(runtime: Path) -> None:
    with tl.open(max_bytes="8MiB") as store:
        pid = host.report(None)["pid"]
        store.put(["a"], [1])
    os.kill(pid, signal.SIGKILL)
    eventually("the end of its entry in the table of processes", lambda: state(pid) is None)


def test_a_process_that_started_a_daemon_ends_without_a_warning(runtime: Path, run_python: RunPython) -> None:
    code = "import warnings; warnings.simplefilter('always')\n"
    code += "import tensorlease as tl; tl.open(max_bytes='8MiB').put(['a'], [1])"
    assert run_python(code).stderr == ""


BECOMES = """
import os, sys
import numpy as np
store = tl.open(sys.argv[1], max_bytes="16MiB")
store.put(["b"], [np.ones(1 << 20, np.uint8)])
leased = store.get(["a"], [(1 << 20,)], ["uint8"], delivery="leased")
viewed = store.get(["a"], view=True)
print("ready", flush=True)
sys.stdin.readline()
os.execv(sys.executable, [sys.executable, "-c", "import sys; print('other', flush=True); sys.stdin.read()"])
"""


def test_a_process_that_becomes_another_program_keeps_nothing_of_what_it_held(daemon: Served) -> None:
    with tl.open(daemon.url, max_bytes="16MiB") as store:
        store.put(["a"], [np.zeros(MIB, np.uint8)])
        before = daemon.report()["held_bytes"]
        with client(BECOMES, daemon.url) as process:
            (row,) = daemon.clients()
            assert row["pid"] == process.pid
            assert row["pinned_objects"] == 1
            assert row["arena_bytes"] >= MIB
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "other\n"
            assert state(process.pid) != "Z", "the same process goes on"
            eventually("the end of its session", lambda: daemon.clients() == [])
            store.remove(["b"])
            eventually("its memory", lambda: daemon.report()["held_bytes"] <= before)


CLOSES_ITS_SOCKETS = """
import os, stat, sys
store = tl.open(sys.argv[1], max_bytes="16MiB")
viewed = store.get(["a"], view=True)
for name in os.listdir("/proc/self/fd"):
    try:
        if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
            os.close(int(name))
    except OSError:
        pass
"""


def test_a_process_that_closes_its_sockets_keeps_what_it_may_still_touch(daemon: Served) -> None:
    with tl.open(daemon.url, max_bytes="16MiB") as store:
        store.put(["a"], [np.zeros(MIB, np.uint8)])
        with client(CLOSES_ITS_SOCKETS, daemon.url):
            eventually("its connection's end", lambda: [row["cut_off"] for row in daemon.clients()] == [True])
            time.sleep(0.3)
            assert [row["pinned_objects"] for row in daemon.clients()] == [1]
        eventually("the end of its process", lambda: daemon.clients() == [])


# ---- what is said at the socket -------------------------------------------------------------------------------------


def test_a_daemon_whose_socket_was_removed_is_named_with_a_way_on(runtime: Path, run_python: RunPython) -> None:
    with tl.open(max_bytes="8MiB") as store:
        store.put(["a"], [1])
        pid = host.report(None)["pid"]
        path = runtime / "host.sock"
        path.unlink()
        for url in (None, f"host://{path}"):
            with pytest.raises(tl.EngineUnavailable) as caught:
                tl.open(url, max_bytes="8MiB")
            for part in (f"process {pid}", "removed the socket", f"tensorlease stop --socket {path}"):
                assert part in str(caught.value)
        assert store.get(["a"]) == [1], "those who are connected go on"
        stopped = stop(path, "--yes")
        assert stopped.returncode == 0, stopped
        assert f"process {pid}" in stopped.stdout
        assert state(pid) in (None, "Z")
    with tl.open(max_bytes="8MiB") as store:
        assert store.contains(["a"]) == [False]


def test_a_runtime_folder_whose_name_is_no_text_is_used_as_it_is(folder: Path, run_python: RunPython) -> None:
    named = os.fsencode(folder) + b"/x\xffy"
    os.mkdir(named, 0o700)
    environment = {**os.environb, b"XDG_RUNTIME_DIR": named}
    environment.pop(b"TENSORLEASE_URL", None)
    code = """
import os, signal
import tensorlease as tl
from tensorlease import host
tl.open(max_bytes="8MiB").put(["a"], [1])
os.kill(host.report(None)["pid"], signal.SIGTERM)
"""
    run_python(code, env=environment)
    assert os.listdir(os.fsencode(folder)) == [b"x\xffy"], "no other folder was made"
    assert b"host.log" in os.listdir(named + b"/tensorlease")
    assert b"serving host://" + named in Path(os.fsdecode(named + b"/tensorlease/host.log")).read_bytes()


def test_a_relative_runtime_folder_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "rel")
    monkeypatch.delenv("TENSORLEASE_URL", raising=False)
    with pytest.raises(tl.ConfigError, match='XDG_RUNTIME_DIR="rel" is not absolute; set XDG_RUNTIME_DIR to'):
        tl.open("host://")
    assert not os.path.exists("rel")


def test_a_url_of_the_environment_that_is_no_text_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORLEASE_URL", "host:///tmp/x\udcffy/host.sock")
    with pytest.raises(tl.ConfigError, match="TENSORLEASE_URL is "):
        tl.open()


@pytest.mark.alone
def test_a_daemon_without_descriptors_says_so_and_takes_clients_again(daemon: Served) -> None:
    pid = daemon.process.pid
    with tl.open(daemon.url, max_bytes="8MiB") as store:
        store.put(["a"], [1])
        used = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
        for limit in (used, used + 1):
            # With one more it takes the client's socket, and can't watch its process.
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
            begin = time.monotonic()
            with pytest.raises(tl.EngineUnavailable, match=f"process {pid}.*no descriptor left.*ulimit -n"):
                tl.open(daemon.url, max_bytes="8MiB")
            assert time.monotonic() - begin < host.SILENT_SECONDS, "it is told, and does not wait"
        assert store.get(["a"]) == [1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        tl.open(daemon.url, max_bytes="8MiB").close()


def test_a_daemon_of_another_version_is_named_with_what_it_says(folder: Path) -> None:
    path = folder / "host.sock"
    why = b"it speaks version 4 of the protocol, and so on"
    frame = b"\0\0\0\0\x0a" + len(why).to_bytes(2, "little") + why
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def refuse() -> None:
            stream, _ = listener.accept()
            with stream:
                stream.recv(100)
                stream.sendall(len(frame).to_bytes(4, "little") + frame)

        other = threading.Thread(target=refuse)
        other.start()
        with pytest.raises(
            tl.EngineUnavailable, match=f"process {os.getpid()}.*refused this client: it speaks version 4"
        ):
            tl.open(f"host://{path}")
        other.join()


def test_a_daemon_that_takes_nobody_in_is_silent(folder: Path) -> None:
    path = folder / "host.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        # As many as may wait.
        waiting.connect(str(path))
        with pytest.raises(tl.EngineUnavailable, match="does not answer; see whether it is stopped"):
            tl.open(f"host://{path}")


# ---- tensorlease stop -----------------------------------------------------------------------------------------------


def stop(path: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tensorlease", "stop", "--socket", str(path), *arguments]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_stop_says_what_is_lost_and_ends_the_daemon(daemon: Served) -> None:
    with tl.open(daemon.url, namespace="run17", max_bytes="8MiB") as store:
        store.put(["a", "b"], [bytes(1000), bytes(1000)])
        refused = stop(daemon.socket)
        assert refused.returncode == 2
        assert "--yes" in refused.stderr
        size = format_bytes(daemon.report()["object_bytes"])
        for said in (refused, stop(daemon.socket, "--yes")):
            for part in (
                f"process {daemon.process.pid}",
                f"2 objects of {size}\n",
                f"2 of {size} in namespace run17/",
                "the connections of 1 client;",
                f"process {os.getpid()}:",
            ):
                assert part in said.stdout, said
        assert said.returncode == 0, said
        assert f"The daemon (process {daemon.process.pid}) has ended." in said.stdout
        assert daemon.process.wait(SECONDS) == 0
        with pytest.raises(tl.EngineUnavailable):
            store.get(["a"])
    again = stop(daemon.socket, "--yes")
    assert again.returncode == 0
    assert f"no daemon runs at {daemon.socket}" in again.stdout


@pytest.mark.parametrize(("answer", "ends"), [("y", True), ("n", False), ("", False)])
def test_stop_asks_on_a_terminal(daemon: Served, answer: str, ends: bool) -> None:
    with tl.open(daemon.url, max_bytes="8MiB") as store:
        store.put(["a"], [bytes(1000)])
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tensorlease", "stop", "--socket", daemon.socket]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while b"[y/N] " not in said:
        said += os.read(ours, 4096)
    assert b"1 object of 1019 B" in said
    os.write(ours, answer.encode() + b"\n")
    assert process.wait(SECONDS) == (0 if ends else 1)
    os.close(ours)
    if ends:
        assert daemon.process.wait(SECONDS) == 0
    else:
        assert host.host_listens(daemon.socket)


def test_stop_asks_nothing_where_nothing_is_lost(daemon: Served) -> None:
    done = stop(daemon.socket)
    assert done.returncode == 0, done
    assert "has no object and no client" in done.stdout
    assert daemon.process.wait(SECONDS) == 0


@pytest.mark.freezes
def test_stop_ends_a_daemon_that_is_stopped(daemon: Served) -> None:
    stop_process(daemon.process)
    done = stop(daemon.socket, "--yes")
    assert done.returncode == 0, done
    assert f"is process {daemon.process.pid}. What it holds can't be asked" in done.stdout
    assert "It is stopped (SIGSTOP)" in done.stdout
    assert daemon.process.wait(SECONDS) == 0


HOLDS_A_LOCK = """
import fcntl, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = open(sys.argv[1] + ".lock", "w+")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write(sys.argv[2] if 2 < len(sys.argv) else str(os.getpid()))
lock.flush()
"""


def test_stop_names_the_way_on_where_a_daemon_does_not_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(folder / "host.sock")
    monkeypatch.setattr(host_end, "END_SECONDS", 0.5)
    with client(HOLDS_A_LOCK, path) as process:
        with pytest.raises(tl.EngineUnavailable, match=f"has not within .*`kill -9 {process.pid}`"):
            host_end.stop(path, asks=False)
        assert state(process.pid) != "Z"


def test_stop_ends_no_process_that_is_not_the_daemon(folder: Path) -> None:
    path = str(folder / "host.sock")
    other = subprocess.Popen(["sleep", "60"])
    try:
        # As the lock of a daemon in another PID namespace, where the number is another process's.
        with client(HOLDS_A_LOCK, path, str(other.pid)):
            with pytest.raises(tl.EngineUnavailable, match=f"process {other.pid}, and here that is none, or another"):
                host_end.stop(path, asks=False)
            time.sleep(0.2)
            assert other.poll() is None
    finally:
        other.kill()
        other.wait()


# ---- which daemon stats and stop are about --------------------------------------------------------------------------


def command(*arguments: str, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorlease", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "TENSORLEASE_URL": url},
    )


def test_stats_and_stop_mean_the_daemon_of_the_environment(daemon: Served, runtime: Path) -> None:
    shown = command("stats", "--host", "--json", url=f"{daemon.url}?faults=read-delay:1")
    assert json.loads(shown.stdout)["pid"] == daemon.process.pid, shown
    other = command("stats", "--host", "--socket", f"{runtime}/none.sock", url=daemon.url)
    assert other.returncode == 1
    assert f"nothing to show: no daemon runs at {runtime}/none.sock" in other.stderr
    ended = command("stop", "--yes", url=daemon.url)
    assert f"The daemon (process {daemon.process.pid}) has ended." in ended.stdout
    for url in ("host://", "host://?faults=read-delay:1", ""):
        assert f"no daemon runs at {runtime}" in command("stop", url=url).stdout


@pytest.mark.parametrize("url", ["mooncake://127.0.0.1:1", "embedded://", "host://here.sock", "host:///", "nothing"])
def test_stats_and_stop_touch_no_daemon_where_the_environment_names_none(url: str, runtime: Path) -> None:
    with served(Path(host.host_socket(None))) as own:
        for arguments in (["stats", "--host"], ["stop", "--yes"]):
            refused = command(*arguments, url=url)
            assert refused.returncode == 2, refused
            assert "TENSORLEASE_URL is" in refused.stderr
        assert host.host_listens(own.socket)


def test_stats_of_no_host_names_the_counters_of_a_process() -> None:
    refused = command("stats", url="")
    assert refused.returncode == 2
    assert "store.stats()" in refused.stderr


def test_stats_leave_out_the_connection_that_asks(daemon: Served) -> None:
    assert daemon.report()["clients"] == []
    with tl.open(daemon.url, max_bytes="8MiB"):
        assert [row["pid"] for row in daemon.report()["clients"]] == [os.getpid()]


def test_stats_show_the_objects_and_bytes_of_each_namespace(daemon: Served) -> None:
    for namespace, count in (("one", 1), ("two", 3)):
        with tl.open(daemon.url, namespace=namespace, max_bytes="8MiB") as store:
            store.put([f"a{number}" for number in range(count)], [bytes(1000)] * count)
    with tl.open(daemon.url, max_bytes="8MiB") as store:
        store.put(["bare"], [bytes(100)])
    rows = daemon.report()["namespaces"]
    assert [(row["namespace"], row["objects"]) for row in rows] == [("two/", 3), ("one/", 1), ("", 1)]
    assert sum(row["object_bytes"] for row in rows) == daemon.report()["object_bytes"]
    command = [sys.executable, "-m", "tensorlease", "stats", "--host", "--socket", daemon.socket]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    assert [line.split()[-1] for line in text.splitlines()[-3:]] == ["two/", "one/", "(none)"]
    assert (
        json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)["namespaces"] == rows
    )
