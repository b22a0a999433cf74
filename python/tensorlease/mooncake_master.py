"""What is known of Mooncake's master without its package: its program, how to tell one from another listener, and ports to start one at."""

import contextlib
import importlib.util
import itertools
import random
import socket
from pathlib import Path

from tensorlease.errors import ConfigError, EngineUnavailable

HOST = "127.0.0.1"
INSTALL = "pip install mooncake-transfer-engine-non-cuda (or mooncake-transfer-engine)"
#: Every message of the master's protocol starts with this byte. No master has function 0, which this request asks for.
MASTER_MAGIC = b"\x15"
NO_SUCH_FUNCTION = MASTER_MAGIC + bytes(19)
#: Ports that few programs claim, outside the range of Mooncake's clients (12300 to 17000).
_QUIET_PORTS = range(20_000, 30_000)
#: The range from which the kernel takes the ports of outgoing connections.
_KERNELS_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Ports that `free_port` has returned. Nothing may listen there yet.
_given: set[int] = set()


def master_binary() -> Path:
    """The ``mooncake_master`` of the installed package. A ConfigError where there is none says what to install."""
    spec = importlib.util.find_spec("mooncake")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "mooncake_master"
        if binary.exists():
            return binary
    raise ConfigError(f"there is no mooncake_master; {INSTALL}")


def listens(address: tuple[str, int], seconds: float = 1.0) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=seconds):
        return True
    return False


def free_port(host: str = HOST) -> int:
    """A port on which nothing listens now and which no earlier call returned. An empty `host` means every address of this machine.

    It prefers ports outside the kernel's own range: no outgoing connection takes one of those before the caller listens on it.
    """
    is_quiet = False
    with contextlib.suppress(OSError):
        # Does the kernel leave those ports alone?
        lowest, highest = (int(port) for port in _KERNELS_PORTS.read_text().split())
        is_quiet = _QUIET_PORTS[-1] < lowest or highest < _QUIET_PORTS[0]
    quiet = (random.choice(_QUIET_PORTS) for _ in range(1000 if is_quiet else 0))
    for port in itertools.chain(quiet, itertools.repeat(0, 1000)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            free: int = probe.getsockname()[1]
            if free not in _given:
                _given.add(free)
                return free
    raise EngineUnavailable(f"there is no free port at {host or 'any address'}")
