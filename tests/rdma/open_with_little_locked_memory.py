"""Opens the store of a URL under limits on locked memory, one after the other, and prints as JSON what came of each."""

from __future__ import annotations

import json
import resource
import sys

sys.modules["torch"] = None  # type: ignore[assignment]

import tensorlease as tl

#: Too little for Mooncake's own memory; for the arena's first slab of 8 MiB; for a second one, which writes and copies go through; enough.
LIMITS = {"64 KiB": 64 << 10, "4 MiB": 4 << 20, "12 MiB": 12 << 20, "64 MiB": 64 << 20}

SUMS = {"fallback_reads", "fallback_writes"}


def outcome(url: str, name: str) -> dict[str, object]:
    """What opening, and a write and a read of a copy, say under that limit."""
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LIMITS[name], most))
    value = bytes(range(250)) * 400
    try:
        with tl.open(url, max_bytes="16MiB") as store:
            metas = store.put([name], [value])
            assert store.get([name], [None], [None], custom_backend_meta=metas, delivery="copied") == [value]
            counted = {name: count for name, count in store.stats().items() if name.startswith("fallback_") and count}
            # The sum of reads and that of writes hold what the reasons hold.
            return {"error": None, "fallbacks": {name: counted[name] for name in counted if name not in SUMS}}
    except tl.Error as error:
        return {"error": type(error).__name__, "message": str(error)}


if __name__ == "__main__":
    json.dump({name: outcome(sys.argv[1], name) for name in LIMITS}, sys.stdout)
