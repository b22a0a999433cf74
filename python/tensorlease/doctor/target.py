"""What a store URL asks of the machine. The store itself checks the URL; here only the parts are read that the doctor needs."""

import mmap
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote

from tensorlease._core import parse_bytes
from tensorlease.errors import ConfigError

MIB = 1 << 20
#: Locked beside the memory itself: the ring of io_uring, the queues of a network card.
QUEUE_BYTES = MIB
#: Mooncake's own staging where the URL names none.
LOCAL_BUFFER_BYTES = 256 * MIB
#: Mooncake takes no smaller segment, but 0.
SEGMENT_BYTES_MIN = 16 * MIB
#: What the trial gives Mooncake instead: it needs no more, and takes nothing from a running job.
TRIAL_LOCAL_BUFFER_BYTES = 16 * MIB
_PINS = ("hard", "soft", "none")
#: Behind a name, an IPv4 address, or an IPv6 address in brackets.
_PORT = re.compile(r"(?<=[^:]):\d+$")
_FORMAT = "write for example host://, embedded:// or mooncake://127.0.0.1:50051"


@dataclass(frozen=True)
class Target:
    """A store URL, and the budget it will be opened with."""

    url: str
    scheme: str
    host: str
    options: dict[str, str]
    max_bytes: int

    @property
    def is_mooncake(self) -> bool:
        return self.scheme == "mooncake"

    @property
    def is_rdma(self) -> bool:
        return self.is_mooncake and self.options.get("protocol") == "rdma"

    @property
    def is_pinned(self) -> bool:
        return self.scheme == "embedded" and self.options.get("registration") == "pinned"

    @property
    def segment_bytes(self) -> int:
        """What its process contributes to the cluster."""
        return self._size("segment", 0)

    @property
    def local_buffer_bytes(self) -> int:
        """What Mooncake takes for itself."""
        return self._size("local_buffer", LOCAL_BUFFER_BYTES) if self.is_mooncake else 0

    @property
    def memory_bytes(self) -> int:
        """What it takes in all; what copies and embedded objects take comes on top as they come."""
        return self.max_bytes + self.local_buffer_bytes + self.segment_bytes

    @property
    def locked_bytes(self) -> int:
        """What of it must be pinned by the kernel."""
        return self.lockable_bytes if self.is_pinned or self.is_rdma else 0

    @property
    def lockable_bytes(self) -> int:
        """What registration=pinned or RDMA would need, also where this URL needs neither."""
        return self.memory_bytes + QUEUE_BYTES

    @property
    def is_local(self) -> bool:
        return self.master()[0] in ("127.0.0.1", "localhost", "::1")

    @property
    def local_hostname(self) -> str:
        """By which others are to reach its process, without a port; nothing where the URL does not say."""
        return _PORT.sub("", self.options.get("local_hostname", ""))

    def master(self) -> tuple[str, int]:
        """Its host and its port; a ConfigError where the URL has none."""
        host, _, port = self.host.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"{self.url!r} names no master; write mooncake://HOST:PORT")
        return host.strip("[]"), int(port)

    def trial_url(self) -> str:
        """The same store for a short trial: it contributes nothing, takes little, can't be mistaken for a running one, and leaves nothing pinned."""
        if not self.is_mooncake:
            return self._with(self.options, faults=None)
        little = str(min(self.local_buffer_bytes, TRIAL_LOCAL_BUFFER_BYTES))
        nothing = {"faults": None, "segment": None, "local_hostname": self.local_hostname or None}
        return self._with(self.options, local_buffer=little, pin="none", **nothing)

    def faults_url(self) -> str | None:
        """A store that needs nothing and opens where the faults of this URL can be read; None where it has none."""
        spec = self.options.get("faults")
        return None if spec is None else f"embedded://?faults={quote(spec, safe=':+')}"

    def segment_url(self, size: str) -> str:
        """A store of the same cluster that contributes memory."""
        kept = {name: value for name, value in self.options.items() if name in ("protocol", "device", "metadata")}
        return self._with(kept, segment=size)

    def _with(self, options: dict[str, str], **changes: str | None) -> str:
        changed = {name: value for name, value in (options | changes).items() if value is not None}
        query = "&".join(f"{name}={quote(value, safe=':/,+')}" for name, value in changed.items())
        return f"{self.scheme}://{self.host}" + (f"?{query}" if query else "")

    def _size(self, name: str, default: int) -> int:
        text = self.options.get(name)
        return default if text is None else parse_bytes(text, name)


def target(url: str, max_bytes: int) -> Target:
    """Reads a URL. A ConfigError where it is none, or has a size or a pin that says nothing."""
    scheme, found, rest = url.partition("://")
    if not found or scheme not in ("embedded", "host", "mooncake"):
        raise ConfigError(f"{url!r} is no URL of a store; {_FORMAT}")
    host, _, query = rest.partition("?")
    # A plus is a plus in a store URL.
    pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ConfigError(f"an option stands twice in {url!r}; write it once")
    read = Target(url, scheme, host.rstrip("/"), options, max_bytes)
    # Read here, so that a wrong size is found before anything is tried.
    _ = read.memory_bytes
    if max_bytes < mmap.PAGESIZE:
        raise ConfigError(f"max_bytes={max_bytes} is less than one page; give at least {mmap.PAGESIZE}")
    # The trial contributes no segment, so that the store itself does not see this one.
    if read.is_mooncake and 0 < read.segment_bytes < SEGMENT_BYTES_MIN:
        raise ConfigError(f"segment={read.segment_bytes} is too small; give 0, or {SEGMENT_BYTES_MIN} bytes and more")
    if read.is_mooncake and options.get("pin", "hard") not in _PINS:
        raise ConfigError(f"pin={options['pin']!r} is unknown; allowed are {', '.join(_PINS)}")
    return read
