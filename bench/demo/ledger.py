"""What passes between rollout and trainer beside the store: checksums, and how far the trainer is."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """What the rollout kept of a sample. `meta_handle` is what `put` returned for the sample's dict."""

    checksums: dict[str, int]
    meta: dict[str, str]
    meta_handle: Any


class Ledger:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: dict[tuple[int, int], Entry] = {}
        self._finished_steps = 0

    def record(self, step: int, index: int, entry: Entry) -> None:
        """Called before the sample is in the store, so that whoever finds the sample finds its entry."""
        with self._changed:
            self._entries[step, index] = entry
            self._changed.notify_all()

    def take(self, step: int, samples: int) -> list[Entry]:
        """The entries of a whole step, which are forgotten here."""
        with self._changed:
            return [self._entries.pop((step, index)) for index in range(samples)]

    def has(self, step: int, samples: int, timeout_seconds: float) -> bool:
        """Are all entries of the step there, now or within the time?"""
        with self._changed:
            return self._changed.wait_for(
                lambda: all((step, index) in self._entries for index in range(samples)), timeout_seconds
            )

    def finish_step(self) -> None:
        """The trainer has removed a step from the store."""
        with self._changed:
            self._finished_steps += 1
            self._changed.notify_all()

    def wait_for_finished(self, steps: int, timeout_seconds: float) -> bool:
        """Has the trainer finished so many steps, now or within the time?"""
        with self._changed:
            return self._changed.wait_for(lambda: self._finished_steps >= steps, timeout_seconds)
