"""Puts and gets through TransferQueue's Mooncake client and ours, over RDMA, and prints as JSON what is registered then, and how often each step
registered memory.

Usage: queue_clients.py MASTER DEVICE ADDRESS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import mooncake.store  # type: ignore[import-untyped]
import torch
import transfer_queue
from transfer_queue.storage.clients import mooncake_client
from watched_store import WatchedStore

from tensorlease.transfer_queue import TensorleaseStoreClient
from tensorlease.transfer_queue.columns import Column

CLIENTS: dict[str, Any] = {"released": mooncake_client.MooncakeStoreClient, "ours": TensorleaseStoreClient}
#: Small values are copied out of the memory that they land in, large ones stay there, and the last one is staged in a block of its own.
TENSORS = [torch.arange(length, dtype=torch.float32) for length in [1, 77, 6_000, 70_001, 500_000]]
PACKED = ["text", {"a": [1, None]}, "x" * 100_003, {"pixels": torch.arange(300_000)}]
MAX_BYTES = 64 << 20
ROWS = [torch.full((3_000,), float(row)) for row in range(4)]


def main() -> None:
    master, device, address = sys.argv[1:]
    config = {
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master,
        "local_hostname": address,
        "protocol": "rdma",
        "device_name": device,
        # The memory is another process's.
        "global_segment_size": 0,
        "local_buffer_size": 1 << 20,
        "tensorlease": {"max_bytes": MAX_BYTES},
    }
    mooncake.store.MooncakeDistributedStore = mooncake_client.MooncakeDistributedStore = WatchedStore
    counted = {name: count(name, kind, config) for name, kind in CLIENTS.items()}
    print(json.dumps({"version": transfer_queue.__version__, "max_bytes": MAX_BYTES, **counted}))


def count(name: str, kind: Any, config: dict[str, Any]) -> dict[str, int]:
    """What is registered at first, and the register calls of each step: counted at Mooncake's own object, whoever makes them."""
    client = kind(config)
    (watched,) = WatchedStore.made
    registered = {"bytes at set-up": sum(watched.regions.values())}
    metas: list[Any] = []
    steps: dict[str, Callable[[], None]] = {
        "put tensors": lambda: put(client, f"{name}/tensor", TENSORS, [None] * len(TENSORS)),
        "put bytes": lambda: metas.extend(client.put(keys_of(f"{name}/packed", PACKED), PACKED)),
        "get tensors": lambda: get_tensors(client, name),
        "get bytes": lambda: get_packed(client, name, metas),
    }
    if name == "ours":
        steps["put rows"] = lambda: put(client, f"{name}/row", ROWS, [None] * len(ROWS))
        steps["get columns"] = lambda: get_columns(client, name)
    for step, work in steps.items():
        # The second time as the first: nothing is left to the first call that needs it.
        registered[step] = watched.registering(work)
        registered[f"{step} again"] = watched.registering(work)
    # Through the object that counts.
    assert watched.reads
    assert watched.writes
    client.close()
    WatchedStore.made.clear()
    return registered


def keys_of(prefix: str, values: list[Any]) -> list[str]:
    return [f"{prefix}/{at}@x" for at in range(len(values))]


def put(client: Any, prefix: str, values: list[Any], expected: list[Any]) -> None:
    assert client.put(keys_of(prefix, values), values) == expected


def get_tensors(client: Any, name: str) -> None:
    dtypes = [torch.float32] * len(TENSORS)
    found = client.get(keys_of(f"{name}/tensor", TENSORS), [value.shape for value in TENSORS], dtypes)
    assert all(map(torch.equal, found, TENSORS))


def get_packed(client: Any, name: str, metas: list[Any]) -> None:
    nothing = [None] * len(PACKED)
    found = client.get(keys_of(f"{name}/packed", PACKED), nothing, nothing, metas[: len(PACKED)])
    assert found[:-1] == PACKED[:-1]
    assert torch.equal(found[-1]["pixels"], PACKED[-1]["pixels"])  # type: ignore[index]


def get_columns(client: Any, name: str) -> None:
    """As `kv_batch_get` does it, dense and as TransferQueue merges it."""
    column = Column("x", keys_of(f"{name}/row", ROWS), torch.float32, [row.shape for row in ROWS], [None] * len(ROWS))
    for dense in (True, False):
        found = client.read_columns([column], dense)["x"]
        assert all(map(torch.equal, found.unbind(), ROWS))


if __name__ == "__main__":
    main()
