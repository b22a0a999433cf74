"""Ends a host's daemon, after saying what is lost with it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

from tensorlease._core import host_holder
from tensorlease.errors import ConfigError, EngineUnavailable
from tensorlease.host import counted, is_absent, is_own_store, namespace_rows, report
from tensorlease.processes import holds_open, is_stopped
from tensorlease.sizes import format_bytes

#: A daemon ends within two seconds, and within twelve where an engine behind it does not close.
END_SECONDS = 20.0


def stop(place: str, *, asks: bool) -> bool:
    """Ends the daemon at a socket, and says so. False: the user, who is asked first where something may be lost, did not want it."""
    found = _found(place)
    if found is None:
        print(f"no daemon runs at {place}")
        return True
    process, held, loses = found
    with _Watched(process, place) as watched:
        print(held)
        if is_stopped(process):
            print("It is stopped (SIGSTOP), and goes on so that it can end.")
        if asks and loses and not _agreed():
            print("It goes on.")
            return False
        watched.end()
    print(f"The daemon (process {process}) has ended.")
    return True


def _found(place: str) -> tuple[int, str, bool] | None:
    """The process of the daemon, what is lost with it in words, and whether anything may be. None: there is none."""
    try:
        told = report(place)
    except EngineUnavailable as error:
        if is_absent(place):
            return None
        process = host_holder(place)
        # Another user's lock can't be looked at.
        if process is None:
            raise
        if process == 0:
            end = f"Its lock does not say which process it is (`fuser {place}.lock` may): end that with `kill`"
            raise EngineUnavailable(f"{error}. {end}") from error
        return process, f"The daemon at {place} is process {process}. What it holds can't be asked: {error}", True
    if not told["clients"] and not told["objects"] and is_own_store(told):
        return told["pid"], f"The daemon at {place} (process {told['pid']}) has no object and no client.", False
    return told["pid"], _held(place, told), True


def _held(place: str, told: dict[str, Any]) -> str:
    lines = [f"The daemon at {place} (process {told['pid']}) is to end. Lost with it:"]
    if is_own_store(told):
        lines.append(f"  {counted(told['objects'], 'object')} of {format_bytes(told['object_bytes'])}")
        rows = namespace_rows(told)
        # One row without a name says nothing new.
        if any(row["namespace"] for row in told["namespaces"]):
            lines += [f"    {objects} of {format_bytes(count)} in namespace {name}" for name, objects, count in rows]
    else:
        own = f"what lies in its own segment of {told['engine']}"
        lines.append(f"  {own}, and the calls on that which it runs for its clients")
    clients = counted(len(told["clients"]), "client")
    lines.append(f"  the connections of {clients}; their calls fail, what they have leased stays readable")
    for client in told["clients"]:
        lines.append(
            f"    process {client['pid']}: {format_bytes(client['arena_bytes'])} of its arena, "
            f"{counted(client['pinned_objects'], 'object')} pinned, {format_bytes(client['in_flight_bytes'])} in flight"
        )
    return "\n".join(lines)


def _agreed() -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        silent = "there is no terminal to ask on: say --yes"
        raise ConfigError(f"tensorlease stop asks before it ends a daemon, and {silent}")
    with contextlib.suppress(EOFError):
        return input("End it? [y/N] ").strip().lower() in ("y", "yes")
    return False


class _Watched:
    """A daemon's process. No other one is taken for it: not one that gets its number later, nor the one that has its
    number in this PID namespace where the daemon runs in another."""

    def __init__(self, process: int, place: str) -> None:
        self._process = process
        self._place = place
        self._descriptor = -1

    def __enter__(self) -> _Watched:
        with contextlib.suppress(ProcessLookupError):
            self._descriptor = os.pidfd_open(self._process)
            if holds_open(self._process, Path(f"{self._place}.lock")):
                return self
            os.close(self._descriptor)
        raise EngineUnavailable(
            f"the daemon at {self._place} says that it is process {self._process}, and here that is none, or another: "
            "it has ended just now, or runs in another PID namespace (a container); end it there"
        )

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def end(self) -> None:
        # A stopped process takes no SIGTERM before it goes on.
        for number in (signal.SIGTERM, signal.SIGCONT):
            try:
                signal.pidfd_send_signal(self._descriptor, number)
            except ProcessLookupError:
                return
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        if not ended.poll(END_SECONDS * 1000):
            raise EngineUnavailable(
                f"the daemon (process {self._process}) was told to end, and has not within {END_SECONDS:.0f} s; "
                f"`kill -9 {self._process}` ends it at once"
            )
