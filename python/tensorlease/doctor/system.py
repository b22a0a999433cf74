"""Kernel, memory, locked memory, io_uring: what every store stands on."""

import platform
import shlex
from collections.abc import Mapping

from tensorlease import host
from tensorlease._core import host_listens, host_socket
from tensorlease.doctor.finding import Finding, fine, needed_or_not, not_seen, note, problem
from tensorlease.doctor.machine import Machine
from tensorlease.doctor.target import MIB, Target
from tensorlease.doctor.trials import Outcome
from tensorlease.errors import EngineUnavailable
from tensorlease.sizes import format_bytes

#: The first with sparse tables of registered buffers, which pinning uses.
_KERNEL_OF_PINNING = (5, 19)
#: What the trial of a pinned store locks at most.
_TRIAL_BYTES = 8 * MIB
#: What kernels that count rings as locked memory refuse one with.
_NO_LOCKED_MEMORY = "ENOMEM"
_HUGE_PAGE_VARIABLE = "MC_STORE_USE_HUGEPAGE"
_UNLOCK = "sudo prlimit --memlock=unlimited:unlimited --pid $$  # a container: --ulimit memlock=-1, a unit: LimitMEMLOCK=infinity"
_UNFILTER = (
    "docker run --security-opt seccomp=unconfined ...  # or allow io_uring_setup and io_uring_register in a profile"
)
_WITHOUT_PINS = "leave out registration=pinned: embedded:// needs no io_uring"


def kernel(target: Target, machine: Machine) -> Finding:
    """Old kernels can't pin through io_uring."""
    release = platform.release()
    if machine.kernel >= _KERNEL_OF_PINNING:
        return fine("kernel", f"Linux {release} has what pinned memory needs.")
    least = ".".join(map(str, _KERNEL_OF_PINNING))
    message = f"Linux {release} can't pin memory for registration=pinned, which needs {least}."
    return needed_or_not(target.is_pinned, "kernel", message, _WITHOUT_PINS)


def memory(target: Target, machine: Machine) -> Finding:
    """A budget that does not fit is refused at open, or ends in the OOM killer later."""
    available, limit = machine.available_bytes(), machine.cgroup_limit_bytes()
    if available is None:
        return note("memory", "/proc/meminfo can't be read, so nothing is known about memory.")
    bound = "no limit of a control group" if limit is None else f"control group's limit {format_bytes(limit)}"
    parts = {"max_bytes": target.max_bytes, "local_buffer": target.local_buffer_bytes, "segment": target.segment_bytes}
    asked = " + ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    if target.memory_bytes <= available:
        return fine("memory", f"{format_bytes(available)} left ({bound}) hold {asked}.")
    message = f"{format_bytes(available)} left ({bound}) do not hold {asked}."
    fitting = (available - (target.memory_bytes - target.max_bytes)) // 2 // MIB
    if fitting < 1:
        return problem("memory", message, "give the process more memory, or lower segment and local_buffer in the URL")
    return problem("memory", message, f'tl.open("{target.url}", max_bytes="{fitting}MiB")')


def memlock(target: Target, machine: Machine) -> Finding:
    """Memory that a transport uses directly is pinned, and counts against a limit."""
    limit = machine.memlock_bytes()
    if limit is None:
        why = "CAP_IPC_LOCK is held" if machine.has_ipc_lock() else "ulimit -l is unlimited"
        return fine("memlock", f"Any amount of memory may be pinned: {why}.")
    needed = target.lockable_bytes
    if needed <= limit:
        return fine("memlock", f"{format_bytes(limit)} may be pinned, {format_bytes(needed)} are asked for.")
    allowed = f"Only {format_bytes(limit)} may be pinned (ulimit -l, no CAP_IPC_LOCK that counts)"
    message = f"{allowed}; registration=pinned and RDMA would pin {format_bytes(needed)}."
    return needed_or_not(target.locked_bytes > 0, "memlock", message, _unlock(machine, needed))


def _unlock(machine: Machine, needed_bytes: int) -> str:
    return f"ulimit -l {-(-needed_bytes // 1024)}" if machine.may_raise_memlock_to(needed_bytes) else _UNLOCK


