"""Clients and daemons of a host that are killed, stopped and continued at random: no wrong byte, nothing left, nothing hangs.

A short form; `TENSORLEASE_CHAOS=1` makes it 500 rounds of clients and 50 of daemons.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from host_rig import Served, eventually, place, served

from bench.cluster import stop_process

pytest.importorskip("numpy")

FULL = os.environ.get("TENSORLEASE_CHAOS") == "1"
CLIENT_ROUNDS = 500 if FULL else 24
DAEMON_ROUNDS = 50 if FULL else 3
WORKERS = 4
#: What a worker exits with when it read wrong bytes.
WRONG = 3

pytestmark = [pytest.mark.alone, pytest.mark.timeout(0 if FULL else 180)]


def seeded() -> random.Random:
    """Another course each time; what a failure shows of the output has the seed."""
    seed = int(os.environ.get("TENSORLEASE_CHAOS_SEED") or time.time())
    print(f"TENSORLEASE_CHAOS_SEED={seed}")
    return random.Random(seed)


class Workers:
    """Processes that work on a store until they are killed; a new one takes the place of each."""

    def __init__(self, url: str, random_: random.Random) -> None:
        self.url = url
        self.random = random_
        self.running: list[subprocess.Popen[str]] = []

    def add(self) -> None:
        worker = str(Path(__file__).with_name("host_worker.py"))
        seed = str(self.random.randrange(1 << 30))
        process = subprocess.Popen([sys.executable, worker, self.url, seed], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self.running.append(process)
        assert process.stdout.readline() == "ready\n"

    def kill(self, process: subprocess.Popen[str]) -> None:
        self.running.remove(process)
        process.kill()
        printed, _ = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGKILL, printed

    def check(self) -> None:
        for process in self.running:
            assert process.poll() is None, f"a worker ended with {process.returncode}"


@contextlib.contextmanager
def workers(url: str, random_: random.Random) -> Iterator[Workers]:
    these = Workers(url, random_)
    try:
        for _ in range(WORKERS):
            these.add()
        yield these
    finally:
        for process in list(these.running):
            process.kill()
            process.communicate()


def nothing_is_left(daemon: Served) -> bool:
    report = daemon.report()
    others = [row for row in report["clients"] if row["pid"] != os.getpid()]
    return not others and sum(row["arena_bytes"] + row["pinned_objects"] for row in report["clients"]) == 0


def all_are_back(daemon: Served) -> bool:
    return len({row["pid"] for row in daemon.clients()}) == WORKERS


def test_clients_are_killed_stopped_and_continued() -> None:
    random_ = seeded()
    with place() as folder, served(folder / "host.sock", "--max-bytes", "192MiB", "--keep") as daemon:
        with workers(daemon.url, random_) as these:
            for _ in range(CLIENT_ROUNDS):
                time.sleep(random_.random() * 0.1)
                victim = random_.choice(these.running)
                if random_.random() < 0.5:
                    stop_process(victim)
                    time.sleep(random_.random() * 0.1)
                    if random_.random() < 0.5:
                        victim.send_signal(signal.SIGCONT)
                        continue
                these.kill(victim)
                these.add()
                these.check()
        eventually("the end of all that dead clients held", lambda: nothing_is_left(daemon))


def test_the_daemon_is_killed_under_load() -> None:
    random_ = seeded()
    with place() as folder:
        socket = folder / "host.sock"
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(served(socket, "--max-bytes", "192MiB", "--keep"))
            these = stack.enter_context(workers(daemon.url, random_))
            for _ in range(DAEMON_ROUNDS):
                time.sleep(0.2 + random_.random() * 0.3)
                daemon.process.kill()
                daemon.process.wait()
                daemon = stack.enter_context(served(socket, "--max-bytes", "192MiB", "--keep"))
                eventually("the workers' return", partial(all_are_back, daemon))
                these.check()
