"""A client is made, the process forks, and the child reads with the client that it has inherited.

Usage: forks.py MASTER
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import torch
from queue_rig import backend_config

CHILD_SECONDS = 60.0


def child(client: Any, results: Any) -> None:
    """In the forked process."""
    try:
        client.get(["0@parent"], [(20000,)], [torch.float32])
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")
    else:
        results.put("read")
    client.close()


def main() -> None:
    from tensorlease.transfer_queue import TensorleaseStoreClient

    client = TensorleaseStoreClient(backend_config(sys.argv[1], tensorlease={"max_bytes": "64MiB"}))
    client.put(["0@parent"], [torch.ones(20000)])
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    forked = context.Process(target=child, args=(client, results))
    forked.start()
    print(f"child {results.get(timeout=CHILD_SECONDS)}")
    forked.join(CHILD_SECONDS)
    print(f"child ended with {forked.exitcode}")
    # The parent's own client works as before.
    (again,) = client.get(["0@parent"], [(20000,)], [torch.float32])
    client.close()
    print(f"parent {float(again.sum())}")


if __name__ == "__main__":
    main()
