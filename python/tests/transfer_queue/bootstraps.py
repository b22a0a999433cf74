"""Runs the bootstrap of MooncakeStore as `transfer_queue.init` does, in a process of its own.

Usage: bootstraps.py released|ours MASTER
"""

from __future__ import annotations

import sys

from omegaconf import OmegaConf
from queue_rig import OURS


def main() -> None:
    which, master = sys.argv[1:]
    if which == OURS:
        import tensorlease.transfer_queue  # noqa: F401 - installs
    from transfer_queue.storage.bootstrap import StorageBootstrapProvider

    mooncake = {
        "auto_init": True,
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master,
        "offload": {"enabled": False},
    }
    provider = StorageBootstrapProvider.get_provider("MooncakeStore")
    provider(OmegaConf.create({"backend": {"storage_backend": "MooncakeStore", "MooncakeStore": mooncake}}))


if __name__ == "__main__":
    main()
