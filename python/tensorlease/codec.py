"""Values that are not tensors as bytes, without pickle.

An object is a fixed head, the lengths of its segments, a msgpack tree, then the segments, each aligned to 64 bytes::

    b"TLV" + version byte | u32 number of segments | u64 bytes of the tree | u64 bytes of each segment | tree | segments

The tree holds everything small. Arrays, tensors and long bytes are segments: they go to the engine from where they lie, and are never
put together in Python. Numbers are little-endian.

On the way back, segments of 1 MiB and more are views into the memory that was read (writable, and each keeps that memory alive), smaller ones
are copies. bytearray and memoryview come back as bytes, numpy arrays as numpy arrays, torch tensors as torch tensors where torch is installed
(it is imported for them) and as numpy arrays elsewhere: as a `get` without dtypes delivers tensors.

Containers may lie inside each other up to `LEVELS_MAX` levels; an array of objects counts for ten. What is deeper is refused when it is put and
when it is read. Tuples, sets and arrays of objects are extension values whose content is a tree of its own; neither way enters them by recursion.
"""

from typing import Any

from tensorlease.codec_format import ALIGN_BYTES, HEAD, LENGTH, MAGIC, VERSION
from tensorlease.codec_reader import Reader
from tensorlease.codec_writer import Writer
from tensorlease.errors import CodecError, ConfigError, Error, OutOfMemory, OutOfStack, is_out_of_memory


def encode(value: Any, name: str, allow_pickle: bool) -> list[Any]:
    """`value` as parts (bytes, plain arrays, plain tensors) to store one after the other; `name` says in errors which key it is of."""
    writer = Writer(name, allow_pickle)
    try:
        tree = writer.tree(value)
    except Error:
        raise
    except RecursionError as error:
        raise OutOfStack(f"{name} can't be stored: {error}, called from so deep in the program") from error
    # msgpack, and objects that only look like containers, can fail in many ways.
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"{name} can't be stored: this process has no memory left to encode it") from error
        raise ConfigError(f"{name} can't be stored: {_said(error)}") from error
    lengths = [length for length, _ in writer.segments]
    head = HEAD.pack(MAGIC, VERSION, len(lengths), len(tree)) + b"".join(map(LENGTH.pack, lengths)) + tree
    parts: list[Any] = [head]
    end = len(head)
    for length, segment in writer.segments:
        if length == 0:
            continue
        padding = -end % ALIGN_BYTES
        if padding:
            parts.append(bytes(padding))
        parts.append(segment)
        end += padding + length
    return parts


def decode(buffer: Any, key: str, allow_pickle: bool) -> Any:
    """The value in `buffer`, the bytes of an object."""
    reader = Reader(buffer, key, allow_pickle)
    try:
        return reader.value()
    except Error:
        raise
    except RecursionError as error:
        raise OutOfStack(f"key {key!r}: {error}, called from so deep in the program") from error
    # Bytes from elsewhere can go wrong in every way that msgpack, numpy and struct know.
    except Exception as error:
        if is_out_of_memory(error):
            full = f"key {key!r}: this process has no memory left to make the value"
            raise OutOfMemory(f"{full}; the stored bytes are as they were") from error
        raise CodecError(f"key {key!r}: the stored bytes are damaged ({_said(error)})") from error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
