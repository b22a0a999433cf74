"""What writer and reader of `codec` share: the codes of the format, and how levels are entered without a stack."""

import struct
from collections.abc import Callable, Generator
from typing import Any

from tensorlease._core import levels_max

MAGIC = b"TLV"
VERSION = 1
ALIGN_BYTES = 64
#: Long text and bytes get a segment of their own.
SEGMENT_BYTES_MIN = 4096
#: From here on a decoded array is a view.
VIEW_BYTES_MIN = 1 << 20
#: Containers inside each other.
LEVELS_MAX = levels_max()

HEAD = struct.Struct("<3sBIQ")
LENGTH = struct.Struct("<Q")

# Codes of msgpack's extension types. They are part of the format: never change or reuse one. A new one must be known to `tree.rs`.
TUPLE = 1
BIG_INT = 2
SET = 3
FROZENSET = 4
ARRAY = 5
OBJECT_ARRAY = 6
SCALAR = 7
TENSOR = 8
PICKLE = 9
COMPLEX = 10
LONG_BYTES = 11
LONG_TEXT = 12


def inside_out(work: Callable[[Any], Generator[Any, Any, Any]], outermost: Any) -> Any:
    """The result of `work`, which yields what it needs done the same way first: levels take their place in a list and not on the stack."""
    open_works = [work(outermost)]
    result = None
    while open_works:
        try:
            inner = open_works[-1].send(result)
        except StopIteration as done:
            open_works.pop()
            result = done.value
            continue
        if len(open_works) > LEVELS_MAX:
            raise ValueError(f"more than {LEVELS_MAX} levels of containers inside each other")
        open_works.append(work(inner))
        result = None
    return result
