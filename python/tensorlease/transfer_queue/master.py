"""Processes of Mooncake's that this one starts and that end with it; above all masters: is there one at an address, and one of our own."""

import contextlib
import logging
import os
import shutil
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple, Self
from urllib.parse import urlsplit

from tensorlease.errors import ConfigError
from tensorlease.mooncake_master import INSTALL, MASTER_MAGIC, NO_SUCH_FUNCTION, free_port, listens, master_binary
from tensorlease.processes import end_process, listens_at

PAUSE_SECONDS = 0.05
#: Characters of a log's end that an error shows.
LOG_TAIL = 2000
START_SECONDS = 30.0
#: How many times a master is started: where it was to serve its metrics may be another's by then.
STARTS_MAX = 3
#: For a connection, and for an answer.
ANSWER_SECONDS = 2.0
#: Where a master serves its metrics unless it is told.
METRICS_PORT = 9003

_logger = logging.getLogger("tensorlease")


class OwnProcess:
    """One such process, in a session of its own: Ctrl-C must not end it before the clients that use it. Its port tells its log from others'."""

    def __init__(self, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> None:
        self._program = command[0]
        with _log_of(f"{self._program}_{port}") as log:
            self.log_path = str(log.name)
            self._log_begin = log.tell()
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            told = [_found(self._program), *command[1:]]
            self.process = subprocess.Popen(told, env=environment, start_new_session=True, **streams)
        self.owner = os.getpid()
        # Runs at the interpreter's end after those of stores that were opened later, which still need it.
        self._finalizer = weakref.finalize(self.process, _end, self.process, self.owner)

    @property
    def runs(self) -> bool:
        """Has this very process started it, and does it still run?"""
        return self.owner == os.getpid() and self.process.poll() is None

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Waits until it is ready. A RuntimeError where it has ended, or is not ready in time."""
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


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str, name: str) -> Self:
        """From ``host:port``, with or without a scheme. A ValueError names the setting."""
        with contextlib.suppress(ValueError):
            parts = urlsplit(text if "://" in text else f"//{text}")
            if parts.hostname and parts.port:
                return cls(parts.hostname, parts.port)
        raise ValueError(f"Invalid {name} '{text}'. Host and port are required (e.g., host:port).")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def listens(self) -> bool:
        return listens(self, ANSWER_SECONDS)


_started: dict[Address, OwnProcess] = {}


def own_at(address: Address) -> OwnProcess | None:
    """The master that this process has started there and that still runs."""
    master = _started.get(address)
    return master if master is not None and master.runs else None


def answers(address: Address) -> bool:
    """Is there a master? A RuntimeError where something else listens there, or one that does not answer."""
    try:
        connection = socket.create_connection(address, timeout=ANSWER_SECONDS)
    except OSError:
        return False
    first = b""
    with connection, contextlib.suppress(OSError):
        try:
            connection.sendall(NO_SUCH_FUNCTION)
            first = connection.recv(1)
        except TimeoutError:
            hangs = f"what listens at {address} does not answer; is it a mooncake_master that hangs?"
            raise RuntimeError(hangs) from None
    if first != MASTER_MAGIC:
        raise RuntimeError(f"what listens at {address} is no mooncake_master; configure another master_server_address")
    return True


def start(address: Address, metadata: Address | None, arguments: Sequence[str]) -> OwnProcess | None:
    """Starts a master and waits until it, and its metadata server, answer. None: somebody else's was faster, and answers."""
    if not _is_ours(address.host):
        silent = f"no mooncake_master answers at {address}, and {address.host} is no address of this machine"
        ours = "configure an address of this machine as master_server_address"
        raise RuntimeError(f"{silent}: start one there, or {ours}")
    for starts_left in reversed(range(STARTS_MAX)):
        metrics = [] if _is_free(METRICS_PORT) else [f"-metrics_port={free_port('')}"]
        master = OwnProcess(["mooncake_master", *arguments, *metrics], address.port)
        try:
            _wait_until_ready(master, address, metadata)
            break
        except BaseException as error:
            ended = isinstance(error, RuntimeError) and master.process.poll() is not None
            master.stop()
            # What answers is another's that was faster. Then this one ended, since only one can listen there.
            if ended and _answers_now(address):
                _logger.warning("another mooncake_master was started at %s meanwhile and is used", address)
                return None
            if not (ended and starts_left):
                raise
    _started[address] = master
    _logger.info("mooncake_master runs at %s, pid %d, log %s", address, master.process.pid, master.log_path)
    return master


def _wait_until_ready(master: OwnProcess, address: Address, metadata: Address | None) -> None:
    def is_ready() -> bool:
        answers = _answers_now(address) and (metadata is None or metadata.listens())
        # That it answers itself: another's may have been faster.
        return answers and listens_at(master.process, address.port)

    master.wait_until(is_ready, START_SECONDS, "does not answer")


def _answers_now(address: Address) -> bool:
    """One that is just starting may take the connection and not answer yet."""
    with contextlib.suppress(RuntimeError):
        return answers(address)
    return False


def _is_ours(host: str) -> bool:
    """Can something listen there? What has no address is none of this machine's."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, where in addresses:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
            return True
    return False


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
        return True
    return False
