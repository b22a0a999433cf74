"""Sizes as people write them."""

from __future__ import annotations

import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_UNITS = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str) -> int:
    """`64MiB`, `1.5 GB`, `4096`: bytes. A ValueError says what is allowed."""
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(
            f"{text!r} is no size; write a number and one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB, such as 64MiB"
        )
    size = round(float(match[1]) * factor)
    if size <= 0:
        raise ValueError(f"{text!r} is no size; it must be at least one byte")
    return size


def format_bytes(size: float) -> str:
    """Bytes with the largest unit that keeps the number at or above 1."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            number = f"{size / factor:.1f}".removesuffix(".0")
            return f"{number} {unit}"
    return f"{size:.0f} B"
