"""What the doctor reads off a machine, on machines made of files: control groups, capabilities, io_uring, RDMA."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest
from doctor_faults import silent_listener

from tensorlease.doctor import looks, mooncake, rdma, system
from tensorlease.doctor.finding import Finding, problem
from tensorlease.doctor.machine import Machine
from tensorlease.doctor.target import Target, target
from tensorlease.doctor.trials import Outcome
from tensorlease.mooncake_master import free_port

GIB = 1 << 30
MEMINFO = "MemTotal: 16000000 kB\nMemAvailable: 8388608 kB\nHugePages_Free: 3\nHugepagesize: 2048 kB\n"
EMBEDDED = target("embedded://", GIB)
PINNED = target("embedded://?registration=pinned", GIB)
RDMA = target("mooncake://10.0.0.1:50051?protocol=rdma", GIB)


class Files:
    """A root folder whose files a test writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = Machine(root)
        self.write("proc/meminfo", MEMINFO)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def port(self, device: str, state: str, layer: str = "Ethernet") -> None:
        folder = f"sys/class/infiniband/{device}/ports/1"
        self.write(f"{folder}/state", state)
        self.write(f"{folder}/rate", "100 Gb/sec (4X EDR)\n")
        self.write(f"{folder}/link_layer", f"{layer}\n")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_problem_without_a_fix_can_not_be_said() -> None:
    with pytest.raises(ValueError, match="nothing about how to mend"):
        Finding("memlock", "PROBLEM", "Too low.")
    assert "fix: ulimit" in problem("memlock", "Too low.", "ulimit -l 1").lines()


# ---- memory -----------------------------------------------------------------------------------------------------------------


def test_the_tightest_control_group_above_the_process_counts(files: Files) -> None:
    files.write("proc/self/cgroup", "0::/job/worker\n")
    files.write("sys/fs/cgroup/job/memory.max", f"{2 * GIB}\n")
    files.write("sys/fs/cgroup/job/memory.current", f"{GIB + GIB // 2}\n")
    files.write("sys/fs/cgroup/job/memory.stat", f"anon 5\ninactive_file {GIB // 4}\n")
    files.write("sys/fs/cgroup/job/worker/memory.max", "max\n")
    assert files.machine.cgroup_limit_bytes() == 2 * GIB
    assert files.machine.available_bytes() == 3 * GIB // 4
    found = system.memory(EMBEDDED, files.machine)
    assert (found.state, found.fix) == ("PROBLEM", 'tl.open("embedded://", max_bytes="384MiB")')


def test_control_groups_of_version_1_count_too(files: Files) -> None:
    files.write("proc/self/cgroup", "5:cpu:/\n4:memory:/job\n")
    files.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{4 * GIB}\n")
    files.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", f"{GIB}\n")
    files.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert files.machine.available_bytes() == 3 * GIB
    assert system.memory(EMBEDDED, files.machine).state == "ok"


def test_segment_and_local_buffer_need_memory_too(files: Files) -> None:
    asked = target("mooncake://10.0.0.1:50051?segment=8GiB", GIB)
    found = system.memory(asked, files.machine)
    assert found.state == "PROBLEM"
    assert "segment 8 GiB" in found.message
    assert "local_buffer 256 MiB" in found.message
    assert "lower segment" in str(found.fix)


# ---- what the process may do --------------------------------------------------------------------------------------------------


