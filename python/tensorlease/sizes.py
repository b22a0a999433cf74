"""Sizes as people read them."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def format_bytes(size: float) -> str:
    """Bytes with the largest unit that keeps the number at or above 1."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            return f"{f'{size / factor:.1f}'.removesuffix('.0')} {unit}"
    return f"{size:.0f} B"
