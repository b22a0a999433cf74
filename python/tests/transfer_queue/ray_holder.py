"""A Ray cluster on loopback in a process of its own: prints its address once it is up, and ends when its standard input does.

Usage: ray_holder.py FOLDER
"""

from __future__ import annotations

import sys

import ray

#: TransferQueue's controller and every actor of a job takes one, whether the machine has it or not.
CPUS = 16
OBJECT_STORE_BYTES = 100 << 20


def main() -> None:
    ray.init(
        num_cpus=CPUS,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=sys.argv[1],
    )
    print(f"address {ray.get_runtime_context().gcs_address}", flush=True)
    sys.stdin.buffer.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
