"""A torch DataLoader whose workers read from the store: they are spawned, and each opens a store of its own.

Run: python data_loader.py
"""

import uuid

import torch
from torch.utils.data import DataLoader, Dataset

import tensorlease as tl

ROWS = 64
WIDTH = 32 * 1024


class Rows(Dataset[torch.Tensor]):
    """Rows of one store. Pickled for a worker, the store is its URL and options, and opens there."""

    def __init__(self, store: tl.Store) -> None:
        self.store = store

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.store.get([f"rows/{row}"], [(WIDTH,)], [torch.float32])[0]


def main() -> None:
    with tl.open(namespace=f"data-loader-{uuid.uuid4().hex}", max_bytes="64MiB") as store:
        store.put([f"rows/{row}" for row in range(ROWS)], [torch.full((WIDTH,), float(row)) for row in range(ROWS)])
        loader = DataLoader(Rows(store), batch_size=16, num_workers=2, multiprocessing_context="spawn")
        for number, batch in enumerate(loader):
            # Collating has copied the rows, so their leases in the worker have ended.
            assert batch[:, 0].tolist() == [float(row) for row in range(16 * number, 16 * number + 16)]
        print(f"{ROWS} rows through {loader.num_workers} workers")
        store.clear()


if __name__ == "__main__":
    main()
