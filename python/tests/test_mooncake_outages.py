"""Mooncake when something is gone: no master, a dead one, a segment whose owner is dead or stands still."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from mooncake_rig import (
    Running,
    cluster,
    counted,
    owned_cluster,
    owner_of,
    paused,
    require_mooncake,
    ticking,
    wait_until,
)
from tensors import assert_same, filled

import tensorlease as tl
from bench.cluster import Master, SegmentOwner, stop_process
from tensorlease.mooncake_master import HOST, free_port

pytestmark = pytest.mark.freezes

#: Large enough to be leased from the arena.
ROW = (32768,)
#: An error must come within this; the probe of the address has 5 s by default.
OPEN_SECONDS = 8.0
#: Other Python threads must never stand still for this long.
STILL_SECONDS = 3.0
#: Mooncake looks for its master again for 4 to 5 s before a call fails.
DEAD_MASTER_SECONDS = 30.0


# ---- opening ----------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def nobody() -> Iterator[int]:
    """A port that nothing listens on."""
    yield free_port()


@contextlib.contextmanager
def full_backlog() -> Iterator[int]:
    """A port that lets nobody in: connecting to it hangs."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((HOST, 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((HOST, port))
        yield port


@contextlib.contextmanager
def other_service() -> Iterator[int]:
    """A port of something that hangs up on what it does not understand."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(64)
        thread = threading.Thread(target=hang_up, args=[listener], daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        # Wakes the thread out of its wait.
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def hang_up(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.close()


@contextlib.contextmanager
def hanging_master() -> Iterator[int]:
    """A real master that stands still."""
    with cluster() as master:
        stop_process(master.process)
        yield master.port


AT_THE_ADDRESS = [nobody, other_service, hanging_master]


@pytest.mark.parametrize("at_the_address", AT_THE_ADDRESS, ids=lambda it: it.__name__)
def test_where_no_master_answers_opening_ends_soon_and_stops_no_other_thread(
    at_the_address: Callable[[], contextlib.AbstractContextManager[int]],
) -> None:
    require_mooncake()
    with at_the_address() as port, ticking() as longest_pause:
        started = time.monotonic()
        with pytest.raises(tl.EngineUnavailable, match=f"{HOST}:{port}.*start mooncake_master"):
            tl.open(f"mooncake://{HOST}:{port}", max_bytes="16MiB")
        assert time.monotonic() - started < OPEN_SECONDS
        assert longest_pause() < STILL_SECONDS


def test_connect_timeout_bounds_the_wait_for_a_master() -> None:
    require_mooncake()
    with full_backlog() as port, ticking() as longest_pause:
        started = time.monotonic()
        with pytest.raises(tl.EngineUnavailable, match=f"{HOST}:{port}"):
            tl.open(f"mooncake://{HOST}:{port}?connect_timeout=0.5", max_bytes="16MiB")
        # Far from the default of 5 s.
        assert time.monotonic() - started < 4.0
        assert longest_pause() < STILL_SECONDS


def test_a_host_that_has_no_address_is_named() -> None:
    require_mooncake()
    with pytest.raises(tl.EngineUnavailable, match="no-such-host.invalid:50051"):
        tl.open("mooncake://no-such-host.invalid:50051?connect_timeout=1", max_bytes="16MiB")


# ---- a master that is killed and started again ---------------------------------------------------------------------------------


@pytest.mark.timeout(150)
def test_a_master_that_is_killed_and_started_again_is_an_error_meanwhile_and_then_works() -> None:
    with (
        owned_cluster("64MiB") as (master, _),
        tl.open(master.url(local_buffer="16MiB"), max_bytes="32MiB") as store,
        ticking() as longest_pause,
    ):
        value = filled(ROW)
        store.put(["before"], [value])
        master.process.kill()
        master.process.wait()
        calls = [
            Running(lambda: store.get(["before"], [ROW], torch.float32, timeout=DEAD_MASTER_SECONDS)),
            Running(lambda: store.put(["new"], [value], timeout=DEAD_MASTER_SECONDS)),
            Running(lambda: store.contains(["before"], timeout=DEAD_MASTER_SECONDS)),
            Running(lambda: store.remove(["before"], timeout=DEAD_MASTER_SECONDS)),
        ]
        for call in calls:
            with pytest.raises(tl.EngineUnavailable, match="master does not answer"):
                call.result()
        with pytest.raises(tl.Timeout):
            store.get(["before"], [ROW], torch.float32, timeout=0.5)
        with Master(port=master.port):
            wait_until(lambda: stores(store, "after", value), "the owner of the segment and this store have come back")
            assert_same(store.get(["after"], [ROW], torch.float32)[0], value)
            # The new master knows nothing of before.
            with pytest.raises(tl.KeyNotFound):
                store.get(["before"], [ROW], torch.float32)
            assert longest_pause() < STILL_SECONDS
            wait_until(lambda: nothing_held(store), "the calls that were given up have returned")


def stores(store: tl.Store, key: str, value: torch.Tensor) -> bool:
    """Does a put work?"""
    try:
        store.put([key], [value], timeout=DEAD_MASTER_SECONDS)
    except (tl.StoreFull, tl.EngineUnavailable):
        return False
    return True


def nothing_held(store: tl.Store) -> bool:
    stats = store.stats()
    return not any(stats[name] for name in ["in_flight_bytes", "leased_bytes", "abandoned_running_calls"])


# ---- a segment whose owner is killed -----------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pool", [{}, {"pool": "store", "force": 1}], ids=["pool=own", "pool=store"])
def test_when_the_owner_of_a_segment_is_killed_reads_fail_then_its_keys_are_gone(pool: dict[str, object]) -> None:
    with (
        owned_cluster("64MiB", arguments=["-client_ttl=2"]) as (master, owner),
        tl.open(master.url(local_buffer="16MiB", **pool), max_bytes="32MiB") as store,
    ):
        value = filled(ROW)
        store.put(["lost"], [value])
        owner.kill()
        with (
            counted(store) as gained,
            pytest.raises(
                tl.TransferError, match="process that owns the segment has ended.* or the link to it is down.*try again"
            ) as caught,
        ):
            store.get(["lost"], [ROW], torch.float32, timeout=20)
        assert [(failure.key, failure.code) for failure in caught.value.failures] == [("lost", -800)]
        assert gained["retries"] == 3
        wait_until(lambda: not store.contains(["lost"])[0], "the master has given the owner up")
        with pytest.raises(tl.KeyNotFound):
            store.get(["lost"], [ROW], torch.float32)
        with pytest.raises(tl.StoreFull, match="segment"):
            store.put(["lost"], [value])
        assert nothing_held(store)
        with owner_of(master, "64MiB"):
            store.put(["lost"], [value])
            assert_same(store.get(["lost"], [ROW], torch.float32)[0], value)
        assert store.stats()["fallback_reads"] == 0
        assert store.stats()["quarantined_bytes"] == 0


# ---- a segment whose owner stands still --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stalling() -> Iterator[tuple[Master, SegmentOwner]]:
    """A cluster with an object under "held" whose owner may be made to stand still."""
    with owned_cluster("64MiB") as (master, owner):
        with tl.open(master.url(local_buffer="16MiB"), max_bytes="32MiB") as store:
            store.put(["held"], [torch.arange(32768.0)])
        yield master, owner


def test_a_timeout_ends_calls_on_a_segment_that_hangs_and_closing_stays_bounded(
    stalling: tuple[Master, SegmentOwner],
) -> None:
    master, owner = stalling
    store = tl.open(master.url(local_buffer="16MiB"), max_bytes="32MiB")
    with paused(owner), ticking() as longest_pause:
        started = time.monotonic()
        with pytest.raises(tl.Timeout):
            store.get(["held"], [ROW], torch.float32, timeout=0.5)
        with pytest.raises(tl.Timeout):
            store.put(["new"], [filled(ROW)], timeout=0.5)
        assert time.monotonic() - started < 5
        assert store.stats()["abandoned_running_calls"] == 2
        # Mooncake may still write there: it is nobody else's until the call has returned.
        assert store.stats()["in_flight_bytes"] > 0
        started = time.monotonic()
        store.close(timeout=1)
        assert time.monotonic() - started < 8
        assert longest_pause() < STILL_SECONDS
    with pytest.raises(tl.Closed):
        store.get(["held"], [ROW], torch.float32)


def test_what_was_given_up_comes_back_when_the_segment_goes_on(stalling: tuple[Master, SegmentOwner]) -> None:
    master, owner = stalling
    with tl.open(master.url(local_buffer="16MiB"), max_bytes="32MiB") as store:
        with paused(owner):
            with pytest.raises(tl.Timeout):
                store.get(["held"], [ROW], torch.float32, timeout=0.3)
            waiting = Running(lambda: store.get(["held"], [ROW], torch.float32))
            assert not waiting.ended_within(0.3)
        assert_same(waiting.result()[0], torch.arange(32768.0))
        wait_until(lambda: store.stats()["abandoned_running_calls"] == 0, "the call that was given up has returned")
        del waiting
        wait_until(lambda: nothing_held(store), "its block is free again")


INTERRUPTED = """
import signal, sys, tensorlease as tl
signal.signal(signal.SIGINT, signal.default_int_handler)
store = tl.open(sys.argv[1], max_bytes="32MiB")
print("reading", flush=True)
try:
    store.get(["held"], [(32768,)], "float32")
