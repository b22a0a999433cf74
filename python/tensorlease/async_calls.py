"""Blocking calls for asyncio, in threads of the store's own."""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tensorlease._core import CoreStore, Interrupt
from tensorlease.errors import Closed, Interrupted
from tensorlease.key_watch import KeyWatch

_Result = TypeVar("_Result")

#: Threads per store at most: each may hold a whole read's memory.
THREADS_MAX = 32


class AsyncCalls:
    """Runs calls in at most `2 * readers` threads; a cancelled task ends its call. Waits for keys hold none of them."""

    def __init__(self, readers: int, core: CoreStore) -> None:
        self.keys = KeyWatch(core)
        self._threads_max = min(max(2 * readers, 4), THREADS_MAX)
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._running: set[Interrupt] = set()
        self._stopped = False
        self._process = os.getpid()
        _live.add(self)

    async def run(self, call: Callable[[Interrupt], _Result]) -> _Result:
        """Awaits `call`, which ends early when its interrupt is set."""
        interrupt = Interrupt()
        # Not the future's own result: a cancelled task's traceback refers to the future, and would keep tensors until the cycle collector runs.
        outcome: list[_Result] = []

        def deliver(interrupt: Interrupt) -> None:
            outcome.append(call(interrupt))
            if interrupt.is_set():
                outcome.clear()

        future = self._submit(deliver, interrupt)
        task = asyncio.current_task()
        cancelled_before = task.cancelling() if task else 0
        try:
            await asyncio.wrap_future(future)
            return outcome.pop()
        except (asyncio.CancelledError, Interrupted) as error:
            interrupt.set()
            # A task that is cancelled stays so, whatever else has ended the call.
            if self._stopped and (task is None or task.cancelling() <= cancelled_before):
                raise Closed("the store was closed while this call was waiting or running; open a new one") from error
            raise
        finally:
            outcome.clear()

    def stop(self) -> None:
        """Ends waiting and running calls as `Closed`; new ones are refused."""
        if os.getpid() != self._process:
            # The threads, and whoever held the lock, are in the parent.
            return
        with self._lock:
            self._stopped = True
            running = list(self._running)
            executor, self._executor = self._executor, None
        for interrupt in running:
            interrupt.set()
        self.keys.stop()
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def _submit(self, call: Callable[[Interrupt], None], interrupt: Interrupt) -> Future[None]:
        if os.getpid() != self._process:
            raise Closed("this store was opened before this process was forked; open a new one in the child")
        with self._lock:
            if self._stopped:
                raise Closed("the store is closed; open a new one")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads_max, thread_name_prefix="tensorlease")
            self._running.add(interrupt)
            future = self._executor.submit(call, interrupt)
        future.add_done_callback(lambda _: self._running.discard(interrupt))
        return future


_live: weakref.WeakSet[AsyncCalls] = weakref.WeakSet()


def _stop_all() -> None:
    for calls in list(_live):
        calls.stop()


# The interpreter joins executor threads before it runs atexit functions, so a call that hangs would keep it from ending; this runs earlier. The
# function is private to the standard library; where it goes away, ending waits for such calls.
_register = getattr(threading, "_register_atexit", None)
if _register is not None:
    _register(_stop_all)
