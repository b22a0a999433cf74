"""`tensorlease doctor` on machines with one fault each, made on purpose; and whether what it advises works."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doctor_faults import (
    Diagnosis,
    answering_listener,
    doctor,
    environment,
    low_memlock,
    refused_io_uring,
    silent_listener,
)
from host_rig import place, served
from mooncake_rig import require_mooncake

import tensorlease as tl
from bench.cluster import Master, SegmentOwner, stop_process
from tensorlease.doctor import mooncake
from tensorlease.doctor.examination import examine
from tensorlease.doctor.target import target
from tensorlease.doctor.trials import Trial
from tensorlease.mooncake_master import HOST, free_port, listens

pytestmark = pytest.mark.timeout(180)

PINNED = "embedded://?registration=pinned"
SEGMENT_MIB = 16


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    require_mooncake()
    with Master() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(master: Master) -> Iterator[Master]:
    """The master, and a process that owns a segment."""
    with owning(master):
        yield master


def owning(master: Master) -> SegmentOwner:
    return SegmentOwner(master.url(segment=f"{SEGMENT_MIB}MiB", local_buffer="16MiB"))


def metric(master: Master, name: str) -> int:
    """What the master itself says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{master.metrics_port}/metrics", timeout=10) as answer:
        (value,) = re.findall(rf"^{name} (\d+)$", answer.read().decode(), re.MULTILINE)
    return int(value)


def require_io_uring() -> None:
    try:
        tl.open(PINNED, max_bytes="16MiB", readers=1).close()
    except tl.EngineUnavailable as error:
        pytest.skip(f"this machine is ill itself: {error}")


def said_what_is_wrong(found: Diagnosis, subject: str, *words: str) -> str:
    """The fix of the one problem that was made on purpose."""
    assert found.returncode == 1, found.text
    assert found.problems == [subject], found.text
    finding = found.of(subject)
    for word in words:
        assert word in finding["message"]
    assert finding["fix"]
    return str(finding["fix"])


def healthy(found: Diagnosis) -> None:
    assert found.returncode == 0, found.text
    assert found.report["problems"] == 0
    assert found.problems == []


def test_without_a_url_the_hosts_store_is_looked_at_and_absent_hardware_is_no_problem() -> None:
    # A daemon of its own, which ends without clients.
    with place() as folder:
        found = doctor(None, changes={"XDG_RUNTIME_DIR": str(folder)})
    healthy(found)
    assert found.report["url"] == "host://"
    subjects = [finding["subject"] for finding in found.report["findings"]]
    assert subjects[:6] == ["kernel", "memory", "memlock", "io_uring", "huge pages", "ibverbs"]
    assert found.of("store")["state"] == "ok"
    told = found.of("socket")["message"]
    assert str(folder / "tensorlease" / "host.sock") in told
    assert "none ran: it was started for this check" in told


def test_a_daemon_that_does_not_run_at_a_path_is_the_first_line_and_the_fix_serves_there() -> None:
    with place() as folder:
        socket = folder / "job.sock"
        url = f"host://{socket}"
        done = subprocess.run(
            [sys.executable, "-m", "tensorlease.cli", "doctor", url],
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
        )
        assert done.returncode == 1
        problem, fix = done.stdout.splitlines()[1:3]
        assert problem.split()[:2] == ["PROBLEM", "socket"]
        assert str(socket) in problem
        command = fix.strip().removeprefix("fix: tensorlease ").split("#")[0].split()
        assert command == ["serve", "--socket", str(socket)]
        assert done.stdout.count("PROBLEM") == 1
        with served(socket):
            with tl.open(url, max_bytes="8MiB") as store:
                store.put(["a"], [1])
            found = doctor(url)
    healthy(found)
    assert found.of("socket")["state"] == "ok"
    assert "ran already, with 1 object." in found.of("socket")["message"]


