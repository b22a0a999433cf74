"""The trainer side: reads columns, checks them, computes a loss, removes what it used."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tensorlease as tl
from bench.demo.crew import Crew
from bench.demo.ledger import Entry, Ledger
from bench.demo.rollout import WAIT_SECONDS
from bench.demo.samples import FIELDS, TOKEN_FIELDS, Plan, checksum, sample_key
from tensorlease.bench.column import WrongContents

Columns = dict[str, Any]


@dataclass(frozen=True)
class StepResult:
    """What one step did. `read_seconds` is the time of `get_batches` alone.

    `registrations` are those of the read path, and of the rollout's writes at that time; not of slabs, which are kept.
    """

    step: int
    tokens: int
    read_bytes: int
    read_seconds: float
    registrations: float
    loss: float


def trainer(
    plan: Plan, store: tl.Store, ledger: Ledger, crew: Crew, tell_step: Callable[[StepResult], None]
) -> Callable[[], None]:
    """The work of the trainer thread."""

    def work() -> None:
        for step in range(plan.steps):
            tell_step(_train(step, plan, store, ledger, crew))
            ledger.finish_step()

    return work


def _train(step: int, plan: Plan, store: tl.Store, ledger: Ledger, crew: Crew) -> StepResult:
    keys = {field: [sample_key(step, index, field) for index in range(plan.samples)] for field in FIELDS}
    every_key = [key for column in keys.values() for key in column]
    crew.wait_until(
        lambda seconds: _are_stored(store, every_key, seconds), f"the samples of step {step + 1}", WAIT_SECONDS
    )
    crew.wait_until(
        lambda seconds: ledger.has(step, plan.samples, seconds), f"the checksums of step {step + 1}", WAIT_SECONDS
    )
    entries = ledger.take(step, plan.samples)

    shapes = plan.shapes(step)
    before = store.stats()["register_calls_per_read"]
    start = time.perf_counter()
    columns: Columns = store.get_batches(
        {
            **{field: (keys[field], shapes, dtype) for field, dtype in TOKEN_FIELDS.items()},
            "reward": (keys["reward"], (), torch.float32),
        }
    )
    read_seconds = time.perf_counter() - start
    registrations = store.stats()["register_calls_per_read"] - before
    metas = store.get(
        keys["meta"],
        [()] * plan.samples,
        [None] * plan.samples,
        custom_backend_meta=[entry.meta_handle for entry in entries],
        timeout=WAIT_SECONDS,
    )
    _check(step, columns, metas, entries)
    loss = policy_loss(columns)
    tokens = sum(length for (length,) in shapes)
    read_bytes = sum(_bytes_of(column) for column in columns.values())
    store.remove(every_key)
    return StepResult(step, tokens, read_bytes, read_seconds, registrations, loss)


def policy_loss(columns: Columns) -> float:
    """A policy gradient in small: the mean log probability of each answer times its advantage over the mean reward."""
    mask = columns["response_mask"]
    # Jagged times jagged: possible because both columns share one offsets tensor.
    answers = mask * columns["logprobs"]
    offsets = answers.offsets()
    sums = torch.segment_reduce(answers.values(), "sum", offsets=offsets)
    tokens = torch.segment_reduce(mask.values().float(), "sum", offsets=offsets).clamp_(min=1.0)
    reward = columns["reward"]
    return float(-((reward - reward.mean()) * sums / tokens).mean())


def _are_stored(store: tl.Store, keys: list[str], timeout_seconds: float) -> bool:
    try:
        store.wait(keys, timeout=timeout_seconds)
    except tl.Timeout:
        return False
    return True


def _check(step: int, columns: Columns, metas: list[Any], entries: list[Entry]) -> None:
    """Every byte of every sample against what the rollout kept."""
    rows = {field: columns[field].unbind() for field in (*TOKEN_FIELDS, "reward")}
    for index, entry in enumerate(entries):
        for field, expected in entry.checksums.items():
            if checksum(rows[field][index]) != expected:
                raise WrongContents(f"step {step + 1}, sample {index}: {field} is not what the rollout wrote")
        if metas[index] != entry.meta:
            raise WrongContents(
                f"step {step + 1}, sample {index}: meta is {metas[index]!r}, and the rollout wrote {entry.meta!r}"
            )


def _bytes_of(column: torch.Tensor) -> int:
    values = column.values() if column.is_nested else column
    return int(values.nbytes)
