"""Mooncake's package, its known defects, and the cluster that a URL names."""

import importlib.metadata
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from tensorlease.doctor.finding import Finding, fine, needed_or_not, not_seen, note, problem
from tensorlease.doctor.looks import LIBRARIES, TRIAL_OBJECT_BYTES
from tensorlease.doctor.target import Target
from tensorlease.doctor.trials import Outcome
from tensorlease.sizes import format_bytes

#: Of every package that brings the module `mooncake`: one per kind of accelerator.
_PACKAGE = "mooncake-transfer-engine"
_INSTALL = "pip install mooncake-transfer-engine-non-cuda  # or mooncake-transfer-engine, with CUDA"
_TESTED = "0.3.13.post1"
_FIRST_WITH_POOL = (0, 3, 12)
_QUEUE_VARIABLE = "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"
#: Four readers with calls of 1,024 keys.
_QUEUE_LEAST = 4096


@dataclass(frozen=True)
class Defect:
    """A known defect of the package, and what tensorlease does about it."""

    issue: int
    #: The first version without it; None: none is known.
    fixed: tuple[int, ...] | None
    text: str

    def is_in(self, version: tuple[int, ...]) -> bool:
        return self.fixed is None or version < self.fixed


_TCP_QUEUE = Defect(
    3710,
    (0, 3, 14),
    "Some 2,052 keys that wait for one peer over TCP wedge it for a minute at the default queue length; "
    f"tensorlease sets {_QUEUE_VARIABLE}=65535 unless it is set",
)
_TWICE = Defect(
    3876,
    (0, 3, 14),
    "A key that stands twice in a batch is reported as read and its first destination is not written; tensorlease asks for each key once",
)
_LATE = Defect(
    4247,
    None,
    "A transfer given up after 60 s may still write its destination (the issue tells of it on Ascend, TCP does it too); "
    "tensorlease quarantines that memory until the store is closed",
)
DEFECTS = (_TCP_QUEUE, _TWICE, _LATE)


def package(target: Target, wheel: Outcome, environment: Mapping[str, str]) -> list[Finding]:
    """Is the package there, does it load, and what is known about its version? `wheel` is of the look of that name."""
    if wheel.end == "hung":
        return [not_seen("mooncake", target.is_mooncake, target.url, wheel)]
    if wheel.end != "done":
        message = f"Mooncake's module can't be loaded: {wheel.why}."
        return [needed_or_not(target.is_mooncake, "mooncake", message, f"{_INSTALL}  # again")]
    if wheel.values["absent"]:
        message = f"Mooncake's package is not installed ({wheel.values['error']}); only mooncake:// needs it."
        return [needed_or_not(target.is_mooncake, "mooncake", message, _INSTALL)]
    if wheel.values["error"] is not None:
        return [_unloadable(target, wheel.values["error"], wheel.values["missing"])]
    versions = _installed()
    if not versions:
        message = "Mooncake's module loads and no package says its version, so its defects are unknown."
        return [note("mooncake", message)]
    if len(versions) > 1:
        message = f"{' and '.join(versions)} are installed in one place, and one overwrites files of the other."
        fix = f"pip uninstall -y {' '.join(versions)} && {_INSTALL}"
        return [needed_or_not(target.is_mooncake, "mooncake", message, fix)]
    ((name, version),) = versions.items()
    return [_version(target, name, version), *_defects(target, version, environment)]


def _installed() -> dict[str, str]:
    names = sorted(set(importlib.metadata.packages_distributions().get("mooncake", [])))
    return {name: importlib.metadata.version(name) for name in names if name.startswith(_PACKAGE)}


def _unloadable(target: Target, error: str, missing: list[str]) -> Finding:
    if not missing:
        message = f"Mooncake's package is installed and does not load: {error}."
        return needed_or_not(target.is_mooncake, "libraries", message, f"{_INSTALL}  # if it names a CUDA library")
    message = f"Mooncake's package needs native libraries that are missing or damaged: {', '.join(missing)}."
    packages = " ".join(LIBRARIES[name] for name in missing)
    return needed_or_not(target.is_mooncake, "libraries", message, f"sudo apt install --reinstall {packages}")


def _version(target: Target, name: str, version: str) -> Finding:
    upgrade = f"pip install --upgrade '{name}>={_TESTED}'"
    if target.options.get("pool") == "store" and release(version) < _FIRST_WITH_POOL:
        message = f"{name} {version} has no BufferPool, which pool=store leases from; it came with 0.3.12."
        return needed_or_not(target.is_mooncake, "mooncake", message, upgrade)
    if release(version) < release(_TESTED):
        return note("mooncake", f"{name} {version} loads; tensorlease is tested with {_TESTED} and newer.", upgrade)
    return fine("mooncake", f"{name} {version} loads.")


