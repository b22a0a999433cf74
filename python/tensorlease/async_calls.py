"""The store for asyncio: blocking calls in threads of the store's own, and one look of a store for all tasks that wait for keys."""

import asyncio
import contextlib
import copy
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tensorlease._core import CoreStore, Interrupt
from tensorlease.errors import Closed, Error, Interrupted, Timeout

_Result = TypeVar("_Result")

#: Threads per store at most: each may hold a whole read's memory.
THREADS_MAX = 32
#: Pauses between two looks, seconds: doubled up to the longest while no new task comes.
PAUSE_FIRST = 0.001
PAUSE_LONGEST = 0.02
#: A pause is at least so many times as long as the look before it, up to a bound: looking takes a fifth of a core at most.
PAUSE_OF_LOOK = 4
PAUSE_BUSY = 0.1
#: Keys of one look: it holds the GIL while it takes them in.
LOOK_KEYS = 4096
#: A look that has no answer by then is given up, and the next one asks again.
LOOK_SECONDS = 10.0
#: The first look of a task gets so long whatever its timeout is: with 0 it looks once.
LOOK_MIN = 0.4


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
                raise _closed()
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads_max, thread_name_prefix="tensorlease")
            self._running.add(interrupt)
            future = self._executor.submit(call, interrupt)
        future.add_done_callback(lambda _: self._running.discard(interrupt))
        return future


class _Waiter:
    """One task that waits."""

    def __init__(self, keys: Iterable[str], seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.until = time.monotonic() + seconds
        #: Those that no look has found, each once; replaced whole, by the thread that looks.
        self.missing = dict.fromkeys(keys)
        #: Has the engine answered at least once? Set after `missing`.
        self.looked = False

    def settle(self, error: Exception | None) -> None:
        """Ends the wait, from any thread: nothing more is missing, its time is over, or an error."""

        def end() -> None:
            if error is not None and not self.future.done():
                self.future.set_exception(error)
            elif not self.future.done():
                self.future.set_result(None)

        # A loop that is closed refuses, and has no task any more that could wait.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(end)


class KeyWatch:
    """Looks for the keys of all tasks that wait on one store, in a thread that lives while there are any."""

    def __init__(self, core: CoreStore) -> None:
        self._core = core
        self._changed = threading.Condition()
        self._fresh: set[_Waiter] = set()
        self._waiting: set[_Waiter] = set()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._interrupt = Interrupt()
        self._process = os.getpid()

    async def wait(self, keys: list[str], seconds: float) -> None:
        """Returns once all keys are there. A Timeout names those that are not there after so many seconds."""
        begin = time.monotonic()
        waiter = _Waiter(keys, seconds)
        if not waiter.missing:
            return
        self._add(waiter)
        try:
            await asyncio.wait([waiter.future], timeout=seconds)
            if not waiter.looked and not waiter.future.done():
                await asyncio.wait([waiter.future], timeout=LOOK_MIN - seconds)
        finally:
            self._remove(waiter)
            # An error that nobody asks for would be logged as one that was lost.
            if not waiter.future.cancel() and not waiter.future.cancelled():
                waiter.future.exception()
        if not waiter.future.cancelled():
            waiter.future.result()
        missing = list(waiter.missing)
        if missing:
            raise self._core.not_there(missing, waited=time.monotonic() - begin, looked=waiter.looked)

    def stop(self) -> None:
        """Ends all waits as `Closed`; new ones are refused."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._stopped = True
            left = self._fresh | self._waiting
            self._fresh, self._waiting = set(), set()
            self._changed.notify()
        self._interrupt.set()
        for waiter in left:
            waiter.settle(_closed())

    def _add(self, waiter: _Waiter) -> None:
        with self._changed:
            if self._stopped:
                raise _closed()
            if self._thread is None:
                thread = threading.Thread(target=self._look_while_any_waits, name="tensorlease-wait")
                thread.start()
                self._thread = thread
            self._fresh.add(waiter)
            self._changed.notify()

    def _remove(self, waiter: _Waiter) -> None:
        with self._changed:
            self._fresh.discard(waiter)
            self._waiting.discard(waiter)
            if not self._fresh and not self._waiting:
                self._changed.notify()

    def _look_while_any_waits(self) -> None:
        pause, pause_least, ended = PAUSE_FIRST, 0.0, 0.0
        while True:
            with self._changed:
                left = ended + max(pause, pause_least) - time.monotonic()
                self._changed.wait_for(lambda: self._fresh or not self._waiting, timeout=max(left, 0))
                if not self._fresh and not self._waiting:
                    self._thread = None
                    return
                asked, self._fresh = self._fresh, set()
                self._waiting |= asked
                # What a task that has just come waits for is looked for at once, and alone: the others have had their look.
                begin = time.monotonic()
                is_due = ended + max(pause, pause_least) <= begin
                pause = PAUSE_FIRST if asked else min(2 * pause, PAUSE_LONGEST)
                if is_due:
                    asked = set(self._waiting)
            self._look(asked)
            if is_due:
                ended = time.monotonic()
                pause_least = min(PAUSE_OF_LOOK * (ended - begin), PAUSE_BUSY)

    def _look(self, waiters: set[_Waiter]) -> None:
        keys = list(dict.fromkeys(key for waiter in waiters for key in waiter.missing))
        found: set[str] = set()
        try:
            for start in range(0, len(keys), LOOK_KEYS):
                asked = keys[start : start + LOOK_KEYS]
                there = self._core.contains(asked, timeout=LOOK_SECONDS, interrupt=self._interrupt)
                found.update(key for key, is_there in zip(asked, there, strict=True) if is_there)
        except Timeout:
            # Of an engine that does not answer. Each task ends at its own time.
            pass
        except Exception as error:
            self._fail(waiters, error)
            return
        else:
            for waiter in waiters:
                waiter.missing = {key: None for key in waiter.missing if key not in found}
                waiter.looked = True
        now = time.monotonic()
        for waiter in waiters:
            if not waiter.missing or waiter.until <= now or waiter.loop.is_closed():
                self._remove(waiter)
                waiter.settle(None)

    def _fail(self, waiters: set[_Waiter], error: Exception) -> None:
        """Where the error is about single keys, it is that of the tasks that wait for one of them."""
        about = {failure.key for failure in error.failures} if isinstance(error, Error) else set()
        for waiter in waiters:
            if not about or not about.isdisjoint(waiter.missing):
                self._remove(waiter)
                waiter.settle(copy.copy(error))


def _closed() -> Closed:
    return Closed("the store is closed; open a new one")


_live: weakref.WeakSet[AsyncCalls] = weakref.WeakSet()


def _stop_all() -> None:
    for calls in list(_live):
        calls.stop()


# The interpreter joins executor threads before it runs atexit functions, so a call that hangs would keep it from ending; this runs earlier. The
# function is private to the standard library; where it goes away, ending waits for such calls.
_register = getattr(threading, "_register_atexit", None)
if _register is not None:
    _register(_stop_all)