def test_low_locked_memory_is_found_and_raising_it_helps() -> None:
    require_io_uring()
    found = doctor(PINNED, "--max-bytes", "6MiB", fault=low_memlock)
    assert found.returncode == 1, found.text
    # The trial of io_uring fails for the same reason, which is one problem.
    assert (found.problems, found.report["problems"]) == (["memlock"], 1), found.text
    assert found.of("io_uring")["fix"] is None
    finding = found.of("memlock")
    assert "Only 64 KiB may be pinned" in finding["message"]
    if finding["fix"].startswith("sudo"):
        pytest.skip("only an administrator may raise the limit here")
    assert finding["fix"] == f"ulimit -l {7 << 10}"
    healthy(doctor(PINNED, "--max-bytes", "6MiB", fault=low_memlock, first=finding["fix"]))


def test_low_locked_memory_is_only_a_note_where_nothing_is_locked() -> None:
    found = doctor("embedded://", fault=low_memlock)
    healthy(found)
    assert found.of("memlock")["state"] == "note"


def test_refused_io_uring_is_found_and_why() -> None:
    require_io_uring()
    fix = said_what_is_wrong(doctor(PINNED, fault=refused_io_uring), "io_uring", "EPERM", "seccomp filter")
    assert "seccomp=unconfined" in fix
    # Without the filter, and without the pins that need it.
    healthy(doctor(PINNED))
    plain = doctor("embedded://", fault=refused_io_uring)
    healthy(plain)
    assert plain.of("io_uring")["state"] == "note"


def test_a_budget_that_memory_does_not_hold_is_found_and_a_smaller_one_that_fits_is_named() -> None:
    fix = said_what_is_wrong(doctor("embedded://", "--max-bytes", "100TiB"), "memory", "max_bytes 102400 GiB")
    (fitting,) = re.findall(r'max_bytes="(\w+)"', fix)
    healthy(doctor("embedded://", "--max-bytes", fitting))


