"""What TransferQueue's configuration says, as a store URL and options of `tensorlease.open`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from tensorlease._core import parse_bytes
from tensorlease.errors import ConfigError
from tensorlease.transfer_queue import released

#: Where our own settings lie: `backend.MooncakeStore.tensorlease`.
SECTION = "tensorlease"
DELIVERIES = ("auto", "leased", "copied")
#: Transports that a store of ours speaks. TransferQueue's client passes any other name on to Mooncake.
PROTOCOLS = ("tcp", "rdma")
#: Transports that move bytes to registered memory only.
REGISTERING = ("rdma",)
READERS_MAX = 256

SEGMENT_BYTES = 4 << 30
LOCAL_BUFFER_BYTES = 1 << 30
STAGING_MB = 1024


@dataclass(frozen=True)
class Tuning:
    """Our own settings. Sizes are bytes, or text such as ``"2GiB"``."""

    #: Bound of the memory that reads land in, in this process.
    max_bytes: int | str = "1GiB"
    #: How much of it is made, and registered, when the client is made; None: all of it where the transport needs registered memory, so
    #: that no put or get registers anything, and else nothing.
    prewarm: int | str | None = None
    #: Threads that run transfers.
    readers: int = 4
    #: How bytes reach the caller: `DELIVERIES`.
    delivery: str = "auto"
    #: True: what can't go the fast way is an error that names the reason.
    strict: bool = False
    #: True: columns come back dense where all rows agree.
    dense: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Tuning:
        """From the configuration of the backend. A ConfigError where a name is unknown, or a value is wrong."""
        section = config.get(SECTION)
        if section is None:
            return cls()
        names = list(cls.__dataclass_fields__)
        if not hasattr(section, "keys"):
            raise ConfigError(f"backend.MooncakeStore.{SECTION} is {section!r}; give a section with {', '.join(names)}")
        unknown = ", ".join(repr(name) for name in section if name not in names)
        if unknown:
            told = f"backend.MooncakeStore.{SECTION} has no setting {unknown}"
            raise ConfigError(f"{told}; allowed are {', '.join(names)}")
        # None, an empty line in a YAML file, leaves the default.
        tuning = cls(**{name: section[name] for name in section if section[name] is not None})
        tuning._check()
        return tuning

    def _check(self) -> None:
        if self.delivery not in DELIVERIES:
            raise _wrong("delivery", self.delivery, " or ".join(map(repr, DELIVERIES)))
        for name in ("strict", "dense"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "true or false")
        if not _is_number(self.readers) or not 1 <= self.readers <= READERS_MAX:
            raise _wrong("readers", self.readers, f"a number from 1 to {READERS_MAX}")
        if self.budget() < 1:
            raise _wrong("max_bytes", self.max_bytes, "more than 0 bytes")
        if self.prewarm is not None and not 0 <= _bytes("prewarm", self.prewarm) <= self.budget():
            raise _wrong("prewarm", self.prewarm, f"at most max_bytes, which is {self.max_bytes}")

    def budget(self) -> int:
        """`max_bytes` as a number."""
        return _bytes("max_bytes", self.max_bytes)

    def options(self, protocol: str) -> dict[str, Any]:
        """Arguments of `tensorlease.open`, for a store of this transport."""
        if self.prewarm is not None:
            prewarm = _bytes("prewarm", self.prewarm)
        else:
            prewarm = self.budget() if protocol in REGISTERING else 0
        kept = {name: getattr(self, name) for name in ("readers", "delivery", "strict")}
        return {"max_bytes": self.budget(), "prewarm": prewarm} | kept


class Backend:
    """TransferQueue's own keys, read as its client reads them, with the same errors."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.protocol = str(config.get("protocol", "tcp"))
        self.use_gdr = bool(config.get("use_gdr", False))
        if self.use_gdr and self.protocol != "rdma":
            needed = f"use_gdr=True requires protocol='rdma', but got protocol='{self.protocol}'"
            raise ValueError(f"{needed}; set protocol: rdma, or use_gdr: false")
        self.master = _address(config, "master_server_address")
        self.metadata = metadata_url(_address(config, "metadata_server"))
        self.hostname = str(config.get("local_hostname") or released.load().get_node_ip_address())
        self.segment_bytes = int(config.get("global_segment_size", SEGMENT_BYTES))
        self.local_buffer_bytes = int(config.get("local_buffer_size", LOCAL_BUFFER_BYTES))
        self.device = str(config.get("device_name") or "")
        # What is pinned is never evicted, so it can't be offloaded either.
        is_offloaded, hard_pin = (config.get("offload") or {}).get("enabled", False), config.get("hard_pin")
        self.hard_pin = not is_offloaded if hard_pin is None else bool(hard_pin)
        self.staging_mb = int(config.get("gdr_staging_buffer_mb", STAGING_MB))
        self.tuning = Tuning.of(config)

    def url(self) -> str:
        options = {
            "protocol": self.protocol,
            "device": self.device,
            "metadata": self.metadata,
            "local_hostname": self.hostname,
            "segment": self.segment_bytes,
            "local_buffer": self.local_buffer_bytes,
            "pin": "hard" if self.hard_pin else "none",
        }
        return f"mooncake://{self.master.rpartition('://')[2]}?{urlencode(options, quote_via=quote)}"


def metadata_url(address: str) -> str:
    """The metadata server's address as Mooncake wants it: `P2PHANDSHAKE`, etcd as it is, anything else over HTTP."""
    if address.strip().upper() == "P2PHANDSHAKE":
        return "P2PHANDSHAKE"
    if address.startswith("etcd://"):
        return address
    url = address if address.startswith("http://") else f"http://{address}"
    return url if url.endswith("/metadata") else f"{url}/metadata"


def _address(config: Mapping[str, Any], name: str) -> str:
    address = config.get(name)
    if not isinstance(address, str):
        raise ValueError(f"Missing or invalid '{name}' in config")
    return address


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bytes(name: str, value: Any) -> int:
    """Of one of our settings: bytes, or text."""
    return value if _is_number(value) else parse_bytes(str(value), f"backend.MooncakeStore.{SECTION}.{name}")


def _wrong(name: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"backend.MooncakeStore.{SECTION}.{name} is {value!r}; give {allowed}")


#: What `install(dense=...)` said in this process; None: the configuration decides.
_dense: bool | None = None


def dense_columns(tuning: Tuning) -> bool:
    """Do columns come back dense where all rows agree?"""
    return tuning.dense if _dense is None else _dense


def set_dense(dense: bool | None) -> None:
    """Overrides the configuration in this process."""
    global _dense
    if dense not in (True, False, None):
        raise ConfigError(f"dense is {dense!r}; give True, False, or None to leave it to the configuration")
    _dense = dense
