"""Several coroutines read from one store at once; a cancelled read gives its memory back.

Run: python async_reader.py
"""

import asyncio
import time

import torch

import tensorlease as tl

READERS = 4
ROWS = 64
ROW_SHAPE = (64 * 1024,)


async def read_shard(store: tl.Store, shard: int) -> float:
    """Sum of one shard's rows."""
    keys = [f"shard-{shard}/{row}" for row in range(ROWS)]
    rows = await store.aget(keys, [ROW_SHAPE] * ROWS, [torch.float32] * ROWS)
    return sum(float(row.sum()) for row in rows)


async def cancel_half_way(store: tl.Store) -> None:
    """A read that nobody waits for to the end."""
    reading = asyncio.create_task(read_shard(store, 0))
    await asyncio.sleep(0)
    reading.cancel()
    try:
        await reading
        print("the read was faster than its cancellation")
    except asyncio.CancelledError:
        print("one read cancelled")


async def memory_is_back(store: tl.Store) -> bool:
    """A cancelled read keeps its memory until the engine is through with it, which is soon."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        stats = store.stats()
        if stats["leased_bytes"] == 0 and stats["in_flight_bytes"] == 0:
            return True
        await asyncio.sleep(0.01)
    return False


async def main() -> None:
    with tl.open("embedded://", max_bytes="256MiB") as store:
        for shard in range(READERS):
            keys = [f"shard-{shard}/{row}" for row in range(ROWS)]
            await store.aput(keys, [torch.full(ROW_SHAPE, float(shard)) for _ in keys])

        sums = await asyncio.gather(*(read_shard(store, shard) for shard in range(READERS)))
        assert sums == [float(shard * ROWS * ROW_SHAPE[0]) for shard in range(READERS)]
        print(f"{READERS} readers at once: sums {sums}")

        await cancel_half_way(store)
        assert await memory_is_back(store)
        print("no byte of the arena is held any more")


if __name__ == "__main__":
    asyncio.run(main())
