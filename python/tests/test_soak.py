"""Mixed reads, writes, removals and retained tensors for a long time: every byte right, nothing lost."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from typing import Any

import pytest
import torch
from conftest import URL
from tensors import assert_same

import tensorlease as tl

#: Small enough that retained tensors use the budget up now and then.
MAX_BYTES = "24MiB"
DELIVERIES = ["auto", "leased", "copied", "register-per-call", None]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8]


@pytest.mark.parametrize("reads", [120])
def test_a_short_soak_keeps_every_byte(reads: int) -> None:
    asyncio.run(soak(reads, seed=1))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.skipif("TENSORLEASE_SOAK" not in os.environ, reason="takes minutes; set TENSORLEASE_SOAK=1")
def test_a_long_soak_keeps_every_byte() -> None:
    asyncio.run(soak(2000, seed=2))


def value_of(key: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The value that belongs to a key, the same each time."""
    generator = torch.Generator().manual_seed(hash(key) & 0xFFFF_FFFF)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)


async def soak(reads: int, seed: int) -> None:
    """`reads` reads in groups of 6 tasks, a third of which are cancelled, beside writes and removals."""
    chance = random.Random(seed)
    known: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    retained: list[tuple[str, Any]] = []
    with tl.open(URL, max_bytes=MAX_BYTES, readers=3) as store:
        made = 0
        for group in range(reads // 6):
            fresh = {f"{group}/{index}": (some_shape(chance), chance.choice(DTYPES)) for index in range(12)}
            await store.aput(list(fresh), [value_of(key, *spec) for key, spec in fresh.items()])
            known.update(fresh)
            tasks = [
                asyncio.ensure_future(read(store, known, random.Random(seed * 100_003 + made + index)))
                for index in range(6)
            ]
            made += 6
            await asyncio.sleep(chance.random() * 0.003)
            for index in range(0, 6, 3):
                tasks[index].cancel()
            retained.extend(await outcomes(tasks))
            del tasks
            chance.shuffle(retained)
            check(retained[:4], known)
            del retained[20:]
            gone = chance.sample(sorted(known), 6)
            held = {key for key, _ in retained}
            assert await store.aremove(gone) == 6
            for key in gone:
                if key not in held:
                    del known[key]
                else:
                    await store.aput([key], [value_of(key, *known[key])])
        check(retained, known)
        retained.clear()
        await give_back(store)


async def outcomes(tasks: list[asyncio.Task[Any]]) -> list[tuple[str, Any]]:
    """What the tasks that were not cancelled want to keep."""
    kept: list[tuple[str, Any]] = []
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(outcome, asyncio.CancelledError):
            assert not isinstance(outcome, BaseException), outcome
            kept.extend(outcome)
    return kept


def check(tensors: list[tuple[str, Any]], known: dict[str, Any]) -> None:
    """Every byte is right."""
    for key, tensor in tensors:
        assert_same(tensor, value_of(key, *known[key]))


async def give_back(store: tl.Store) -> None:
    """All counters end at zero."""
    for _ in range(200):
        gc.collect()
        stats = store.stats()
        left = {name: stats[name] for name in ["leased_bytes", "in_flight_bytes", "quarantined_bytes", "running_calls"]}
        if not any(left.values()):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(left)


def some_shape(chance: random.Random) -> tuple[int, ...]:
    """Mostly small, sometimes empty, sometimes large."""
    kind = chance.random()
    if kind < 0.05:
        return (0, 3)
    if kind < 0.1:
        return ()
    if kind < 0.8:
        return (chance.randint(1, 3000),)
    return (chance.randint(1, 64), 4096)


async def read(store: tl.Store, known: dict[str, Any], chance: random.Random) -> list[tuple[str, Any]]:
    """One read of some keys, checked; returns some tensors to keep."""
    keys = chance.choices(sorted(known), k=chance.randint(1, 24))
    specs = [known[key] for key in keys]
    out = await store.aget(
        keys, [shape for shape, _ in specs], [dtype for _, dtype in specs], delivery=chance.choice(DELIVERIES)
    )
    for key, tensor, spec in zip(keys, out, specs, strict=True):
        assert_same(tensor, value_of(key, *spec))
    return [(key, tensor) for key, tensor in zip(keys, out, strict=True) if chance.random() < 0.2]
