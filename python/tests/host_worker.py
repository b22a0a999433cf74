"""A process that puts, gets and views at random, checks every byte, and never minds being killed: `python host_worker.py URL SEED`."""

from __future__ import annotations

import random
import sys
import time

sys.modules["torch"] = None  # type: ignore[assignment]

import numpy as np

import tensorlease as tl

KEYS = 40
#: Exit status of a worker that read wrong bytes: nothing else ends with it.
WRONG = 3


def value(random_: random.Random) -> np.ndarray:
    """Its bytes are all equal, and say how many there must be."""
    fill = random_.randrange(1, 250)
    return np.full(length(fill), fill, dtype=np.uint8)


def length(fill: int) -> int:
    """From a few bytes to half a MiB."""
    return 1 + (fill * fill * 37) % (1 << (4 + fill % 16))


def check(array: np.ndarray) -> None:
    """Ends the process where a byte is wrong."""
    fill = int(array[0])
    if array.size != length(fill) or not (array == fill).all():
        print(f"wrong bytes: {array.size} of {fill}, {np.unique(array)[:9]}", flush=True)
        sys.exit(WRONG)


def step(store: tl.Store, random_: random.Random, kept: list[np.ndarray]) -> None:
    """One call, and a look at what is kept of earlier ones."""
    keys = random_.sample([f"key/{number}" for number in range(KEYS)], random_.randrange(1, 4))
    match random_.randrange(8):
        case 0 | 1:
            store.put(keys, [value(random_) for _ in keys])
        case 2:
            store.remove(keys)
        case 3:
            kept.clear()
        case 4:
            made = store.empty((1000,), np.uint8)
            made[:] = 7
            kept.append(np.array(made[:1]))
        case way:
            how: dict[str, object] = {"view": True} if way == 5 else {"delivery": "leased" if way == 6 else "copied"}
            for array in store.get(keys, timeout=30, **how):
                check(array)
                kept.append(array)
    for array in kept:
        if array.size > 1:
            check(array)
    del kept[:-20]


def main(url: str, seed: int) -> None:
    """Until it is killed; a daemon that is gone is waited for."""
    random_ = random.Random(seed)
    while True:
        try:
            with tl.open(url, max_bytes="32MiB") as store:
                print("ready", flush=True)
                kept: list[np.ndarray] = []
                while True:
                    try:
                        step(store, random_, kept)
                    # A key that another worker replaced between two looks is a mismatch.
                    except (tl.KeyNotFound, tl.SizeMismatch, tl.StoreFull, tl.ArenaExhausted):
                        kept.clear()
        except tl.EngineUnavailable:
            time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
