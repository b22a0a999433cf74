"""The same read in each delivery, alternating."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from statistics import median

import torch

import tensorlease as tl
from bench.demo.samples import TOKEN_FIELDS, Plan, checksum, make_sample, sample_key
from tensorlease.bench.column import WrongContents
from tensorlease.bench.machine import require_memory
from tensorlease.bench.opening import emptied, engine_for, new_namespace
from tensorlease.bench.reading import Reading, Rows, warm_then_timed
from tensorlease.bench.report import count, table
from tensorlease.host import HOST_URL
from tensorlease.sizes import GIB, format_bytes

DELIVERIES = ("leased", "copied", "register-per-call")
_REPETITIONS = 7
_SAMPLES_PER_PUT = 64


@dataclass(frozen=True)
class DeliveryCost:
    """Medians over the repetitions, per read of the whole data."""

    delivery: str
    gib_per_second: float
    milliseconds: float
    registrations: float
    copied_bytes: float
    page_faults: float


@dataclass(frozen=True)
class Comparison:
    """What was read, and what each delivery cost."""

    keys: int
    size_bytes: int
    costs: list[DeliveryCost]
    #: Median of the same read in place; None where the store shows no values in place.
    view_milliseconds: float | None = None

    def cost_of(self, delivery: str) -> DeliveryCost:
        """Of one of `DELIVERIES`."""
        return next(cost for cost in self.costs if cost.delivery == delivery)


def compare(engine: str, samples: int, seed: int) -> Comparison:
    """Puts the token columns of `samples` samples into a store of its own and reads them in every delivery.

    The order is random within each repetition.
    """
    plan = Plan(1, samples, seed)
    size_bytes = plan.step_bytes()
    max_bytes = max(round(1.4 * size_bytes), 64 << 20)
    require_memory(4 * max_bytes, f"the comparison on {samples} samples", "give a smaller --samples")
    keys, shapes, dtypes = _contents(plan)
    readings: dict[str, list[Reading]] = {delivery: [] for delivery in DELIVERIES}
    rng = random.Random(seed)
    # The recycled memory for copies holds all of it, so that what is shown as copied is all copies.
    url, namespace = engine_for(engine, size_bytes), new_namespace("demo")
    with tl.open(url, max_bytes=max_bytes, copy_cache_bytes=max_bytes, namespace=namespace) as store, emptied(store):
        checksums = _put(plan, store, seed)
        for _ in range(_REPETITIONS):
            for delivery in rng.sample(DELIVERIES, len(DELIVERIES)):

                def read(delivery: str = delivery) -> Rows:
                    return store.get(keys, shapes, dtypes, delivery=delivery)

                reading, rows = warm_then_timed(store, read, keep_last=False)
                readings[delivery].append(reading)
                for index in rng.sample(range(len(keys)), min(24, len(keys))):
                    if checksum(rows[index]) != checksums[keys[index]]:
                        raise WrongContents(f"{keys[index]}, read as {delivery}, is not what was written")
                del rows
        in_place = _viewed(store, keys) if engine.startswith(HOST_URL) else None
    costs = [_cost(delivery, taken, size_bytes) for delivery, taken in readings.items()]
    return Comparison(len(keys), size_bytes, costs, in_place)


def _viewed(store: tl.Store, keys: list[str]) -> float:
    samples = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        rows = store.get(keys, view=True)
        samples.append((time.perf_counter() - start) * 1e3)
        del rows
    return median(samples)


def render(comparison: Comparison) -> str:
    """The table, for people."""
    headings = ["delivery", "GiB/s", "ms per read", "registrations", "copied out", "page faults"]
    lines = [
        [
            cost.delivery,
            f"{cost.gib_per_second:.1f}",
            f"{cost.milliseconds:.1f}",
            count(cost.registrations),
            format_bytes(cost.copied_bytes),
            count(cost.page_faults),
        ]
        for cost in comparison.costs
    ]
    return table(headings, lines, left_columns=1)


def meaning(comparison: Comparison) -> str:
    """One sentence on what the table says, whichever way it went."""
    leased, registered = comparison.cost_of("leased"), comparison.cost_of("register-per-call")
    ratio = leased.gib_per_second / registered.gib_per_second
    in_place = comparison.view_milliseconds
    if in_place is not None:
        # Nothing has to be registered with a host's daemon.
        return (
            f"Leased reads were {ratio:.1f} times as fast as reading into fresh memory, which costs "
            f"{counted(registered.page_faults, 'page fault')}. Read in place, with view=True, the same tensors take "
            f"{in_place:.1f} ms: nothing is copied."
        )
    return (
        f"Leased reads were {ratio:.1f} times as fast as registering memory for each read: per read they needed "
        f"{counted(leased.registrations, 'registration')}, {format_bytes(leased.copied_bytes)} of copying out and "
        f"{counted(leased.page_faults, 'page fault')}, against {counted(registered.registrations, 'registration')} and "
        f"{counted(registered.page_faults, 'page fault')}."
    )


def counted(number: float, noun: str) -> str:
    """`1 registration`, `0 registrations`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _contents(plan: Plan) -> tuple[list[str], list[tuple[int]], list[torch.dtype]]:
    keys: list[str] = []
    shapes: list[tuple[int]] = []
    dtypes: list[torch.dtype] = []
    for field, dtype in TOKEN_FIELDS.items():
        keys += [sample_key(0, index, field) for index in range(plan.samples)]
        shapes += plan.shapes(0)
        dtypes += [dtype] * plan.samples
    return keys, shapes, dtypes


def _put(plan: Plan, store: tl.Store, seed: int) -> dict[str, int]:
    """The checksum of every key."""
    generator = torch.Generator().manual_seed(seed)
    checksums: dict[str, int] = {}
    for first in range(0, plan.samples, _SAMPLES_PER_PUT):
        values: dict[str, torch.Tensor] = {}
        for index in range(first, min(first + _SAMPLES_PER_PUT, plan.samples)):
            sample = make_sample(plan.conversation(0, index), plan.lengths(0, index), generator)
            values |= {sample_key(0, index, field): sample.tensors[field] for field in TOKEN_FIELDS}
        store.put(list(values), list(values.values()))
        checksums |= {key: checksum(value) for key, value in values.items()}
    return checksums


def _cost(delivery: str, readings: list[Reading], size_bytes: int) -> DeliveryCost:
    milliseconds = median([reading.total_ms for reading in readings])
    return DeliveryCost(
        delivery=delivery,
        gib_per_second=size_bytes / GIB / (milliseconds / 1e3),
        milliseconds=milliseconds,
        registrations=median([reading.counters["register_calls"] for reading in readings]),
        copied_bytes=median([reading.counters["copied_bytes"] for reading in readings]),
        page_faults=median([reading.page_faults for reading in readings]),
    )