except KeyboardInterrupt:
    print("interrupted", flush=True)
store.close(timeout=0.5)
print("closed", flush=True)
"""


def test_ctrl_c_ends_a_read_that_hangs_at_once(stalling: tuple[Master, SegmentOwner]) -> None:
    master, owner = stalling
    command = [sys.executable, "-c", INTERRUPTED, master.url(local_buffer="16MiB")]
    with (
        paused(owner),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as reader,
    ):
        assert reader.stdout is not None
        try:
            assert reader.stdout.readline() == "reading\n"
            # Long enough for the read to hang in Mooncake.
            time.sleep(0.5)
            reader.send_signal(signal.SIGINT)
            started = time.monotonic()
            assert reader.stdout.readline() == "interrupted\n"
            assert time.monotonic() - started < 3
            assert reader.stdout.readline() == "closed\n"
            assert reader.wait(20) == 0
        finally:
            reader.kill()


FORKED = """
import os, sys, tensorlease as tl
with tl.open(sys.argv[1], max_bytes="16MiB"):
    child = os.fork()
    if child == 0:
        try:
            tl.open(sys.argv[1], max_bytes="16MiB")
        except tl.EngineUnavailable as error:
            os.write(1, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_child_forked_from_a_user_of_mooncake_is_refused_at_once(stalling: tuple[Master, SegmentOwner]) -> None:
    command = [sys.executable, "-c", FORKED, stalling[0].url(local_buffer="16MiB")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "forked" in done.stdout and "spawn" in done.stdout
