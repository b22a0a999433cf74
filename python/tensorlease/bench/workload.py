"""What is read: a number of rows of given lengths, written as `64x16MiB`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tensorlease.option_values import size_bytes

_ITEM_BYTES = {"float32": 4, "int64": 8}


@dataclass(frozen=True)
class Workload:
    """One column: its rows are one-dimensional and of one dtype."""

    name: str
    dtype_name: str
    lengths: tuple[int, ...]

    @cached_property
    def size_bytes(self) -> int:
        return sum(self.lengths) * _ITEM_BYTES[self.dtype_name]

    @cached_property
    def row_bytes(self) -> list[int]:
        return [length * _ITEM_BYTES[self.dtype_name] for length in self.lengths]

    @cached_property
    def shapes(self) -> list[tuple[int]]:
        return [(length,) for length in self.lengths]

    @cached_property
    def is_ragged(self) -> bool:
        return len(set(self.lengths)) > 1


#: Workloads with a name in place of a shape. The repository's benchmarks add `ragged`, whose row lengths are data.
NAMED: dict[str, Callable[[], Workload]] = {}


def parse_workload(text: str) -> Workload:
    """`64x16MiB`: 64 float32 rows of 16 MiB; or one of `NAMED`. A ValueError says what is allowed."""
    text = text.strip()
    if text in NAMED:
        return NAMED[text]()
    if text == "ragged":
        where = "which are in the repository: `python -m bench` there"
        raise ValueError(f"ragged has the row lengths of real conversations, {where}")
    count_text, separator, size_text = text.partition("x")
    if not separator or not count_text.isdigit() or int(count_text) == 0:
        raise ValueError(f"{text!r} is no shape; write COUNTxSIZE, such as 1024x1MiB")
    row_bytes = size_bytes(size_text)
    if row_bytes % _ITEM_BYTES["float32"] != 0:
        needed = "the rows are float32, so their size must be a multiple of 4 bytes"
        raise ValueError(f"{text!r}: {needed}; it is {row_bytes}")
    return Workload(text, "float32", (row_bytes // _ITEM_BYTES["float32"],) * int(count_text))
