"""From a URL to a report: everything is tried, then each part says what it found."""

import os
from contextlib import ExitStack

import tensorlease as tl
from tensorlease.doctor import mooncake, rdma, system
from tensorlease.doctor.finding import Finding, Report
from tensorlease.doctor.machine import Machine
from tensorlease.doctor.target import Target, target
from tensorlease.doctor.trials import Outcome, Trial
from tensorlease.errors import ConfigError
from tensorlease.store import DEFAULT_URL, URL_VARIABLE

GIB = 1 << 30
#: How long a master may take to answer.
_MASTER_SECONDS = 5.0


def examine(
    url: str | None = None, *, max_bytes: int = GIB, metrics_port: int | None = None, machine: Machine | None = None
) -> Report:
    """Looks at everything that a store with this URL stands on. Takes a second or two, and at most some 100 s where something hangs.

    :param url: None: as ``tensorlease.open``, the environment variable ``TENSORLEASE_URL``, else ``host://``
    :param max_bytes: the budget that the store will be opened with
    :param metrics_port: of the master, to learn how much memory the cluster has
    :param machine: another /proc and /sys than this machine's own, for tests
    """
    asked = target(os.environ.get(URL_VARIABLE) or DEFAULT_URL if url is None else url, max_bytes)
    here = machine or Machine()
    daemon_before = system.daemon_before(asked) if asked.scheme == "host" else ""
    ends = _try_everything(asked)
    for name in ("store", "faults"):
        if name in ends and ends[name].error == "ConfigError":
            raise ConfigError(ends[name].message)
    findings = [
        system.kernel(asked, here),
        system.memory(asked, here),
        system.memlock(asked, here),
        system.io_uring(asked, here, ends["pinned"]),
        system.huge_pages(asked, here, os.environ),
        *system.fork(asked),
        *system.faults(asked),
        *rdma.ibverbs(asked, here, ends["verbs"]),
        *mooncake.package(asked, ends["wheel"], os.environ),
    ]
    if asked.scheme == "host":
        findings.append(system.socket(asked, daemon_before))
    if asked.is_mooncake:
        findings.append(mooncake.master(asked, ends["master"]))
        findings += mooncake.hostname(asked)
    # Where something else is a problem, the store would only say the same again.
    if not any(finding.state == "PROBLEM" for finding in findings):
        findings.append(_store(asked, ends["store"], metrics_port))
    return Report(tl.__version__, asked.url, max_bytes, tuple(findings))


def _try_everything(asked: Target) -> dict[str, Outcome]:
    """All at the same time: where several hang, the doctor takes as long as for one."""
    looks: list[tuple[str, str, dict[str, str | float]]] = [
        ("verbs", "verbs", {}),
        ("wheel", "wheel", {}),
        ("pinned", "pinned", {}),
        ("store", "stored" if asked.is_mooncake else "opened", {"url": asked.trial_url()}),
    ]
    faulty = asked.faults_url()
    if faulty is not None:
        # Elsewhere they are left out: what fails on purpose says nothing about the machine.
        looks.append(("faults", "opened", {"url": faulty}))
    if asked.is_mooncake:
        host, port = asked.master()
        looks.append(("master", "master", {"host": host, "port": port, "seconds": _MASTER_SECONDS}))
    with ExitStack() as running:
        trials = [(name, running.enter_context(Trial(look, arguments))) for name, look, arguments in looks]
        return {name: trial.outcome() for name, trial in trials}


def _store(asked: Target, trial: Outcome, metrics_port: int | None) -> Finding:
    if not asked.is_mooncake or trial.end != "done":
        return system.opens(asked, trial)
    if metrics_port is None:
        return mooncake.segments(asked, trial, "")
    # After the trial, whose own object would count.
    with Trial("metrics", {"host": asked.master()[0], "port": metrics_port}) as metrics:
        return mooncake.segments(asked, trial, mooncake.space(metrics.outcome()))
