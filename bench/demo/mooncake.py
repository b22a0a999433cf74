"""The demo over a Mooncake cluster: rollout, segment owner and trainer are three processes, the master is a fourth."""

from __future__ import annotations

import time

import tensorlease as tl
from bench.cluster import Master, SegmentOwner, native_messages_aside
from bench.demo.apart import Job, train_apart
from bench.demo.compare import counted
from bench.demo.rollout import ROLLOUT_THREADS, STEPS_AHEAD
from bench.demo.trainer import StepResult
from tensorlease.bench.machine import require_memory
from tensorlease.sizes import GIB, MIB, format_bytes


def tell(job: Job) -> None:
    """Starts the cluster and the rollout process, trains here, and stops what it started, whatever ends it."""
    start = time.monotonic()
    step_bytes = job.plan().step_bytes()
    segment_bytes = round(1.25 * (STEPS_AHEAD + 1) * step_bytes) + 64 * MIB
    max_bytes = max(round(1.4 * step_bytes), 256 * MIB)
    require_memory(segment_bytes + 3 * max_bytes, f"a step of {job.samples} samples", "give a smaller --samples")
    tl.warm_up_jagged()
    owner_options = {"segment": segment_bytes, "local_buffer": "16MiB"}
    with native_messages_aside(), Master() as master, SegmentOwner(master.url(**owner_options)):
        url = master.url(local_buffer="16MiB")
        _say(
            f"A Mooncake master on {master.address}, and a process that owns a segment of {format_bytes(segment_bytes)}."
        )
        _say(f"Another process runs {ROLLOUT_THREADS} rollout threads; this one trains, and checks every byte.")
        _say(f"{job.steps} steps of {job.samples} samples.\n")
        with tl.open(url, max_bytes=max_bytes) as store:
            train_apart(job, url, store, lambda result: _tell_step(job.steps, result))
            stats = store.stats()
    calls, reads = int(stats["register_calls_per_read"]), int(stats["leased_reads"])
    _say(f"\n{reads:,} tensors were read into leased memory, with {counted(calls, 'registration')} on the way.")
    _say(f"Told in {time.monotonic() - start:.0f} s; everything that was started is stopped.")


def _tell_step(steps: int, result: StepResult) -> None:
    speed = result.read_bytes / GIB / result.read_seconds
    _say(
        f"step {result.step + 1}/{steps}  {result.tokens / 1e6:5.1f} M tokens, {format_bytes(result.read_bytes):>9} read in"
        f" {result.read_seconds * 1e3:6.1f} ms ({speed:4.1f} GiB/s), loss {result.loss:+.4f}, contents right"
    )


def _say(text: str) -> None:
    print(text, flush=True)
