"""The master of a job: one that runs is used and never killed, one that is missing is started, and only that one is stopped."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mooncake_rig import cluster, wait_until
from queue_rig import HERE, OURS, on_both, require_transfer_queue, run_job, run_script

require_transfer_queue()

from omegaconf import OmegaConf

from tensorlease.mooncake_master import HOST, free_port, listens
from tensorlease.transfer_queue import initialize_mooncake_storage
from tensorlease.transfer_queue import master as master_module

pytestmark = pytest.mark.timeout(180)


def answers(port: int) -> bool:
    """Does anything listen there?"""
    return listens((HOST, port))


def configuration(master: str, metadata: str = "P2PHANDSHAKE", **settings: Any) -> Any:
    """As TransferQueue passes it to a bootstrap."""
    mooncake = {"auto_init": True, "metadata_server": metadata, "master_server_address": master, **settings}
    return OmegaConf.create({"backend": {"storage_backend": "MooncakeStore", "MooncakeStore": mooncake}})


# ---- masters that run ------------------------------------------------------------------------------------------------------------


class Killed(Exception):
    """Somebody has asked for it."""


@pytest.fixture
def harmless_path(tmp_path: Path) -> Path:
    """A PATH of stand-ins: what looks for masters finds one that is no process of anybody, and what kills is only noted."""
    folder = tmp_path / "bin"
    folder.mkdir()
    killed = tmp_path / "killed"
    for name, text in {
        "pgrep": "echo 4194305",
        "pkill": f'echo "$0 $*" >> {killed}',
        "killall": f'echo "$0 $*" >> {killed}',
        "mooncake_master": "exec /bin/sleep 10",
    }.items():
        script = folder / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    return folder


@on_both(released_fails_with=Killed, why="it kills every master of the machine by name before it starts its own")
def test_a_running_master_is_never_killed(harmless_path: Path, which: str) -> None:
    killed = harmless_path.parent / "killed"
    with cluster() as master:
        # Nothing else is on this PATH: whatever the bootstrap does, no master of this machine can be meant.
        run_script(HERE / "bootstraps.py", which, master.address, environment={"PATH": str(harmless_path)}, timeout=90)
        assert answers(master.port)
    if killed.exists():
        raise Killed(killed.read_text())


def test_a_master_that_answers_is_used_as_it_is() -> None:
    with cluster() as master:
        assert initialize_mooncake_storage(configuration(master.address)) is None
        assert answers(master.port)


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["taken", "silent", "http"])
def test_an_address_that_is_no_masters_is_an_error_within_bounds_that_names_it(
    answer: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log of the master that could not start stays, for whoever asks why.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        if answer is not None:
            taken.listen()
        if answer:
            threading.Thread(target=answer_all, args=(taken, answer), daemon=True).start()
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=str(port)):
            initialize_mooncake_storage(configuration(f"{HOST}:{port}"))


def answer_all(server: socket.socket, answer: bytes) -> None:
    """Until it is closed."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)


# ---- masters that a job starts ---------------------------------------------------------------------------------------------------


def test_a_job_starts_the_master_that_is_missing_and_ends_it(ray_address: str) -> None:
    port, metadata_port = free_port(), free_port()
    to_start: Any = SimpleNamespace(address=f"{HOST}:{port}")
    backend = {"auto_init": True, "metadata_server": f"{HOST}:{metadata_port}"}
    outcomes = run_job(OURS, ["actors/dense", "clients"], ray_address=ray_address, master=to_start, backend=backend)
    outcomes["actors/dense"].passed()
    assert outcomes["clients"].passed()["driver"] == "TensorleaseStoreClient"
    wait_until(lambda: not answers(port), "the master that the job started ends with it")
    assert not answers(metadata_port)


@pytest.fixture
def own_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the logs of what is started lie; what still runs at the end of the test is ended."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = dict(master_module._started)
    yield tmp_path
    for address in master_module._started.keys() - before.keys():
        master_module._started.pop(address).stop()


@pytest.mark.usefixtures("own_logs")
def test_a_process_that_starts_a_second_job_uses_the_master_that_it_has_started() -> None:
    port = free_port()
    first = initialize_mooncake_storage(configuration(f"{HOST}:{port}"))
    assert initialize_mooncake_storage(configuration(f"{HOST}:{port}")) is first
    # As TransferQueue's `close` ends it.
    first.terminate()
    first.wait(20)
    second = initialize_mooncake_storage(configuration(f"{HOST}:{port}"))
    assert second is not first
    assert answers(port)


@pytest.mark.usefixtures("own_logs")
def test_a_master_whose_metrics_port_was_taken_before_it_listened_is_started_with_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(master_module, "free_port", lambda _: next(ports))
        monkeypatch.setattr(master_module, "_is_free", lambda _: False)
        started = initialize_mooncake_storage(configuration(f"{HOST}:{port}"))
    assert next(ports, None) is None
    assert started.poll() is None
    assert answers(port)