def test_a_capability_of_a_user_namespace_does_not_count(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    files.write("proc/self/status", "CapEff:\t000001ffffffffff\nSeccomp:\t0\n")
    files.write("proc/self/uid_map", "         0          0 4294967295\n")
    assert files.machine.memlock_bytes() is None
    files.write("proc/self/uid_map", "         0       1000          1\n")
    assert files.machine.memlock_bytes() == 65536
    found = system.memlock(PINNED, files.machine)
    assert found.state == "PROBLEM"
    assert str(found.fix).startswith("sudo prlimit --memlock=unlimited:unlimited --pid $$")


def test_locked_memory_of_rdma_counts_what_mooncake_registers(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (GIB, resource.RLIM_INFINITY))
    found = system.memlock(RDMA, files.machine)
    assert (found.state, found.fix) == ("PROBLEM", f"ulimit -l {(GIB + (257 << 20)) // 1024}")


@pytest.mark.parametrize(
    ("setting", "seccomp", "errno", "why", "fix"),
    [
        ("2", "0", "EPERM", "kernel.io_uring_disabled=2", "sudo sysctl -w kernel.io_uring_disabled=0"),
        ("0", "2", "EPERM", "seccomp filter", "docker run --security-opt seccomp=unconfined"),
        ("0", "0", "EPERM", "a security module may", "leave out registration=pinned"),
        ("0", "0", "ENOSYS", "built without it", "leave out registration=pinned"),
    ],
)
def test_why_io_uring_is_refused(files: Files, setting: str, seccomp: str, errno: str, why: str, fix: str) -> None:
    files.write("proc/sys/kernel/io_uring_disabled", f"{setting}\n")
    files.write("proc/self/status", f"Seccomp:\t{seccomp}\n")
    trial = Outcome("done", {"refused": errno, "error": None})
    found = system.io_uring(PINNED, files.machine, trial)
    assert found.state == "PROBLEM"
    assert why in found.message
    assert str(found.fix).startswith(fix)
    assert system.io_uring(EMBEDDED, files.machine, trial).state == "note"


def test_locked_memory_that_is_too_low_is_one_problem(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    for values in [{"refused": None, "error": "out of memory"}, {"refused": "ENOMEM", "error": None}]:
        found = system.io_uring(PINNED, files.machine, Outcome("done", values))
        assert (found.state, found.fix) == ("note", None)
        assert "memlock" in found.message
    # Another cause stays a problem of its own, and so does one that the limit does not explain.
    other = Outcome("done", {"refused": "ENOSYS", "error": None})
    assert system.io_uring(PINNED, files.machine, other).state == "PROBLEM"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (GIB // 2, GIB // 2))
    assert system.memlock(PINNED, files.machine).state == "PROBLEM"
    unexplained = Outcome("done", {"refused": None, "error": "no slot"})
    assert system.io_uring(PINNED, files.machine, unexplained).state == "PROBLEM"


def test_a_filter_that_kills_is_a_refusal_too(files: Files) -> None:
    files.write("proc/self/status", "Seccomp:\t2\n")
    found = system.io_uring(PINNED, files.machine, Outcome("died", message="signal SIGSYS"))
    assert found.state == "PROBLEM"
    assert "SIGSYS" in found.message


def test_a_ring_without_a_store_on_it_is_told_with_what_the_store_said(files: Files) -> None:
    trial = Outcome("done", {"refused": None, "error": "no slot"})
    files.write("proc/self/status", f"CapEff:\t{1 << 14:x}\n")
    found = system.io_uring(PINNED, files.machine, trial)
    assert found.state == "PROBLEM"
    assert "does not open: no slot" in found.message


def test_what_a_trial_that_hung_was_about_is_unknown_and_only_a_problem_where_it_is_needed(files: Files) -> None:
    files.port("mlx5_0", "4: ACTIVE\n")
    hung = Outcome("hung", message="it had not ended after 30 s")

    def of(asked: Target) -> list[Finding]:
        return [
            system.io_uring(asked, files.machine, hung),
            *rdma.ibverbs(asked, files.machine, hung),
            *mooncake.package(asked, hung, {}),
        ]

    assert [found.state for found in of(EMBEDDED)] == ["note", "note", "note"]
    assert [found.state for found in of(PINNED)] == ["PROBLEM", "note", "note"]
    assert [found.state for found in of(RDMA)] == ["note", "PROBLEM", "PROBLEM"]
    assert all("told nothing: it had not ended" in found.message for found in of(RDMA))


def test_huge_pages_matter_only_where_mooncake_is_told_to_take_them(files: Files) -> None:
    told = {"MC_STORE_USE_HUGEPAGE": "1"}
    assert system.huge_pages(RDMA, files.machine, {}).state == "ok"
    assert system.huge_pages(EMBEDDED, files.machine, told).state == "ok"
    found = system.huge_pages(RDMA, files.machine, told)
    assert (found.state, found.fix) == ("PROBLEM", "sudo sysctl -w vm.nr_hugepages=128")


def test_forks_are_spoken_of_only_where_memory_is_pinned() -> None:
    assert system.fork(EMBEDDED) == []
    (found,) = system.fork(PINNED)
    assert found.state == "note"


# ---- RDMA -----------------------------------------------------------------------------------------------------------------------


def limits(*devices: str) -> Outcome:
    numbers = {"max_mr_bytes": 1 << 40, "max_mr": 4096}
    return Outcome("done", {"error": None, "devices": dict.fromkeys(devices, numbers)})


def test_an_active_device_is_told_with_its_limits(files: Files) -> None:
    files.port("mlx5_0", "4: ACTIVE\n")
    (found,) = rdma.ibverbs(RDMA, files.machine, limits("mlx5_0"))
    assert found.state == "ok"
    assert (
        "mlx5_0 port 1 is ACTIVE (Ethernet, 100 Gb/sec (4X EDR)): 4096 registrations of up to 1024 GiB" in found.message
    )


def test_a_port_that_is_down_is_a_problem_where_no_other_is_up(files: Files) -> None:
    files.port("mlx5_0", "1: DOWN\n")
    (found,) = rdma.ibverbs(RDMA, files.machine, limits("mlx5_0"))
    assert (found.state, found.fix) == ("PROBLEM", "sudo ip link set eth0 up")
    assert rdma.ibverbs(EMBEDDED, files.machine, limits("mlx5_0"))[0].state == "note"
    files.port("mlx5_1", "4: ACTIVE\n", "InfiniBand")
    states = [found.state for found in rdma.ibverbs(RDMA, files.machine, limits("mlx5_0", "mlx5_1"))]
    assert states == ["note", "ok"]
    asked = target("mooncake://10.0.0.1:50051?protocol=rdma&device=mlx5_0", GIB)
    assert rdma.ibverbs(asked, files.machine, limits("mlx5_0", "mlx5_1"))[0].state == "PROBLEM"


def test_a_device_that_is_not_there_is_named(files: Files) -> None:
    files.port("mlx5_0", "4: ACTIVE\n")
    asked = target("mooncake://10.0.0.1:50051?protocol=rdma&device=mlx5_7", GIB)
    (found,) = rdma.ibverbs(asked, files.machine, limits("mlx5_0"))
    assert (found.state, found.fix) == ("PROBLEM", "write device=mlx5_0 in the URL")
    assert "mlx5_7" in found.message


def test_a_missing_library_or_driver_for_user_space_is_found(files: Files) -> None:
    files.port("mlx5_0", "4: ACTIVE\n")
    absent = Outcome("done", {"error": "libibverbs.so.1: cannot open", "devices": {}})
    for verbs in [absent, limits()]:
        (found,) = rdma.ibverbs(RDMA, files.machine, verbs)
        assert (found.state, found.fix) == ("PROBLEM", "sudo apt install libibverbs1 ibverbs-providers")


# ---- Mooncake -------------------------------------------------------------------------------------------------------------------


def test_versions_compare_by_their_numbers() -> None:
    newest_first = ["0.4.0", "0.3.14", "0.3.13.post1", "0.3.13", "0.3.12.post1", "0.3.12", "0.3.9"]
    assert sorted(newest_first, key=mooncake.release, reverse=True) == newest_first
    assert mooncake.release("0.3.9") < mooncake.release("0.3.13")


def test_a_defect_is_told_of_the_versions_that_have_it() -> None:
    def issues(version: str) -> list[int]:
        return [defect.issue for defect in mooncake.DEFECTS if defect.is_in(mooncake.release(version))]

    assert issues("0.3.13.post1") == [3710, 3876, 4247]
    assert issues("0.3.14") == [4247]


def test_two_packages_in_one_place_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"mooncake-transfer-engine": "0.3.13", "mooncake-transfer-engine-non-cuda": "0.3.13.post1"}
    monkeypatch.setattr(mooncake, "_installed", lambda: both)
    loads = Outcome("done", {"absent": False, "error": None, "missing": []})
    (found,) = mooncake.package(RDMA, loads, {})
    assert found.state == "PROBLEM"
    assert str(found.fix).startswith(
        "pip uninstall -y mooncake-transfer-engine mooncake-transfer-engine-non-cuda && pip"
    )


def test_a_package_without_the_pool_that_the_url_asks_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake, "_installed", lambda: {"mooncake-transfer-engine": "0.3.11"})
    loads = Outcome("done", {"absent": False, "error": None, "missing": []})
    asked = target("mooncake://10.0.0.1:50051?pool=store", GIB)
    assert mooncake.package(asked, loads, {})[0].state == "PROBLEM"
    assert mooncake.package(RDMA, loads, {})[0].state == "note"


@pytest.mark.parametrize(
    ("listens", "host", "fix"),
    [
        (False, "127.0.0.1", "mooncake_master -rpc_port=50051 -metrics_port=0"),
        (None, "127.0.0.1", "mooncake_master -rpc_port=50051 -metrics_port=0"),
        (False, "10.0.0.1", "mend the address, or on its machine: mooncake_master -rpc_port=50051 -metrics_port=0"),
        (True, "127.0.0.1", "ss -ltnp 'sport = :50051'  # "),
        (True, "10.0.0.1", "on its machine: ss -ltnp 'sport = :50051'  # "),
    ],
)
def test_a_master_is_started_only_where_nothing_listens(listens: bool | None, host: str, fix: str) -> None:
    asked = target(f"mooncake://{host}:50051", GIB)
    found = mooncake.master(asked, Outcome("done", {"error": "why", "listens": listens}))
    assert found.state == "PROBLEM"
    assert str(found.fix).startswith(fix)


def test_of_two_addresses_the_one_where_something_listens_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_listener() as port:
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", at)) for at in (free_port(), port, free_port())
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        answer = looks.master("a.name", port, 0.3)
    assert answer == {"error": "no answer within 0.3 s", "listens": True}
    assert looks.master("a.name", 1, 0.3)["listens"] is False


def test_a_cluster_without_any_segment_is_not_called_full() -> None:
    asked = target("mooncake://10.0.0.1:50051?segment=64MiB", GIB)
    text = "master_total_capacity_bytes 0\nmaster_allocated_bytes 0"
    space = mooncake.space(Outcome("done", {"text": text}))
    found = mooncake.segments(asked, Outcome("done", {"failed": "put", "error": "StoreFull"}), space)
    assert found.state == "note"
    assert "or nobody else contributes a segment (there is no segment)" in found.message


def test_what_a_failed_step_wrote_is_told() -> None:
    failed = {"failed": "get", "error": "TransferError", "message": "code -800"}
    found = mooncake.segments(RDMA, Outcome("done", failed, stderr="no route"), "")
    assert "code -800 (stderr ended with: no route)" in found.message


def test_the_trial_contributes_nothing_and_can_not_be_mistaken_for_a_running_store() -> None:
    url = "mooncake://10.0.0.1:50051?segment=8GiB&pin=hard&local_hostname=10.0.0.2:7000&faults=slow:5ms&protocol=rdma"
    options = target(target(url, GIB).trial_url(), GIB).options
    assert options == {
        "pin": "none",
        "local_hostname": "10.0.0.2",
        "protocol": "rdma",
        "local_buffer": str(16 << 20),
    }