def test_an_absent_master_is_found_and_the_advised_one_helps() -> None:
    require_mooncake()
    port = free_port()
    url = f"mooncake://127.0.0.1:{port}?segment=64MiB"
    fix = said_what_is_wrong(doctor(url), "master", "Connection refused")
    assert fix == f"mooncake_master -rpc_port={port} -metrics_port=0"
    command = [*shlex.split(fix), "-rpc_address=127.0.0.1"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            wait_until(lambda: listens((HOST, port)), "the master listens")
            found = doctor(url)
        finally:
            started.terminate()
            started.wait()
    healthy(found)
    # Nobody else contributes memory; this store will.
    assert found.of("segments")["state"] == "note"
    assert "full, or nobody else contributes" in found.of("segments")["message"]


def shows_who_holds(fix: str, port: int) -> None:
    """A master can't be started on a port that something holds; the fix finds what does."""
    assert "mooncake_master" not in fix
    assert fix.startswith(f"ss -ltnp 'sport = :{port}'  # ")
    assert "mend the port in the URL" in fix
    assert "by its pid" in fix


def test_something_that_listens_and_is_silent_is_no_master_and_does_not_hold_up_the_doctor() -> None:
    require_mooncake()
    with silent_listener() as port:
        fix = said_what_is_wrong(doctor(f"mooncake://127.0.0.1:{port}"), "master", "no answer within 5 s")
        shows_who_holds(fix, port)


@pytest.mark.freezes
def test_a_master_that_hangs_is_told_from_one_that_is_not_there() -> None:
    require_mooncake()
    with Master() as own:
        stop_process(own.process)
        try:
            fix = said_what_is_wrong(doctor(own.url()), "master", "Something listens", "no answer within 5 s")
        finally:
            own.process.send_signal(signal.SIGCONT)
        shows_who_holds(fix, own.port)


def test_something_that_answers_as_no_master_is_told() -> None:
    require_mooncake()
    with answering_listener(b"HTTP/1.1 400\r\n\r\n") as port:
        fix = said_what_is_wrong(doctor(f"mooncake://127.0.0.1:{port}"), "master", "is no Mooncake master")
        shows_who_holds(fix, port)


def test_what_a_trial_wrote_to_stderr_is_told_with_its_error(master: Master) -> None:
    found = doctor(master.url(metadata="http://127.0.0.1:1/metadata"))
    assert said_what_is_wrong(found, "store", "see what it wrote to stderr", "(stderr ended with: ")
    (wrote,) = re.findall(r"\(stderr ended with: (.*)\)", found.of("store")["message"])
    assert 0 < len(wrote) <= 800


def test_a_missing_package_is_found_and_installing_it_helps(cluster: Master, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mooncake'] = None\n")
    without = {"PYTHONPATH": str(tmp_path)}
    fix = said_what_is_wrong(doctor(cluster.url(), changes=without), "mooncake", "not installed")
    assert fix.startswith("pip install mooncake-transfer-engine-non-cuda ")
    healthy(doctor(cluster.url()))
    embedded = doctor("embedded://", changes=without)
    healthy(embedded)
    assert embedded.of("mooncake")["state"] == "note"


def test_a_damaged_native_library_is_named_with_its_package(cluster: Master, tmp_path: Path) -> None:
    (tmp_path / "libnuma.so.1").write_bytes(b"damaged")
    found = doctor(cluster.url(), changes={"LD_LIBRARY_PATH": str(tmp_path)})
    assert said_what_is_wrong(found, "libraries", "libnuma.so.1") == "sudo apt install --reinstall libnuma1"
    (tmp_path / "libnuma.so.1").unlink()
    healthy(doctor(cluster.url(), changes={"LD_LIBRARY_PATH": str(tmp_path)}))


def test_a_full_cluster_is_found_and_the_advised_process_makes_room(cluster: Master) -> None:
    with tl.open(cluster.url(), max_bytes="32MiB", readers=1) as writer:
        keys = fill(writer)
        more = ("--metrics-port", str(cluster.metrics_port))
        found = doctor(cluster.url(), *more)
        fix = said_what_is_wrong(found, "segments", "The cluster is full", f"of {SEGMENT_MIB} MiB are free")
        with subprocess.Popen(
            ["bash", "-c", fix],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as contributing:
            wait_until(lambda: metric(cluster, "master_total_capacity_bytes") > 1 << 30, "the segment is there")
            healthy(doctor(cluster.url()))
            contributing.communicate(b"\n", timeout=20)
        writer.remove(keys)
    wait_until(lambda: metric(cluster, "master_allocated_bytes") == 0, "the cluster is empty")


def fill(writer: tl.Store) -> list[str]:
    """Objects of 1 MiB that are never evicted, until no more fit."""
    keys: list[str] = []
    for index in range(2 * SEGMENT_MIB):
        try:
            writer.put([f"filling/{index}"], ["x" * (1 << 20)])
        except tl.StoreFull:
            return keys
        keys.append(f"filling/{index}")
    pytest.fail("the segment never was full")


def test_the_doctor_leaves_nothing_in_the_cluster(cluster: Master) -> None:
    found = doctor(cluster.url())
    healthy(found)
    assert "gave it back and removed it" in found.of("segments")["message"]
    assert metric(cluster, "master_key_count") == 0
    assert metric(cluster, "master_allocated_bytes") == 0


@pytest.mark.freezes
def test_an_owner_that_hangs_is_told_from_a_full_cluster() -> None:
    require_mooncake()
    with Master() as own, owning(own) as owner:
        owner.pause()
        try:
            said_what_is_wrong(doctor(own.url()), "segments", "did not end", "hangs")
        finally:
            owner.resume()


def test_a_short_tcp_queue_in_the_environment_is_found(cluster: Master) -> None:
    name = "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"
    fix = said_what_is_wrong(doctor(cluster.url(), changes={name: "1024"}), "TCP queue", f"{name}=1024")
    healthy(doctor(cluster.url(), first=fix, changes={name: "1024"}))


def test_known_defects_of_the_installed_package_are_told(master: Master) -> None:
    messages = [
        finding["message"]
        for finding in doctor(master.url()).report["findings"]
        if finding["subject"] == "known defect"
    ]
    assert [re.findall(r"#(\d+)", message) for message in messages] == [["3710"], ["3876"], ["4247"]]


def test_rdma_without_a_device_is_a_problem_only_for_a_url_that_needs_it(master: Master) -> None:
    if any(Path("/sys/class/infiniband").glob("*")):
        pytest.skip("this machine has one")
    assert "ibverbs" in doctor(master.url(protocol="rdma")).problems


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "embedded://?colour=red",
        "embedded://?faults=late",
        "embedded://?faults=",
        "host://?faults=late",
        "mooncake://127.0.0.1",
        "mooncake://127.0.0.1:1?segment=much",
        "mooncake://127.0.0.1:1?faults=fail:transient:2",
    ],
)
def test_a_wrong_url_is_wrong_usage(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tensorlease.cli", "doctor", url],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tensorlease: ")
    assert done.stdout == ""


def test_people_read_one_line_per_finding_and_one_per_fix() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tensorlease.cli", "doctor", "embedded://", "--max-bytes", "100TiB"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    lines = done.stdout.splitlines()
    assert lines[0] == f"tensorlease {tl.__version__}, embedded://"
    assert lines[-1] == "1 problem for embedded://"
    at = next(index for index, line in enumerate(lines) if line.startswith("PROBLEM"))
    assert lines[at].split()[1] == "memory"
    assert lines[at + 1].strip().startswith("fix: tl.open(")


def test_a_trial_that_hangs_is_ended_and_told() -> None:
    with (
        silent_listener() as port,
        Trial("master", {"host": "127.0.0.1", "port": port, "seconds": 100}, limit_seconds=1.5) as trial,
    ):
        outcome = trial.outcome()
        assert outcome.end == "hung"
        assert outcome.message == "it had not ended after 1.5 s"
    assert trial._process.poll() in (-signal.SIGKILL, -signal.SIGALRM)


def test_a_trial_that_dies_takes_nobody_along_and_is_told() -> None:
    with Trial("no such look", {}) as trial:
        outcome = trial.outcome()
    assert outcome.end == "died"
    assert outcome.message == "exit status 1"
    assert "no such look" in outcome.stderr
    assert outcome.stderr in outcome.why


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, f"not within a minute: {what}"
        time.sleep(0.1)


def test_a_url_that_fails_on_purpose_is_no_problem_and_said() -> None:
    found = doctor("embedded://?faults=fail:transient:1+slow:1ms")
    healthy(found)
    finding = found.of("faults")
    assert finding["state"] == "note"
    assert "faults=fail:transient:1+slow:1ms" in finding["message"]


@pytest.mark.parametrize(
    ("url", "max_bytes", "named"),
    [
        ("mooncake://127.0.0.1:1?segment=15MiB", 1 << 30, "segment"),
        ("embedded://", 1, "one page"),
        ("", 1 << 30, "no URL"),
    ],
)
def test_what_the_trial_would_not_see_is_checked_first(url: str, max_bytes: int, named: str) -> None:
    with pytest.raises(tl.ConfigError, match=named):
        examine(url, max_bytes=max_bytes)


def test_a_local_hostname_without_an_address_is_a_problem() -> None:
    asked = target("mooncake://127.0.0.1:1?local_hostname=no-such-host.invalid:5000", 1 << 30)
    (finding,) = mooncake.hostname(asked)
    assert finding.state == "PROBLEM"
    assert "no-such-host.invalid" in finding.message
    assert mooncake.hostname(target("mooncake://127.0.0.1:1?local_hostname=127.0.0.1:5000", 1 << 30)) == []
