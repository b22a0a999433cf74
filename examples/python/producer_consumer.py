"""A producer and a consumer, two processes: rows of different lengths, who removes them, and what happens after a crash.

Run: python producer_consumer.py
"""

import multiprocessing
import os
import uuid

import torch

import tensorlease as tl

STEPS = 4
ROWS = 16


def keys_of(step: int) -> list[str]:
    return [f"{step}/ids/{row}" for row in range(ROWS)]


def rows_of(step: int) -> list[torch.Tensor]:
    """What a rollout would make: 1-D tensors, each of its own length."""
    return [torch.full((1000 * (row + 1) + step,), step) for row in range(ROWS)]


def produce(store: tl.Store, first: int, crash_in: int | None) -> None:
    for step in range(first, STEPS):
        rows = rows_of(step)
        # With a timeout, a full store is waited for: the consumer makes room.
        store.put(keys_of(step), rows, timeout=60)
        if step == crash_in:
            os._exit(1)
        # The lengths come last: once they are there, the whole step is there.
        store.put([f"{step}/lengths"], [torch.tensor([len(row) for row in rows])])


def comes(store: tl.Store, step: int, producer: multiprocessing.process.BaseProcess) -> bool:
    """Waits for a step as long as its producer lives."""
    while producer.is_alive():
        try:
            store.wait([f"{step}/lengths"], timeout=0.5)
            return True
        except tl.Timeout:
            pass
    return store.contains([f"{step}/lengths"])[0]


def consume(store: tl.Store, step: int) -> torch.Tensor:
    """One step as a jagged tensor. The consumer removes what it has read."""
    (lengths,) = store.get([f"{step}/lengths"], [(ROWS,)], [torch.int64])
    batch = store.get_batch(keys_of(step), [(length,) for length in lengths.tolist()], torch.int64)
    # The lengths first: a step is gone as soon as they are.
    store.remove([f"{step}/lengths", *keys_of(step)])
    return batch


def started(store: tl.Store, first: int, crash_in: int | None) -> multiprocessing.process.BaseProcess:
    # A store is pickled as its URL and options; the spawned process opens its own.
    process = multiprocessing.get_context("spawn").Process(target=produce, args=(store, first, crash_in))
    process.start()
    return process


def main() -> None:
    with tl.open(namespace=f"producer-consumer-{uuid.uuid4().hex}") as store:
        producer = started(store, 0, crash_in=2)
        for step in range(STEPS):
            if not comes(store, step, producer):
                print(f"step {step} never came: the producer ended with {producer.exitcode}")
                # Rows that it had put are replaced.
                producer = started(store, step, crash_in=None)
                assert comes(store, step, producer)
            batch = consume(store, step)
            assert all(torch.equal(row, wanted) for row, wanted in zip(batch.unbind(), rows_of(step), strict=True))
            print(f"step {step}: {len(batch.unbind())} rows, {batch.values().nbytes} bytes")
        producer.join()
        # After a crash of the consumer this is how a job begins anew; here nothing is left to remove.
        assert store.clear() == 0


if __name__ == "__main__":
    main()
