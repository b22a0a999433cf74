"""How many leases of Mooncake's pool a read takes: planned here, and as the reference published them."""

from __future__ import annotations

from tensorlease.bench.workload import Workload
from tensorlease.sizes import GIB, MIB

#: The reference's figures are of so many readers, of batches of so many keys, and but for the rounds of a buffer of so many bytes.
READERS = 4
BATCH_KEYS = 400
LOCAL_BUFFER_BYTES = GIB

#: Leases of one read, by shape and share. The reference calls the shares a quarter and an eighth of the buffer.
PUBLISHED_LEASES = {
    ("64x16MiB", "quarter"): 4,
    ("64x16MiB", "half"): 8,
    ("1024x1MiB", "quarter"): 5,
    ("1024x1MiB", "half"): 10,
    ("4096x1MiB", "quarter"): 21,
    ("4096x1MiB", "half"): 41,
    ("16384x64KiB", "quarter"): 41,
    ("16384x64KiB", "half"): 41,
}
#: One batch of 400 x 1 MiB: rounds, by bytes of the local buffer and share.
ONE_BATCH = "400x1MiB"
PUBLISHED_ROUNDS = {
    (64 * MIB, "half"): 50,
    (256 * MIB, "half"): 13,
    (GIB, "half"): 4,
    (4 * GIB, "half"): 1,
    (64 * MIB, "quarter"): 25,
    (256 * MIB, "quarter"): 7,
    (GIB, "quarter"): 2,
    (4 * GIB, "quarter"): 1,
}


def share_bytes(local_buffer_bytes: int, readers: int, share: str) -> int:
    """What one reader may lease: an equal split of the buffer, or half of that."""
    return local_buffer_bytes // (readers * (2 if share == "half" else 1))


def planned_loans(workload: Workload, batch_keys: int, bytes_max: int) -> int:
    """Leases of one read: keys in batches, each batch cut where the next row would not fit into a share. Larger rows take none."""
    sizes = workload.row_bytes
    lent = [size for size in sizes if size <= bytes_max]
    loans = 0
    for start in range(0, len(lent), batch_keys):
        filled = bytes_max + 1
        for size in lent[start : start + batch_keys]:
            if filled + size > bytes_max:
                loans += 1
                filled = 0
            filled += size
    return loans


def published_loans(shape: str, share: str, local_buffer_bytes: int) -> int | None:
    """The reference's figure for such a read; None where it has none. Holds for its readers and its batches."""
    if shape == ONE_BATCH:
        return PUBLISHED_ROUNDS.get((local_buffer_bytes, share))
    if local_buffer_bytes == LOCAL_BUFFER_BYTES:
        return PUBLISHED_LEASES.get((shape, share))
    return None
