"""asyncio: the same results, and cancelling gives everything back."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from typing import Any

import pytest
import torch
from conftest import assert_all_given_back
from tensors import assert_same, filled

import tensorlease as tl

pytestmark = pytest.mark.asyncio
SLOW = "embedded://?capacity=64MiB&faults=slow:100ms"


async def test_async_calls_do_what_their_names_say(store: tl.Store) -> None:
    value = filled((5, 3))
    assert await store.aput(["a", "b"], [value, {"x": 1}]) == [
        None,
        {"packed_size": store.put(["c"], [{"x": 1}])[0]["packed_size"]},
    ]  # type: ignore[index]
    tensor, other = await store.aget(["a", "b"], [(5, 3), None], [torch.float32, None])
    assert_same(tensor, value)
    assert other == {"x": 1}
    assert_same(await store.aget_batch(["a", "a"], (5, 3), torch.float32), torch.stack([value, value]))
    columns = await store.aget_batches({"field": (["a"], [(5, 3)], torch.float32)})
    assert columns["field"].is_nested
    target = torch.zeros(5, 3)
    await store.aget_into(["a"], [target])
    assert_same(target, value)
    await store.await_keys(["a"], 1)
    assert await store.aremove(["a", "b", "c", "d"]) == 3


async def test_errors_reach_the_awaiting_task(store: tl.Store) -> None:
    with pytest.raises(tl.KeyNotFound, match="absent"):
        await store.aget(["absent"])
    with pytest.raises(tl.ConfigError, match="keys"):
        await store.aget("absent")
    with pytest.raises(tl.Timeout):
        await store.await_keys(["absent"], 0.05)


@pytest.mark.alone
async def test_the_loop_runs_on_during_a_read() -> None:
    with tl.open(SLOW, max_bytes="16MiB") as store:
        store.put(["a"], [1])
        turns = 0
        reading = asyncio.ensure_future(store.aget(["a"]))
        while not reading.done():
            turns += 1
            await asyncio.sleep(0.005)
        assert await reading == [1]
        assert turns > 2


@pytest.mark.alone
async def test_the_loop_runs_on_while_keys_are_awaited() -> None:
    with tl.open(SLOW, max_bytes="16MiB") as store:
        store.put(["a"], [1])
        turns = 0
        waiting = asyncio.ensure_future(store.await_keys(["a"]))
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0.005)
        await waiting
        assert turns > 2


@pytest.mark.alone
async def test_many_tasks_share_few_threads(store: tl.Store) -> None:
    values = [filled((100,)) for _ in range(50)]
    keys = [str(index) for index in range(50)]
    store.put(keys, values)
    before = threading.active_count()
    outs = await asyncio.gather(*(store.aget([key], [(100,)], "float32") for key in keys * 4))
    assert threading.active_count() - before <= 8
    for (found,), expected in zip(outs, values * 4, strict=True):
        assert_same(found, expected)


async def test_cancelling_a_third_of_the_reads_gives_everything_back() -> None:
    with tl.open("embedded://?capacity=64MiB&faults=slow:50ms", max_bytes="64MiB", readers=4) as store:
        keys = [str(index) for index in range(64)]
        values = [filled((4096,)) for _ in keys]
        await store.aput(keys, values)

        async def read(index: int) -> Any:
            return await store.aget(keys, [(4096,)] * 64, "float32", delivery="leased" if index % 2 else "copied")

        tasks = [asyncio.ensure_future(read(index)) for index in range(60)]
        for index in range(0, 60, 3):
            await asyncio.sleep(0.004)
            tasks[index].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = sum(isinstance(result, asyncio.CancelledError) for result in results)
        assert cancelled > 5
        for result in results:
            if not isinstance(result, asyncio.CancelledError):
                assert not isinstance(result, BaseException)
                assert_same(result[63], values[63])
        del tasks, results, result
        await settled(store)
        assert_same((await store.aget(keys[:1]))[0], values[0])


async def settled(store: tl.Store) -> None:
    """Waits until abandoned calls are over, then checks the counters."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        gc.collect()
        stats = store.stats()
        if stats["in_flight_bytes"] == stats["leased_bytes"] == stats["running_calls"] == 0:
            break
        await asyncio.sleep(0.02)
    assert_all_given_back(store)