def _defects(target: Target, version: str, environment: Mapping[str, str]) -> list[Finding]:
    if not target.is_mooncake:
        return []
    asked = [defect for defect in DEFECTS if not (target.is_rdma and defect is _TCP_QUEUE)]
    present = [defect for defect in asked if defect.is_in(release(version))]
    found = [note("known defect", f"{defect.text} (Mooncake #{defect.issue}).") for defect in present]
    queue = environment.get(_QUEUE_VARIABLE, "")
    if _TCP_QUEUE in present and queue.isdigit() and int(queue) < _QUEUE_LEAST:
        told = f"{_QUEUE_VARIABLE}={queue} in the environment is less than {_QUEUE_LEAST}"
        found.append(problem("TCP queue", f"{told}: reads would wedge their peers.", f"unset {_QUEUE_VARIABLE}"))
    return found


def release(version: str) -> tuple[int, ...]:
    """``0.3.13.post1`` as ``(0, 3, 13, 1)``: newer ones compare greater."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def master(target: Target, answer: Outcome) -> Finding:
    """Does a master answer? `answer` is of the look ``master``."""
    if answer.end == "hung":
        return not_seen("master", True, target.url, answer)
    error = answer.values["error"] if answer.end == "done" else answer.why
    if error is None:
        return fine("master", f"A Mooncake master answers at {target.host}.")
    if answer.values.get("listens"):
        # A master can't be started on a port that something holds.
        shown = f"{'' if target.is_local else 'on its machine: '}ss -ltnp 'sport = :{target.master()[1]}'"
        fix = f"{shown}  # shows who listens there: mend the port in the URL, or end the master that hangs by its pid"
        message = f"Something listens at {target.host} and does not answer as a Mooncake master: {error}."
        return problem("master", message, fix)
    # Any port for its metrics: the default may be another master's, and this one would end.
    start = f"mooncake_master -rpc_port={target.master()[1]} -metrics_port=0"
    fix = start if target.is_local else f"mend the address, or on its machine: {start}"
    return problem("master", f"No Mooncake master answers at {target.host}: {error}.", fix)


def hostname(target: Target) -> list[Finding]:
    """Can the name by which others are to reach this process be resolved?"""
    name = target.local_hostname.strip("[]")
    try:
        if name:
            socket.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        message = f"local_hostname={name} has no address ({error}): nobody would reach what this process contributes."
        fix = "give an address of this machine that the others reach, or leave local_hostname out"
        return [problem("hostname", message, fix)]
    return []


def segments(target: Target, trial: Outcome, space: str) -> Finding:
    """Did the cluster take an object, give it back and let it go, in the look ``stored``? `space` is what the master says, or nothing."""
    size = format_bytes(TRIAL_OBJECT_BYTES)
    step, why = trial.values["failed"], trial.values.get("message", "")
    if step is None:
        return fine("segments", f"The cluster took an object of {size}, gave it back and removed it{space}.")
    if trial.values["error"] == "StoreFull":
        if target.segment_bytes:
            without = f"Without this URL's own segment of {format_bytes(target.segment_bytes)} the cluster has no room"
            return note("segments", f"{without} for {size}: it is full, or nobody else contributes a segment{space}.")
        give = f"python -c 'import tensorlease as tl; s = tl.open(\"{target.segment_url('1GiB')}\"); input()'"
        message = f"The cluster is full, or nobody contributes a segment: it has no room for {size}{space}."
        return problem("segments", message, f"{give}  # a process that contributes 1 GiB; or remove what nobody reads")
    if trial.values["error"] == "Timeout":
        message = f"The {step} of an object of {size} did not end: a process that owns a segment hangs or can't be reached{space}."
        fix = "end the process that hangs, by its pid: the master forgets its segment after client_ttl (10 s)"
        return problem("segments", message, fix)
    look = "look at the log of the process that owns the segment, whose objects the master forgets once it is gone for 10 s"
    fix = f"{look}; after a link was down every transfer fails for some 30 s"
    return problem("segments", f"The {step} of an object of {size} failed: {why}{trial.wrote}.", fix)


def space(answer: Outcome) -> str:
    """What the master's metrics (the look ``metrics``) say about all segments, as the end of a sentence."""
    if answer.end != "done":
        return f" (the master's metrics can't be read: {answer.why})"
    numbers = dict(re.findall(r"^(master_\w+_bytes) ([0-9.e+]+)$", answer.values["text"], re.MULTILINE))
    try:
        total, used = (float(numbers[f"master_{name}_bytes"]) for name in ("total_capacity", "allocated"))
    except (KeyError, ValueError):
        return " (that port shows no master's metrics)"
    if total == 0:
        return " (there is no segment)"
    return f" ({format_bytes(total - used)} of {format_bytes(total)} are free in its segments)"
