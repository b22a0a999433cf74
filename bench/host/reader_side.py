"""A reader that stays small: numpy, and no torch, which nothing here imports. It has the content in the host's arena, or in a private store of its own."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

import tensorlease as tl
from bench.host.asked import answer
from tensorlease.sizes import MIB

#: Rows put at a time, so that no second copy of everything is made on the way.
ROWS_PER_PUT = 64


class ReaderSide:
    """Calls of one process."""

    def __init__(self) -> None:
        self.store: tl.Store
        self.kept: list[Any] = []

    def open(self, url: str) -> None:
        self.store = tl.open(url, max_bytes=8 * MIB)

    def fill(self, rows: int, row_bytes: int) -> None:
        """Row number i is all i % 251."""
        for first in range(0, rows, ROWS_PER_PUT):
            numbers = range(first, min(first + ROWS_PER_PUT, rows))
            values: list[np.ndarray[Any, Any]] = [np.full(row_bytes, number % 251, np.uint8) for number in numbers]
            self.store.put([str(number) for number in numbers], values)
        # What was made on the way is no part of what is compared.
        del values
        ctypes.CDLL(None).malloc_trim(0)

    def look(self, rows: int) -> None:
        """Reads all rows in place, each byte of them, and keeps them."""
        self.kept = self.store.get([str(number) for number in range(rows)], view=True)
        if "torch" in sys.modules:
            raise SystemExit("a reader without torch has imported it")
        wrong = [number for number, row in enumerate(self.kept) if not (row == number % 251).all()]
        if wrong:
            raise SystemExit(f"{len(wrong)} rows are not what was written")


if __name__ == "__main__":
    answer(ReaderSide())
