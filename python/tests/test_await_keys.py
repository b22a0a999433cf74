"""Waiting for keys in asyncio: one look for all, exact timeouts, and nothing left behind."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import Any

import pytest

import tensorlease as tl

pytestmark = pytest.mark.asyncio
SLOW = "embedded://?capacity=64MiB&faults=slow:100ms"


@pytest.mark.alone
async def test_tasks_that_wait_share_one_look() -> None:
    with tl.open("embedded://?capacity=64MiB&faults=slow:5ms", max_bytes="16MiB") as store:
        asked: list[int] = []
        watch = store._async_calls.keys
        core = watch._core

        class Counting:
            """Counts what the thread asks the engine."""

            def contains(self, keys: list[str], **options: Any) -> list[bool]:
                asked.append(len(keys))
                return core.contains(keys, **options)

        watch._core = Counting()  # type: ignore[assignment]
        tasks = [asyncio.create_task(store.await_keys([f"k{index}", "all"], 50)) for index in range(300)]
        await asyncio.sleep(0.5)
        # One a task at first; then 5 ms and a pause for each, whatever their number.
        assert sum(count > 1 for count in asked) < 0.5 / 0.005
        assert max(asked) == 301
        store.put([f"k{index}" for index in range(300)], [1] * 300)
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in tasks)
        store.put(["all"], [1])
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        await asyncio.to_thread(ended_looking, store)


def ended_looking(store: tl.Store) -> None:
    """Nothing is left of the waits."""
    watch = store._async_calls.keys
    until = time.monotonic() + 10
    while watch._thread is not None:
        assert time.monotonic() < until
        time.sleep(0.005)
    assert not watch._waiting
    assert not watch._fresh


async def test_waits_that_end_early_leave_nothing(store: tl.Store) -> None:
    cancelled = [asyncio.create_task(store.await_keys([f"never{index}"], 50)) for index in range(50)]
    timed_out = [asyncio.create_task(store.await_keys([f"never{index}"], 0.05)) for index in range(50)]
    await asyncio.sleep(0.02)
    for task in cancelled:
        task.cancel()
    ended = await asyncio.gather(*cancelled, *timed_out, return_exceptions=True)
    assert [type(error) for error in ended] == [asyncio.CancelledError] * 50 + [tl.Timeout] * 50
    await asyncio.to_thread(ended_looking, store)


async def test_a_wait_in_a_loop_that_stops_leaves_nothing(store: tl.Store) -> None:
    def stop_in_the_middle() -> None:
        loop = asyncio.new_event_loop()
        waiting = store.await_keys(["never"], 50)
        task = loop.create_task(waiting)
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()
        ended_looking(store)
        # Not awaited any more, and not to be complained about.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        waiting.close()

    await asyncio.to_thread(stop_in_the_middle)


async def test_waits_of_several_loops_are_looked_for_together(store: tl.Store) -> None:
    def wait(index: int) -> None:
        asyncio.run(store.await_keys([f"key{index}"], 20))

    threads = [threading.Thread(target=wait, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    store.put([f"key{index}" for index in range(8)], [1] * 8)
    for thread in threads:
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive()


async def test_a_wait_of_no_time_looks_once_and_says_what_is_missing() -> None:
    with tl.open(SLOW, max_bytes="16MiB") as store:
        store.put(["a"], [1])
        for _ in range(3):
            await store.await_keys(["a"], timeout=0)
        with pytest.raises(tl.Timeout, match="b") as caught:
            await store.await_keys(["a", "b"], timeout=0)
        assert [(failure.key, failure.kind) for failure in caught.value.failures] == [("b", "not_found")]


@pytest.mark.alone
async def test_a_wait_says_how_long_it_has_been(store: tl.Store) -> None:
    began = time.monotonic()
    with pytest.raises(tl.Timeout, match="never") as caught:
        await store.await_keys(["never"], timeout=0.25)
    took = time.monotonic() - began
    (waited,) = re.findall(r"within (\d+) ms", str(caught.value))
    assert 250 <= int(waited) <= 1000 * took + 1
    assert [failure.key for failure in caught.value.failures] == ["never"]


@pytest.mark.alone
async def test_a_wait_that_an_engine_does_not_answer_ends_in_time() -> None:
    store = tl.open("embedded://?capacity=32MiB&faults=slow:4s", max_bytes="16MiB")
    began = time.monotonic()
    with pytest.raises(tl.Timeout) as caught:
        await store.await_keys(["a"], timeout=0.1)
    assert time.monotonic() - began < 3
    assert not caught.value.failures, "nothing is known of the key"
    await asyncio.to_thread(store.close, 0)


async def test_an_engine_that_fails_ends_the_waits_for_what_it_failed_on() -> None:
    with tl.open("embedded://?capacity=32MiB", max_bytes="16MiB") as store:
        watch = store._async_calls.keys
        core = watch._core

        class Failing:
            """Can't look for one key."""

            def contains(self, keys: list[str], **options: Any) -> list[bool]:
                if "bad" in keys:
                    raise tl.TransferError("can't look", failures=[("bad", "refused", 7, "no")])
                return core.contains(keys, **options)

        watch._core = Failing()  # type: ignore[assignment]
        bad = [asyncio.create_task(store.await_keys(["bad", str(index)], 50)) for index in range(3)]
        good = asyncio.create_task(store.await_keys(["good"], 50))
        errors = await asyncio.gather(*bad, return_exceptions=True)
        assert [type(error) for error in errors] == [tl.TransferError] * 3
        assert not good.done()
        store.put(["good"], [1])
        await asyncio.wait_for(good, 20)


async def test_no_keys_are_there_at_once_and_a_closed_store_refuses() -> None:
    store = tl.open("embedded://?capacity=32MiB", max_bytes="16MiB")
    await store.await_keys([], timeout=0)
    await asyncio.to_thread(store.close)
    with pytest.raises(tl.Closed):
        await store.await_keys([])
