"""A process that reads and writes through a host's daemon, checks every byte, and never minds being killed: `python mooncake_host_worker.py URL SEED`."""

from __future__ import annotations

import random
import sys

if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]

import numpy as np

import tensorlease as tl

KEYS = 24
#: Exit status of a worker that read wrong bytes: nothing else ends with it.
WRONG = 3


def length(number: int) -> int:
    """Of the value under a key: from some KiB to a MiB."""
    return 5000 + number * number * 1801


def value(number: int) -> np.ndarray:
    """The value under a key, which is never another. Its bytes are all equal, and none is what a fault writes."""
    return np.full(length(number), number + 1, dtype=np.uint8)


def check(array: np.ndarray) -> None:
    """Ends the process where a byte is wrong."""
    number = int(array[0]) - 1
    if array.size != length(number) or not (array == number + 1).all():
        print(f"wrong bytes: {array.size} of {number}, {np.unique(array)[:9]}", flush=True)
        sys.exit(WRONG)


def step(store: tl.Store, seed: int, random_: random.Random, kept: list[np.ndarray]) -> None:
    """One call, and a look at what is kept of earlier ones."""
    numbers = random_.sample(range(KEYS), random_.randrange(1, 4))
    match random_.randrange(6):
        case 0:
            store.put([f"own/{seed}/{number}" for number in numbers], [value(number) for number in numbers])
        case 1:
            kept.clear()
        case way:
            keys = [f"key/{number}" for number in numbers]
            shapes = [(length(number),) for number in numbers]
            delivery = "leased" if way < 5 else "copied"
            kept += store.get(keys, shapes, [np.uint8] * len(keys), delivery=delivery, timeout=30)
    for array in kept:
        check(array)
    del kept[:-12]


def main(url: str, seed: int) -> None:
    """Until it is killed."""
    random_ = random.Random(seed)
    while True:
        with tl.open(url, max_bytes="24MiB") as store:
            print("ready", flush=True)
            kept: list[np.ndarray] = []
            for _ in range(200):
                try:
                    step(store, seed, random_, kept)
                # Its arena is full of what may be written late: the next store begins with another.
                except (tl.ArenaExhausted, tl.TransferFailed):
                    break


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
