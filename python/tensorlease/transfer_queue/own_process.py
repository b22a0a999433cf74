"""Processes that this one starts and that end with it."""

import os
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from tensorlease.errors import ConfigError
from tensorlease.mooncake_master import INSTALL, master_binary
from tensorlease.processes import end_process

PAUSE_SECONDS = 0.05
#: Characters of a log's end that an error shows.
LOG_TAIL = 2000


class OwnProcess:
    """One such process, in a session of its own: Ctrl-C must not end it before the clients that use it.

    :param command: the first word is a program of Mooncake's
    :param port: what tells its log from those of others
    :raises ConfigError: it is not installed
    """

    def __init__(self, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> None:
        program = command[0]
        with _log_of(f"{program}_{port}") as log:
            self.log_path = str(log.name)
            self._log_begin = log.tell()
            self.process = subprocess.Popen(
                [_found(program), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self.owner = os.getpid()
        self._program = program
        # Runs at the interpreter's end after those of stores that were opened later, which still need it.
        self._finalizer = weakref.finalize(self.process, _end, self.process, self.owner)

    @property
    def runs(self) -> bool:
        """Has this very process started it, and does it still run?"""
        return self.owner == os.getpid() and self.process.poll() is None

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Waits until it is ready.

        :raises RuntimeError: it has ended, or is not ready in time
        """
        until = time.monotonic() + seconds
        while not ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self._program} ended with {self.process.returncode}; {self.log_tail()}")
            if time.monotonic() > until:
                raise RuntimeError(f"{self._program} {what} within {seconds:g} s; {self.log_tail()}")
            time.sleep(PAUSE_SECONDS)

    def log_tail(self) -> str:
        try:
            with open(self.log_path, "rb") as log:
                log.seek(self._log_begin)
                text = log.read().decode(errors="replace")
        except OSError as error:
            return f"its log can't be read: {error}"
        return f"the end of its log {self.log_path}:\n{text[-LOG_TAIL:] or 'it wrote nothing'}"

    def stop(self) -> None:
        """Ends it. Idempotent, and does nothing in a forked child."""
        self._finalizer()


def _log_of(name: str) -> IO[bytes]:
    """A file that outlives the process, for whoever has a question then: one per port, so that they don't pile up. Another one that was faster at
    the same port may write there too."""
    path = os.path.join(tempfile.gettempdir(), f"{name}.log")
    try:
        log = open(path, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o644))  # noqa: SIM115 - the caller closes it
        log.seek(0, os.SEEK_END)
        return log
    except OSError:
        # It is another user's.
        return tempfile.NamedTemporaryFile(prefix=f"{name}_", suffix=".log", delete=False)  # noqa: SIM115 - the caller closes it


def _found(program: str) -> str:
    on_path = shutil.which(program)
    if on_path is not None:
        return on_path
    # An environment that was not activated has its programs beside the package.
    beside = master_binary().with_name(program)
    if not beside.exists():
        raise ConfigError(f"there is no {program}; {INSTALL}")
    return str(beside)


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        end_process(process)