def io_uring(target: Target, machine: Machine, trial: Outcome) -> Finding:
    """Whether the kernel gives a ring, and whether a store really opens on one, by the look ``pinned``."""
    if trial.end == "hung":
        return not_seen("io_uring", target.is_pinned, target.url, trial)
    refused = trial.values["refused"] if trial.end == "done" else trial.why
    if refused is None and trial.values["error"] is None:
        return fine("io_uring", "A store with registration=pinned opens.")
    limit = machine.memlock_bytes()
    # One cause is one problem, and `memlock` has the line that mends it.
    lacks_memory = limit < _TRIAL_BYTES if limit is not None and refused is None else refused == _NO_LOCKED_MEMORY
    if limit is not None and limit < target.lockable_bytes and lacks_memory:
        told = trial.values["error"] if refused is None else f"the kernel gives no ring, {refused}"
        return note("io_uring", f"What memlock says keeps a store with registration=pinned from opening: {told}.")
    if refused is not None:
        return _refused_ring(target, machine, refused)
    fix = _WITHOUT_PINS if limit is None else _unlock(machine, max(target.max_bytes, _TRIAL_BYTES))
    why = trial.values["error"]
    message = f"The kernel gives a ring, but a small store with registration=pinned does not open: {why}."
    return needed_or_not(target.is_pinned, "io_uring", message, fix)


def _refused_ring(target: Target, machine: Machine, refusal: str) -> Finding:
    setting = machine.io_uring_disabled()
    if setting:
        why, fix = f"kernel.io_uring_disabled={setting}", "sudo sysctl -w kernel.io_uring_disabled=0"
    elif machine.is_filtered():
        why, fix = "a seccomp filter refuses it", _UNFILTER
    elif refusal == _NO_LOCKED_MEMORY:
        why, fix = "this kernel counts rings as locked memory, and ulimit -l is used up", _UNLOCK
    elif refusal == "ENOSYS":
        why, fix = "this kernel is built without it", _WITHOUT_PINS
    else:
        why, fix = "neither kernel.io_uring_disabled nor seccomp says why; a security module may", _WITHOUT_PINS
    message = f"io_uring is refused ({refusal}): {why}; only registration=pinned needs it."
    return needed_or_not(target.is_pinned, "io_uring", message, fix)


def huge_pages(target: Target, machine: Machine, environment: Mapping[str, str]) -> Finding:
    """Only Mooncake takes some, and only when told to."""
    free, page_bytes = machine.huge_pages()
    wanted = target.local_buffer_bytes + target.segment_bytes
    if not target.is_mooncake or not environment.get(_HUGE_PAGE_VARIABLE) or page_bytes == 0:
        return fine("huge pages", f"{free} are free, and none are needed.")
    needed = -(-wanted // page_bytes)
    asked = f"{needed} huge pages of {format_bytes(page_bytes)} are needed, {free} are free"
    message = f"{_HUGE_PAGE_VARIABLE} is set, {asked}."
    if needed <= free:
        return fine("huge pages", message)
    return problem("huge pages", message, f"sudo sysctl -w vm.nr_hugepages={needed}")


def fork(target: Target) -> list[Finding]:
    """Only pinned memory makes forks expensive."""
    if target.locked_bytes == 0:
        return []
    copied = f"A process that forks copies its pinned memory, up to {format_bytes(target.locked_bytes)}"
    message = f"{copied}: open the store after the fork, or leave the arena out of children."
    return [note("fork", message, f'tl.open("{target.url}", fork="exclude")')]


def faults(target: Target) -> list[Finding]:
    """Calls that fail on purpose look like a machine that is ill. That the option can be read is checked elsewhere."""
    spec = target.options.get("faults")
    if spec is None:
        return []
    message = f"This URL fails on purpose: faults={spec} spoils calls of the store. What is tried here goes without it."
    return [note("faults", message, "leave faults out where nothing is to be tested")]


def daemon_before(target: Target) -> str:
    """What a URL's daemon holds before the trials, which start that of `host://`, in words. Nothing where none listens."""
    path = target.host or host_socket(None)
    if not host_listens(path):
        return ""
    try:
        told = host.report(path)
    # The trial meets the same, and says it.
    except EngineUnavailable:
        return "which ran already"
    if host.is_own_store(told):
        return f"which ran already, with {host.counted(told['objects'], 'object')}"
    return f"which ran already, before {told['engine']}"


def socket(target: Target, before: str) -> Finding:
    """Which socket the URL means, and whether a daemon listens there. `before` is of `daemon_before`."""
    path = target.host or host_socket(None)
    where = f"{target.url} is the daemon at {path}"
    if host_listens(path):
        if before or target.host:
            return fine("socket", f"{where}, {before or 'which runs'}.")
        return fine("socket", f"{where}; none ran: it was started for this check.")
    if not target.host:
        return note("socket", f"{where}, which does not run; the first open starts it.")
    fix = f"tensorlease serve --socket {shlex.quote(path)}  # in a terminal of its own; --keep: also without clients"
    return problem("socket", f"{where}, which does not run; one at a path is never started.", fix)


def opens(target: Target, trial: Outcome) -> Finding:
    if trial.end == "done":
        return fine("store", "A store with this URL opens.")
    if trial.end == "hung":
        return not_seen("store", True, target.url, trial)
    again = f"tensorlease doctor {shlex.quote(target.url)}  # again, once what the message names is mended"
    return problem("store", f"A store with this URL does not open: {trial.why}.", again)
