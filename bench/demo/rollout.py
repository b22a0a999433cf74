"""The rollout side: makes samples and puts them into the store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import tensorlease as tl
from bench.demo.crew import Crew
from bench.demo.ledger import Entry, Ledger
from bench.demo.samples import FIELDS, Plan, make_sample, sample_key

ROLLOUT_THREADS = 2
# Steps that may lie in the store before the trainer is through with the oldest: this bounds the store.
STEPS_AHEAD = 2
WAIT_SECONDS = 60.0
_SAMPLES_PER_PUT = 32


def rollout(worker: int, plan: Plan, store: tl.Store, ledger: Ledger, crew: Crew, seed: int) -> Callable[[], None]:
    """The work of one rollout thread: every `ROLLOUT_THREADS`th sample of each step."""

    def work() -> None:
        generator = torch.Generator().manual_seed(seed * ROLLOUT_THREADS + worker)
        for step in range(plan.steps):
            finished = step - STEPS_AHEAD + 1
            crew.wait_until(partial(ledger.wait_for_finished, finished), f"the end of step {finished}", WAIT_SECONDS)
            own = range(worker, plan.samples, ROLLOUT_THREADS)
            for first in range(0, len(own), _SAMPLES_PER_PUT):
                crew.check()
                _put_samples(step, own[first : first + _SAMPLES_PER_PUT], plan, store, ledger, generator)

    return work


def _put_samples(
    step: int, indexes: range, plan: Plan, store: tl.Store, ledger: Ledger, generator: torch.Generator
) -> None:
    samples = {
        index: make_sample(plan.conversation(step, index), plan.lengths(step, index), generator) for index in indexes
    }
    keys = [sample_key(step, index, field) for index in samples for field in FIELDS]
    handles = store.put(keys, [value for sample in samples.values() for value in sample.values()])
    for position, (index, sample) in enumerate(samples.items()):
        meta_handle = handles[position * len(FIELDS) + FIELDS.index("meta")]
        ledger.record(step, index, Entry(sample.checksums(), sample.meta, meta_handle))
