"""One Ray job: starts a queue on MooncakeStore, runs the cases it is told to, and writes what each came to.

Usage: queue_job.py ARGUMENTS, a pickle that queue_rig.run_job makes.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

from counting_store import counting
from queue_rig import RELEASED, backend_config


def main() -> None:
    arguments = pickle.loads(Path(sys.argv[1]).read_bytes())
    runtime_env = prepare(arguments)
    import ray

    ray.init(address=arguments["ray_address"], runtime_env=runtime_env, log_to_driver=False)
    with counting():
        outcomes = run(arguments)
    Path(arguments["out"]).write_bytes(pickle.dumps(outcomes))
    ray.shutdown()


def prepare(arguments: dict[str, Any]) -> dict[str, Any]:
    """The one line that switches this process, and the one setting that switches its workers."""
    base = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}} if arguments["python_path"] else {}
    if arguments["flavour"] == RELEASED:
        return base
    import tensorlease.transfer_queue

    if arguments["install"]:
        tensorlease.transfer_queue.install(**arguments["install"])

    found: dict[str, Any] = tensorlease.transfer_queue.runtime_env(base)
    return found


def run(arguments: dict[str, Any]) -> dict[str, tuple[Any, str | None]]:
    """By case: its value, and its error or None."""
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from queue_cases import CASES, OURS_ALONE, Job
    from transfer_queue.storage.clients import mooncake_client

    # What is tried again in vain need not be waited for.
    mooncake_client.RETRY_DELAY_SECONDS = 0.01
    mooncake = backend_config(arguments["master"], **arguments["backend"])
    if arguments["flavour"] != RELEASED:
        mooncake["tensorlease"] = {"max_bytes": "64MiB", **arguments["settings"]}
    config = tq.init(
        OmegaConf.create(
            {
                "controller": {"polling_mode": True},
                "backend": {"storage_backend": "MooncakeStore", "MooncakeStore": mooncake},
            }
        )
    )
    job, cases = Job(config, arguments["master"]), CASES | OURS_ALONE
    outcomes: dict[str, tuple[Any, str | None]] = {}
    try:
        for name in arguments["cases"]:
            try:
                outcomes[name] = (cases[name](job), None)
            except Exception:
                outcomes[name] = (None, traceback.format_exc())
    finally:
        tq.close()
    return outcomes


if __name__ == "__main__":
    main()
