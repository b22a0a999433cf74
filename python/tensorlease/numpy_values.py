"""numpy arrays on their way into the store."""

from typing import Any

import numpy as np

from tensorlease._core import dtype_names

_NAMES = frozenset(dtype_names()) - {"bool"}


def is_numeric(dtype: Any) -> bool:
    """Is an array of this dtype stored as a tensor, and not by the codec?"""
    return dtype.names is None and dtype.subdtype is None and dtype.name in _NAMES


def prepare(array: Any) -> Any:
    """The same values contiguous and in this machine's byte order."""
    return array.astype(array.dtype.newbyteorder("="), order="C", copy=True, subok=False)


def bytes_of(array: Any) -> Any:
    """The memory of an array of any dtype as an array of bytes; copied only where it is not contiguous."""
    contiguous = array if array.flags.c_contiguous else np.array(array, order="C", copy=True)
    return contiguous.reshape(-1).view(np.uint8) if contiguous.nbytes else np.empty(0, np.uint8)
