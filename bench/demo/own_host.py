"""A host's daemon for one run, apart from the user's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tensorlease import host
from tensorlease._core import host_socket


@contextmanager
def own_host() -> Iterator[None]:
    """Meanwhile `tensorlease.open()`, here and in processes that are started here, means a daemon at a private place, which ends with this.

    The first to open must be this process: a daemon is ended by whoever started it.
    """
    with tempfile.TemporaryDirectory(prefix="tl-demo-") as folder:
        before = {name: os.environ.pop(name, None) for name in ("XDG_RUNTIME_DIR", "TENSORLEASE_URL")}
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            yield
        finally:
            host.end_started(host_socket(None))
            del os.environ["XDG_RUNTIME_DIR"]
            os.environ.update({name: value for name, value in before.items() if value is not None})
