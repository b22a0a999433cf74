"""Tells the demo from beginning to end on standard output: over a host's store in two processes, over any other store in threads."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import tensorlease as tl
from bench.data import conversation_lengths
from bench.demo.apart import Job, train_apart
from bench.demo.chart import plot_comparison
from bench.demo.compare import Comparison, compare, counted, meaning, render
from bench.demo.crew import Crew
from bench.demo.ledger import Ledger
from bench.demo.own_host import own_host
from bench.demo.rollout import ROLLOUT_THREADS, STEPS_AHEAD, rollout
from bench.demo.samples import Plan
from bench.demo.trainer import StepResult, trainer
from tensorlease.bench.machine import header, require_memory
from tensorlease.bench.opening import emptied, engine_for, new_namespace
from tensorlease.bench.report import machine_line
from tensorlease.host import HOST_URL, starts_daemon
from tensorlease.sizes import GIB, MIB, format_bytes

# The comparison reads several steps' worth of samples at once, as a large batch would.
_COMPARED_STEPS = 4
_TRIAL_BYTES = 64 * MIB


@dataclass(frozen=True)
class DemoSettings:
    """`out` is made if it is not there."""

    engine: str
    steps: int
    samples: int
    out: Path
    seed: int


def tell(settings: DemoSettings) -> Path | None:
    """Runs the training steps, then the comparison; the path of the chart, or None without matplotlib."""
    start = time.monotonic()
    conversations = len(conversation_lengths())
    if settings.samples > conversations:
        raise tl.ConfigError(
            f"--samples is {settings.samples}; the data has {conversations} conversations, so that is the most"
        )
    _make_folder(settings.out)
    with own_host() if starts_daemon(settings.engine) else contextlib.nullcontext():
        train(settings)
        comparison, engine = _compared(settings, min(_COMPARED_STEPS * settings.samples, conversations))
    chart = _draw(settings.out, engine, comparison)
    _say(f"Told in {time.monotonic() - start:.0f} s; everything that was started is stopped.")
    return chart


def train(settings: DemoSettings) -> None:
    """Rollout and trainer over one store. Whatever ends it, no thread and no process is left and the store is closed."""
    job = Job(settings.steps, settings.samples, settings.seed)
    plan = job.plan()
    step_bytes = plan.step_bytes()
    max_bytes = max(round(1.4 * step_bytes), 256 * MIB)
    stored_bytes = (STEPS_AHEAD + 1) * step_bytes + 64 * MIB
    require_memory(
        stored_bytes + max_bytes + step_bytes, f"a step of {settings.samples} samples", "give a smaller --samples"
    )
    # torch's imports for its first nested tensor must not count as reading.
    tl.warm_up_jagged()
    namespace = new_namespace("demo")
    url = engine_for(settings.engine, stored_bytes)
    with tl.open(url, max_bytes=max_bytes, namespace=namespace) as store, emptied(store):
        if settings.engine.startswith(HOST_URL):
            _say_processes(settings)
            train_apart(job, settings.engine, store, lambda result: _tell_step(settings.steps, result), namespace)
        else:
            _say_threads(settings)
            _train_in_threads(settings, plan, store)


def _train_in_threads(settings: DemoSettings, plan: Plan, store: tl.Store) -> None:
    crew, ledger = Crew(), Ledger()
    try:
        for worker in range(ROLLOUT_THREADS):
            crew.start(f"rollout-{worker}", rollout(worker, plan, store, ledger, crew, settings.seed))
        crew.start("trainer", trainer(plan, store, ledger, crew, lambda result: _tell_step(settings.steps, result)))
        crew.join()
    finally:
        crew.stop()


def _say_processes(settings: DemoSettings) -> None:
    whose = ", which a daemon of this demo's keeps" if starts_daemon(settings.engine) else ""
    _say(f"A rollout process puts samples into {settings.engine}{whose}; they are as long as real conversations are.")
    _say(
        "This process is the trainer: it reads them in columns, multiplies mask and log probabilities, and checks every byte."
    )
    _say(f"{settings.steps} steps of {settings.samples} samples.\n")


def _say_threads(settings: DemoSettings) -> None:
    _say(f"{ROLLOUT_THREADS} rollout threads put samples into {settings.engine}, as long as real conversations are.")
    _say("A trainer thread reads them in columns, multiplies mask and log probabilities, and checks every byte.")
    _say(f"{settings.steps} steps of {settings.samples} samples.\n")


def _compared(settings: DemoSettings, samples: int) -> tuple[Comparison, str]:
    """Reads in each delivery, and says what they cost; also the engine that was compared on."""
    _say(f"\nReading the token columns of {samples:,} samples in each delivery ...")
    engine = _engine_to_compare(settings.engine)
    comparison = compare(engine, samples, settings.seed)
    size = format_bytes(comparison.size_bytes)
    _say(f"One read of {comparison.keys:,} tensors, {size}; medians of alternating reads:\n")
    _say(render(comparison))
    _say(f"\n{meaning(comparison)}")
    return comparison, engine


def _tell_step(steps: int, result: StepResult) -> None:
    speed = result.read_bytes / GIB / result.read_seconds
    registrations = counted(result.registrations, "registration")
    _say(
        f"step {result.step + 1}/{steps}  {result.tokens / 1e6:5.1f} M tokens, {format_bytes(result.read_bytes):>9}"
        f" read in {result.read_seconds * 1e3:6.1f} ms ({speed:4.1f} GiB/s), {registrations},"
        f" loss {result.loss:+.4f}, contents right"
    )


def _engine_to_compare(engine: str) -> str:
    """The embedded engine with memory that is really pinned, so that registration costs what a network card's does.

    The engine as it is where that is not allowed, or where another one was asked for.
    """
    parts = urlsplit(engine)
    if parts.scheme != "embedded" or "registration" in parse_qs(parts.query):
        return engine
    pinned = f"{engine}{'&' if parts.query else '?'}registration=pinned"
    try:
        tl.open(pinned, max_bytes=_TRIAL_BYTES).close()
    except tl.Error as error:
        _say(f"Memory can't be pinned here, so that registration costs nothing in what follows: {error}")
        return engine
    _say("The engine pins registered memory in the kernel, as a network card needs it.")
    return pinned


def _draw(folder: Path, engine: str, comparison: Comparison) -> Path | None:
    if importlib.util.find_spec("matplotlib") is None:
        _say("No chart: matplotlib is not installed (pip install matplotlib).")
        return None
    path = folder / "deliveries.png"
    in_place = comparison.view_milliseconds
    said = "" if in_place is None else f" · the same in place, with view=True: {in_place:.1f} ms"
    plot_comparison(comparison, f"{engine} · {machine_line(header('demo', engine, {}))}{said}", path)
    _say(f"Chart: {path}")
    return path


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise tl.ConfigError(
            f"--out {folder} can't be made: {os.strerror(error.errno or 0)}; name a folder you may write to"
        ) from error


def _say(text: str) -> None:
    print(text, flush=True)
