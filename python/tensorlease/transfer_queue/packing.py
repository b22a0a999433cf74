"""Values that are no tensors, in TransferQueue's packed form, straight in the memory that is sent and received."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy

from tensorlease.errors import ConfigError
from tensorlease.transfer_queue import released

#: The packed form counts offsets and lengths in 32 bits.
COUNT_MAX = (1 << 32) - 1
#: Values of one group start at multiples of this.
ALIGN_BYTES = 64

#: Number of frames; then the offset and length of each; then the frames.
_HEAD = struct.Struct("<I")
_ENTRY = struct.Struct("<II")


@dataclass(frozen=True)
class Opaque:
    """A tensor that is stored as a value like any other: the controller takes its column for one of values."""

    value: Any


@dataclass(frozen=True)
class Packed:
    """One encoded value."""

    key: str
    #: The frames; those of tensors and arrays are views of the value's own memory.
    frames: list[Any]
    #: Bytes of the packed form.
    size: int


def encode(key: str, value: Any) -> Packed:
    """The value as frames, and how long they are packed."""
    try:
        frames = released.load().encode(value)
    except Exception as error:
        error.add_note(f"while encoding the value of key {key!r}")
        raise
    end = _HEAD.size + _ENTRY.size * len(frames)
    too_long = False
    for frame in frames:
        length = memoryview(frame).nbytes
        too_long = too_long or end > COUNT_MAX or length > COUNT_MAX
        end += length
    if too_long:
        raise ConfigError(
            f"the value of key {key!r} has {end} bytes packed, and TransferQueue's packed form holds at most 4 GiB; nothing was "
            "stored: put its tensors as fields of their own, or split it"
        )
    return Packed(key, frames, end)


def size_of(key: str, meta: Any) -> int:
    """Bytes of the packed form, from what `put` returned for the key."""
    size = meta.get("packed_size") if isinstance(meta, dict) else None
    if isinstance(size, int):
        return size
    needed = "a value that is no tensor needs the packed_size that put() returned"
    raise ValueError(f"custom_backend_meta of key {key!r} is {meta!r}; {needed}")


def groups(packed: list[Packed], limit: int) -> Iterator[list[Packed]]:
    """The values in groups of at most `limit` bytes; what is larger stands alone."""
    group: list[Packed] = []
    total = 0
    for item in packed:
        if group and total + item.size > limit:
            yield group
            group, total = [], 0
        group.append(item)
        total += _aligned(item.size)
    if group:
        yield group


def group_bytes(group: list[Packed]) -> int:
    return sum(_aligned(item.size) for item in group)


def pack(group: list[Packed], memory: Any) -> list[Any]:
    """Packs each value into its part of `memory`, a tensor of bytes; those parts."""
    parts = []
    start = 0
    for item in group:
        part = memory[start : start + item.size]
        _pack_one(item.frames, part.numpy())
        parts.append(part)
        start += _aligned(item.size)
    return parts


def _pack_one(frames: list[Any], target: Any) -> None:
    _HEAD.pack_into(target, 0, len(frames))
    start = _HEAD.size + _ENTRY.size * len(frames)
    for index, frame in enumerate(frames):
        source = numpy.frombuffer(frame, numpy.uint8)
        _ENTRY.pack_into(target, _HEAD.size + _ENTRY.size * index, start, source.nbytes)
        # By numpy, which lets other threads run meanwhile.
        target[start : start + source.nbytes] = source
        start += source.nbytes


def _unpack(source: memoryview) -> list[memoryview]:
    (count,) = _HEAD.unpack_from(source, 0)
    entries = (_ENTRY.unpack_from(source, _HEAD.size + _ENTRY.size * index) for index in range(count))
    return [source[start : start + length] for start, length in entries]


def decode(key: str, packed: Any) -> Any:
    """The value in `packed`, a tensor of bytes. Tensors and arrays in it are views that keep that memory alive."""
    try:
        return released.load().decode(_unpack(packed.numpy().data))
    except Exception as error:
        # Unpickling may raise anything, and callers may wait for that very thing.
        error.add_note(f"while decoding the value of key {key!r}")
        raise


def _aligned(size: int) -> int:
    return size + -size % ALIGN_BYTES
