"""Descriptors 0 to 2 are the standard streams', also where a program was started without them."""

from __future__ import annotations

import fcntl
import os

#: The first descriptor that is no standard stream.
FIRST = 3


def fill_standard_streams() -> None:
    """Opens the null device for each standard stream that is closed: nothing that is opened later takes its number.

    For processes of this package's own. Others may have closed theirs on purpose, to open something else there.
    """
    while (opened := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < FIRST:
        os.set_inheritable(opened, True)
    os.close(opened)


def above_standard_streams(descriptor: int) -> int:
    """The same open file under a number of `FIRST` or more."""
    if descriptor >= FIRST:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST)
    finally:
        os.close(descriptor)
