"""Masters: is there one at an address, and one of our own where there is none."""

import contextlib
import logging
import socket
from collections.abc import Sequence
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from tensorlease.mooncake_master import MASTER_MAGIC, NO_SUCH_FUNCTION, free_port, listens
from tensorlease.processes import listens_at
from tensorlease.transfer_queue.own_process import OwnProcess

START_SECONDS = 30.0
#: How many times a master is started: where it was to serve its metrics may be another's by then.
STARTS_MAX = 3
#: For a connection, and for an answer.
ANSWER_SECONDS = 2.0
#: Where a master serves its metrics unless it is told.
METRICS_PORT = 9003

_logger = logging.getLogger("tensorlease")


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str, name: str) -> Self:
        """From ``host:port``, with or without a scheme.

        :raises ValueError: it has no host or no port; the message names the setting
        """
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
    """Is there a master?

    :raises RuntimeError: something listens there that is no master, or one that does not answer
    """
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
    """Starts a master and waits until it, and its metadata server, answer. None: somebody else's was faster, and answers.

    :raises RuntimeError: it does not start
    """
    if not _is_ours(address.host):
        raise RuntimeError(
            f"no mooncake_master answers at {address}, and {address.host} is no address of this machine: start one there, or configure an "
            "address of this machine as master_server_address"
        )
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
    """That it answers itself: another's may have been faster."""
    master.wait_until(
        lambda: _ready(address, metadata) and listens_at(master.process, address.port), START_SECONDS, "does not answer"
    )


def _ready(address: Address, metadata: Address | None) -> bool:
    return _answers_now(address) and (metadata is None or metadata.listens())


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
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
