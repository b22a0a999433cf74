"""The demo over a Mooncake cluster: rollout, segment owner and trainer are three processes, the master is a fourth."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from typing import IO

import tensorlease as tl
from tensorlease.bench.machine import require_memory
from tensorlease.bench.report import counted
from tensorlease.bench.sizes import GIB, MIB, format_bytes
from tensorlease.demo.crew import Crew
from tensorlease.demo.ledger import Entry, Ledger
from tensorlease.demo.rollout import ROLLOUT_THREADS, STEPS_AHEAD, rollout
from tensorlease.demo.samples import Plan
from tensorlease.demo.trainer import StepResult, trainer
from tensorlease.mooncake_cluster import Master, SegmentOwner, native_messages_aside

_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class MooncakeDemoSettings:
    """`samples` per step."""

    steps: int
    samples: int
    seed: int


def tell(settings: MooncakeDemoSettings) -> None:
    """Starts the cluster and the rollout process, trains here, and stops what it started, whatever ends it."""
    start = time.monotonic()
    plan = Plan(settings.steps, settings.samples, settings.seed)
    step_bytes = plan.step_bytes()
    segment_bytes = round(1.25 * (STEPS_AHEAD + 1) * step_bytes) + 64 * MIB
    max_bytes = max(round(1.4 * step_bytes), 256 * MIB)
    require_memory(segment_bytes + 3 * max_bytes, f"a step of {settings.samples} samples", "give a smaller --samples")
    tl.warm_up_jagged()
    owner_options = {"segment": segment_bytes, "local_buffer": "16MiB"}
    with native_messages_aside(), Master() as master, SegmentOwner(master.url(**owner_options)):
        url = master.url(local_buffer="16MiB")
        _say(
            f"A Mooncake master on {master.address}, and a process that owns a segment of {format_bytes(segment_bytes)}."
        )
        _say(f"Another process runs {ROLLOUT_THREADS} rollout threads; this one trains, and checks every byte.")
        _say(f"{settings.steps} steps of {settings.samples} samples.\n")
        with tl.open(url, max_bytes=max_bytes) as store:
            _train(settings, plan, store, url)
            stats = store.stats()
    calls, reads = int(stats["register_calls_per_read"]), int(stats["leased_reads"])
    _say(f"\n{reads:,} tensors were read into leased memory, with {counted(calls, 'registration')} on the way.")
    _say(f"Told in {time.monotonic() - start:.0f} s; everything that was started is stopped.")


def _train(settings: MooncakeDemoSettings, plan: Plan, store: tl.Store, url: str) -> None:
    """The trainer's side: what the rollout process tells goes into a ledger like the one that threads share."""
    crew = Crew()
    with tempfile.TemporaryFile() as log, _rollout_process(settings, url, log) as process:
        ledger = _LedgerOfAnother(process)
        try:
            crew.start("rollout-lines", lambda: _listen(process, ledger, log))
            crew.start("trainer", trainer(plan, store, ledger, crew, lambda result: _tell_step(settings.steps, result)))
            crew.join()
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            crew.stop()


def _rollout_process(settings: MooncakeDemoSettings, url: str, log: IO[bytes]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__, url, json.dumps(asdict(settings))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


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


def _tell_step(steps: int, result: StepResult) -> None:
    speed = result.read_bytes / GIB / result.read_seconds
    _say(
        f"step {result.step + 1}/{steps}  {result.tokens / 1e6:5.1f} M tokens, {format_bytes(result.read_bytes):>9} read in"
        f" {result.read_seconds * 1e3:6.1f} ms ({speed:4.1f} GiB/s), loss {result.loss:+.4f}, contents right"
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _run_rollout(url: str, settings: MooncakeDemoSettings) -> None:
    """The rollout's own process: until it has put every step, or its standard input ends."""
    plan = Plan(settings.steps, settings.samples, settings.seed)
    crew, ledger = Crew(), _TellingLedger()

    def follow() -> None:
        for _ in range(settings.steps):
            if not sys.stdin.readline():
                raise tl.Interrupted("the trainer is gone")
            ledger.finish_step()

    with tl.open(url, max_bytes="128MiB") as store:
        try:
            crew.start("trainer-lines", follow)
            for worker in range(ROLLOUT_THREADS):
                crew.start(f"rollout-{worker}", rollout(worker, plan, store, ledger, crew, settings.seed))
            crew.join()
        finally:
            crew.stop()


if __name__ == "__main__":
    _run_rollout(sys.argv[1], MooncakeDemoSettings(**json.loads(sys.argv[2])))
