"""Calls that find no memory for what grows with them are errors of theirs, and end no process."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Address space that the process may take beyond what it has, and what it does then; prints the error's class.
PROGRAM = """
import resource, sys
import numpy as np
import tensorlease as tl

def limited(extra):
    with open("/proc/self/statm") as pages:
        now = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, resource.RLIM_INFINITY))

def attempt(extra, call):
    limited(extra)
    try:
        call()
        said = "nothing"
    except tl.Error as error:
        said = type(error).__name__
        assert isinstance(error, MemoryError), error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(said, flush=True)

with tl.open("embedded://?capacity=512MiB", max_bytes="16MiB", copy_cache_bytes="1MiB") as store:
    {what}
    assert store.get(["again"], [(3,)], ["uint8"])[0].tolist() == [7, 7, 7]
"""

MANY_KEYS = """
    store.put(["again"], [np.full(3, 7, np.uint8)])
    keys = [f"key/{number}" for number in range(300_000)]
    attempt(32 << 20, lambda: store.contains(keys))
    attempt(32 << 20, lambda: store.get(keys, [(1,)] * len(keys), "uint8"))
"""

MANY_SMALL_COPIES = """
    store.put(["again"], [np.full(3, 7, np.uint8)])
    row = np.zeros(15 << 10, np.uint8)
    keys = [f"key/{number}" for number in range(8_000)]
    store.put(keys, [row] * len(keys))
    attempt(48 << 20, lambda: store.get(keys, [row.shape] * len(keys), "uint8"))
"""


@pytest.mark.parametrize(("what", "errors"), [(MANY_KEYS, 2), (MANY_SMALL_COPIES, 1)], ids=["keys", "copies"])
def test_a_call_without_memory_for_what_grows_with_it_is_an_error(what: str, errors: int) -> None:
    program = PROGRAM.replace("{what}", what.strip())
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["ArenaExhausted"] * errors), ended.stderr
