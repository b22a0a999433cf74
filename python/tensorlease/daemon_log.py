"""What a daemon says. A full disk, or an output that is closed or not read, ends no daemon."""

import contextlib
import logging
import os
import select
from collections.abc import Iterator

#: Longest line, bytes: a pipe that takes anything takes so much at once.
LINE_BYTES_MAX = 4000


class DaemonLog(logging.Handler):
    """Lines on a descriptor. What can't be written at once is dropped; the next line that can be says how many were."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(logging.WARNING)
        self._descriptor = descriptor
        self.dropped = 0

    def say(self, line: str) -> None:
        """Writes one line, or drops it. Never waits, and never raises."""
        text = os.fsencode(line)[:LINE_BYTES_MAX] + b"\n"
        with self.lock or contextlib.nullcontext():
            if self.dropped:
                text = b"tensorlease: %d lines before this one could not be written\n" % self.dropped + text
            self.dropped = 0 if self._written(text) else self.dropped + 1

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.say(self.format(record))
        except Exception:  # noqa: BLE001 - what `logging` asks of a handler
            self.handleError(record)

    @contextlib.contextmanager
    def of_this_package(self) -> Iterator[None]:
        """Warnings and errors of this package go here."""
        logger = logging.getLogger("tensorlease")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)

    def _written(self, text: bytes) -> bool:
        try:
            looked = select.poll()
            looked.register(self._descriptor, select.POLLOUT)
            # A pipe that nobody reads would hold the daemon until somebody does.
            if not any(events & select.POLLOUT for _, events in looked.poll(0)):
                return False
            return os.write(self._descriptor, text) == len(text)
        except OSError:
            return False
