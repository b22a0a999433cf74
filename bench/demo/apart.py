"""The rollout in a process of its own: it tells the trainer's process of every sample, and hears from it of every finished step."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import tensorlease as tl
from bench.demo.crew import Crew
from bench.demo.ledger import Entry, Ledger
from bench.demo.rollout import ROLLOUT_THREADS, rollout
from bench.demo.samples import Plan
from bench.demo.trainer import StepResult, trainer

REPOSITORY = Path(__file__).resolve().parents[2]
_STOP_SECONDS = 10.0
_ROLLOUT_MAX_BYTES = "128MiB"


@dataclass(frozen=True)
class Job:
    """What both processes must know to make the same plan. `samples` per step."""

    steps: int
    samples: int
    seed: int

    def plan(self) -> Plan:
        """The same in both."""
        return Plan(self.steps, self.samples, self.seed)


def train_apart(
    job: Job, url: str | None, store: tl.Store, tell_step: Callable[[StepResult], None], namespace: str = ""
) -> None:
    """Trains here, on `store`, what a process that it starts puts into the store at `url`; None: what `tensorlease.open()` opens.

    `namespace` is that of `store`. Whatever ends it, the process and all threads have ended then.
    """
    crew = Crew()
    with tempfile.TemporaryFile() as log, _rollout_process(job, url, namespace, log) as process:
        # What the rollout tells goes into a ledger like the one that threads share.
        ledger = _LedgerOfAnother(process)
        try:
            crew.start("rollout-lines", lambda: _listen(process, ledger, log))
            crew.start("trainer", trainer(job.plan(), store, ledger, crew, tell_step))
            crew.join()
        finally:
            # It ends with its standard input.
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            crew.stop()


def _rollout_process(job: Job, url: str | None, namespace: str, log: IO[bytes]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__, json.dumps([url, namespace, asdict(job)])]
    # Python finds `bench` in the folder where it starts.
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=REPOSITORY
    )


class _LedgerOfAnother(Ledger):
    """The trainer's: a finished step is told to the rollout process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__()
        self._process = process

    def finish_step(self) -> None:
        super().finish_step()
        if self._process.stdin is not None:
            print("finished", file=self._process.stdin, flush=True)


class _TellingLedger(Ledger):
    """The rollout's: every entry is told to the trainer's process."""

    def __init__(self) -> None:
        super().__init__()
        self._printing = threading.Lock()

    def record(self, step: int, index: int, entry: Entry) -> None:
        line = json.dumps([step, index, asdict(entry)])
        with self._printing:
            print(line, flush=True)


def _listen(process: subprocess.Popen[str], ledger: Ledger, log: IO[bytes]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        step, index, entry = json.loads(line)
        ledger.record(step, index, Entry(**entry))
    status = process.wait()
    if status != 0:
        log.seek(0)
        end = log.read().decode(errors="replace").splitlines()[-1:]
        raise tl.EngineUnavailable(f"the rollout process ended with {status}: {' '.join(end)}")


def _run_rollout(url: str | None, namespace: str, job: Job) -> None:
    """The rollout's own process: until it has put every step, or its standard input ends."""
    crew, ledger = Crew(), _TellingLedger()

    def follow() -> None:
        for _ in range(job.steps):
            if not sys.stdin.readline():
                raise tl.Interrupted("the trainer is gone")
            ledger.finish_step()

    with tl.open(url, max_bytes=_ROLLOUT_MAX_BYTES, namespace=namespace) as store:
        try:
            crew.start("trainer-lines", follow)
            for worker in range(ROLLOUT_THREADS):
                crew.start(f"rollout-{worker}", rollout(worker, job.plan(), store, ledger, crew, job.seed))
            crew.join()
        finally:
            crew.stop()


if __name__ == "__main__":
    asked_url, asked_namespace, asked_job = json.loads(sys.argv[1])
    _run_rollout(asked_url, asked_namespace, Job(**asked_job))
