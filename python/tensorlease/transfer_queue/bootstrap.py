"""What TransferQueue's `init` calls for MooncakeStore: a master that answers is used, and one is started only where none does."""

import logging
import os
import subprocess
import time
from typing import Any

from tensorlease.transfer_queue import master, released
from tensorlease.transfer_queue.master import Address, OwnProcess
from tensorlease.transfer_queue.settings import LOCAL_BUFFER_BYTES, SEGMENT_BYTES, Tuning, metadata_url

#: Seconds a client of the master may be silent.
CLIENT_TTL = 30
#: Milliseconds: leases and soft pins don't end, since TransferQueue alone decides what goes.
KEPT_MS = 999_999
OFFLOAD_QUEUE = 10_000
#: How long the offload client is given to fail, and how long to listen.
OFFLOAD_SECONDS = 5.0

_Started = subprocess.Popen[bytes] | dict[str, subprocess.Popen[bytes]]

_logger = logging.getLogger("tensorlease")


def initialize_mooncake_storage(conf: Any) -> _Started | None:
    """Starts what MooncakeStore needs and what does not run yet. It ends with this interpreter.

    :returns: what TransferQueue's `close` expects: the master's process; with `offload.enabled` a dict of it and of the offload client; None
        where nothing was started (`auto_init: false`, or a master answers), so that `close` leaves its objects alone
    """
    backend = conf.backend.MooncakeStore
    # Whoever starts a job hears of a wrong setting, not its first worker.
    Tuning.of(backend)
    if not backend.auto_init:
        return None
    address = Address.of(str(backend.master_server_address), "master_server_address")
    metadata = str(backend.metadata_server).strip()
    http = None if metadata.upper() == "P2PHANDSHAKE" else Address.of(metadata, "metadata_server")
    offload = backend.get("offload") or {}
    arguments = master_arguments(address, http, offload)
    started = master.own_at(address)
    if started is None and master.answers(address):
        _logger.warning(
            "a mooncake_master answers at %s and is used as it is: nothing was started, and close() will remove none of its objects "
            "(that TransferQueue then finds no storage resources means no more than this)",
            address,
        )
        return None
    started = started or master.start(address, http, arguments)
    if started is None:
        return None
    if not offload.get("enabled", False):
        return started.process
    try:
        client = _start_offload_client(backend, address, http, offload)
    except BaseException:
        started.stop()
        raise
    return {"master_process": started.process, "offload_client_process": client.process}


def master_arguments(address: Address, http: Address | None, offload: Any) -> list[str]:
    """The flags that TransferQueue starts its master with."""
    arguments = [
        f"-client_ttl={CLIENT_TTL}",
        f"-default_kv_lease_ttl={KEPT_MS}",
        f"-default_kv_soft_pin_ttl={KEPT_MS}",
        "--allow_evict_soft_pinned_objects=false",
        f"--rpc_address={address.host}",
        f"--rpc_port={address.port}",
    ]
    if http is not None:
        arguments += [
            "--enable_http_metadata_server=true",
            f"--http_metadata_server_host={http.host}",
            f"--http_metadata_server_port={http.port}",
        ]
    if not offload.get("enabled", False):
        return [*arguments, "--eviction_high_watermark_ratio=1.0", "--eviction_ratio=0.0"]
    return [
        *arguments,
        "--enable_offload=true",
        f"--eviction_high_watermark_ratio={_ratio(offload, 'eviction_high_watermark_ratio', 0.9)}",
        f"--eviction_ratio={_ratio(offload, 'eviction_ratio', 0.1)}",
        "--offload_on_evict=true",
        "--offload_force_evict=false",
        f"--offloading_queue_limit={OFFLOAD_QUEUE}",
    ]


def _ratio(offload: Any, name: str, default: float) -> float:
    ratio = float(offload.get(name, default))
    if not 0.0 < ratio <= 1.0:
        raise ValueError(f"offload.{name} must be in (0.0, 1.0], got {ratio}")
    return ratio


def _start_offload_client(backend: Any, address: Address, http: Address | None, offload: Any) -> OwnProcess:
    """The process that keeps on an SSD what the master evicts. The job can't do without it: it is started, or `init` fails."""
    folder = str(offload.get("file_storage_path", "/tmp/mooncake_offload"))
    os.makedirs(folder, exist_ok=True)
    asked = {
        "FILE_STORAGE_PATH": folder,
        "LOCAL_BUFFER_SIZE_BYTES": offload.get("local_buffer_size_bytes", 2 * LOCAL_BUFFER_BYTES),
        "USE_URING": 1 if offload.get("use_uring", False) else 0,
        "HEARTBEAT_INTERVAL_SECONDS": offload.get("heartbeat_interval_seconds", 2),
    }
    environment = {**os.environ, **{f"MOONCAKE_OFFLOAD_{name}": str(value) for name, value in asked.items()}}
    host = str(backend.get("local_hostname") or released.load().get_node_ip_address())
    local = Address(host, int(offload.get("client_port", 42052)))
    command = [
        "mooncake_client",
        f"-host={local.host}",
        f"-global_segment_size={backend.get('global_segment_size', SEGMENT_BYTES)}",
        f"-master_server_address={address}",
        f"-metadata_server={'P2PHANDSHAKE' if http is None else metadata_url(str(http))}",
        f"-protocol={backend.get('protocol', 'tcp')}",
        "-enable_offload=true",
        f"-port={local.port}",
    ]
    client = OwnProcess(command, local.port, environment)
    # One that fails does so within this time; not every version listens where it is told.
    given = time.monotonic() + OFFLOAD_SECONDS
    try:
        client.wait_until(lambda: local.listens() or time.monotonic() > given, 2 * OFFLOAD_SECONDS, "does not start")
    except BaseException:
        client.stop()
        raise
    return client