@pytest.mark.alone
async def test_a_cancelled_wait_ends_at_once(store: tl.Store) -> None:
    task = asyncio.ensure_future(store.await_keys(["never"], 50))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    started = time.monotonic()
    while store.stats()["running_calls"]:
        await asyncio.sleep(0.005)
    assert time.monotonic() - started < 1


@pytest.mark.alone
async def test_closing_ends_async_calls_and_refuses_new_ones() -> None:
    store = tl.open(SLOW, max_bytes="16MiB")
    waiting = asyncio.ensure_future(store.await_keys(["never"], 50))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await asyncio.to_thread(store.close)
    with pytest.raises(tl.Closed):
        await waiting
    assert time.monotonic() - started < 3
    with pytest.raises(tl.Closed):
        await store.aget(["a"])


async def test_an_async_call_after_a_fork_says_so(store: tl.Store) -> None:
    await store.aput(["a"], [1])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.aget(["a"]).send(None)
        except tl.Closed as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_waiting_tasks_hold_no_thread(store: tl.Store) -> None:
    async def consumer(index: int) -> torch.Tensor:
        await store.await_keys([f"k{index}"], timeout=20)
        return (await store.aget([f"k{index}"]))[0]

    async def producer(index: int) -> None:
        await asyncio.sleep(0.02)
        await store.aput([f"k{index}"], [torch.full((3,), float(index))])

    waiting = [asyncio.create_task(consumer(index)) for index in range(40)]
    await asyncio.gather(*[producer(index) for index in range(40)])
    found = await asyncio.wait_for(asyncio.gather(*waiting), 20)
    assert [tensor[0].item() for tensor in found] == list(range(40))


async def test_keys_that_do_not_come_are_named(store: tl.Store) -> None:
    with pytest.raises(tl.Timeout, match="never"):
        await store.await_keys(["never"], timeout=0.05)
    with pytest.raises(tl.ConfigError):
        await store.await_keys("never", timeout=0.05)
    with pytest.raises(tl.ConfigError):
        await store.await_keys(["never"], timeout=-1)


async def test_closing_ends_every_waiting_call_as_closed() -> None:
    store = tl.open("embedded://?capacity=64MiB&faults=slow:200ms", max_bytes="64MiB", readers=1)
    store.put(["a"], [torch.zeros(100_000)])
    # More than have a thread: some run, the others wait for one.
    calls = [store.aget(["a"]) for _ in range(6)]
    calls += [store.aput([str(index)], [torch.zeros(100_000)]) for index in range(6)]
    calls += [store.await_keys([f"never{index}"], 50) for index in range(6)]
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0.1)
    await asyncio.to_thread(store.close)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in ended] == [tl.Closed] * len(tasks)
    assert not any(task.cancelled() for task in tasks)


async def test_a_task_that_is_cancelled_stays_so_also_while_its_store_closes() -> None:
    store = tl.open("embedded://?capacity=64MiB&faults=slow:200ms", max_bytes="64MiB", readers=1)
    store.put(["a"], [torch.zeros(100_000)])

    async def under_a_timeout() -> None:
        async with asyncio.timeout(0.05):
            await store.aget(["a"])

    tasks = [asyncio.create_task(store.aget(["a"])) for _ in range(8)]
    tasks += [asyncio.create_task(store.await_keys(["never"], 50)) for _ in range(2)]
    timed = [asyncio.create_task(under_a_timeout()) for _ in range(2)]
    await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    closing = asyncio.create_task(asyncio.to_thread(store.close))
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert [type(error) for error in await asyncio.gather(*timed, return_exceptions=True)] in (
        [TimeoutError] * 2,
        # The close was first.
        [tl.Closed] * 2,
    )
    await closing


@pytest.mark.alone
async def test_what_a_cancelled_read_brought_goes_without_the_cycle_collector() -> None:
    with tl.open("embedded://?capacity=64MiB", max_bytes="64MiB") as store:
        store.put(["k"], [filled((1 << 18,))])
        await store.aget(["k"], delivery="leased")
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                tasks = [asyncio.create_task(store.aget(["k"], delivery="leased")) for _ in range(8)]
                await asyncio.sleep(0)
                # The loop does not run meanwhile: the reads end, and their tasks are cancelled before they learn of it.
                time.sleep(0.05)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            deadline = time.monotonic() + 5
            while store.stats()["leased_bytes"] and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            assert store.stats()["leased_bytes"] == 0
        finally:
            gc.enable()
