"""Sizes as people write them."""

from __future__ import annotations

from tensorlease import _core

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def parse_bytes(text: str) -> int:
    """`64MiB`, `1.5 GB`, `4096`: bytes. A ValueError says what is allowed."""
    size = _core.parse_bytes(text)
    if size == 0:
        raise ValueError(f"{text!r} is no size; it must be at least one byte")
    return size


def format_bytes(size: float) -> str:
    """Bytes with the largest unit that keeps the number at or above 1."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            number = f"{size / factor:.1f}".removesuffix(".0")
            return f"{number} {unit}"
    return f"{size:.0f} B"