def test_a_forked_child_leaves_the_master_to_its_parent_and_it_ends_with_that(run_python: Any) -> None:
    port = free_port()
    code = f"""
import multiprocessing
from tensorlease.transfer_queue import master

address = master.Address("127.0.0.1", {port})
started = master.start(address, None, ["--rpc_address=127.0.0.1", "--rpc_port={port}"])

def end():
    assert master.own_at(address) is None
    started.stop()

child = multiprocessing.get_context("fork").Process(target=end)
child.start()
child.join()
print("child", child.exitcode, "answers", address.listens())
"""
    assert run_python(code, torch=True).stdout.splitlines()[-1] == "child 0 answers True"
    wait_until(lambda: not answers(port), "the master ends with the process that started it")


def test_of_two_processes_that_start_a_master_at_once_one_does_and_the_other_knows(run_python: Any) -> None:
    port = free_port()
    code = f"""
import os, time
from tensorlease.processes import listens_at
from tensorlease.transfer_queue import master
from tensorlease.transfer_queue.bootstrap import master_arguments
address = master.Address("127.0.0.1", {port})
ends, begins = os.pipe(), os.pipe()
def start():
    own = master.start(address, None, master_arguments(address, None, {{}}))
    return own is not None and listens_at(own.process, {port})
child = os.fork()
if child == 0:
    os.read(begins[0], 1)
    os.write(ends[1], b"1" if start() else b"0")
    time.sleep(3)
    os._exit(0)
os.write(begins[1], b"x")
mine = start()
theirs = os.read(ends[0], 1) == b"1"
print("one of two", mine != theirs, master.answers(address))
os.waitpid(child, 0)
"""
    assert run_python(code, torch=True).stdout.splitlines()[-1] == "one of two True True"


@pytest.mark.parametrize("host", ["192.0.2.7", "nosuchhost.invalid"])
def test_a_master_of_another_machine_that_is_not_there_is_an_error_that_says_where_to_start_it(host: str) -> None:
    with pytest.raises(RuntimeError, match=f"{host} is no address of this machine: start one there"):
        initialize_mooncake_storage(configuration(f"{host}:50051"))


def offload(folder: Path, **settings: Any) -> dict[str, Any]:
    """Settings of a small offload client."""
    return {
        "enabled": True,
        "file_storage_path": str(folder / "offloaded"),
        "client_port": free_port(),
        "local_buffer_size_bytes": 64 << 20,
        **settings,
    }


def test_with_offload_the_client_that_keeps_objects_on_disk_is_started_too(own_logs: Path) -> None:
    port = free_port()
    settings = {"local_hostname": HOST, "global_segment_size": 64 << 20, "offload": offload(own_logs)}
    started = initialize_mooncake_storage(configuration(f"{HOST}:{port}", **settings))
    try:
        assert set(started) == {"master_process", "offload_client_process"}
        assert [process.poll() for process in started.values()] == [None, None]
    finally:
        for process in started.values():
            process.terminate()
            process.wait(20)


def test_an_offload_client_that_does_not_start_takes_the_master_with_it(own_logs: Path) -> None:
    port = free_port()
    settings = {"local_hostname": HOST, "global_segment_size": 100 << 40, "offload": offload(own_logs)}
    with pytest.raises(RuntimeError, match="mooncake_client ended"):
        initialize_mooncake_storage(configuration(f"{HOST}:{port}", **settings))
    wait_until(lambda: not answers(port), "nobody is left to use the master")


@pytest.mark.parametrize("name", ["eviction_high_watermark_ratio", "eviction_ratio"])
@pytest.mark.parametrize("ratio", [0.0, 1.5])
def test_an_offload_ratio_that_is_none_is_refused_before_anything_is_started(
    tmp_path: Path, name: str, ratio: float
) -> None:
    port = free_port()
    with pytest.raises(ValueError, match=name):
        initialize_mooncake_storage(configuration(f"{HOST}:{port}", offload=offload(tmp_path, **{name: ratio})))
    assert not answers(port)


@pytest.mark.parametrize(
    ("master", "metadata", "setting"),
    [("nowhere", "P2PHANDSHAKE", "master_server_address"), (f"{HOST}:50051", "nowhere", "metadata_server")],
    ids=["master", "metadata"],
)
def test_an_address_without_a_port_is_a_value_error_that_names_the_setting(
    master: str, metadata: str, setting: str
) -> None:
    with pytest.raises(ValueError, match=f"Invalid {setting} 'nowhere'"):
        initialize_mooncake_storage(configuration(master, metadata))


def test_without_auto_init_nothing_is_started() -> None:
    port = free_port()
    assert initialize_mooncake_storage(configuration(f"{HOST}:{port}", auto_init=False)) is None
    assert not answers(port)
