"""The class of arrays that lie where the host's store keeps them."""

import sys
from typing import Any

import numpy as np

#: From this version on DLPack has a flag that says "read-only".
_FLAG_SINCE = (1, 0)
#: Modules of frameworks that pass over that flag, and would write into what everybody reads.
_DEAF = ("torch",)


class View(np.ndarray):
    """A read-only array over an object of the store. What is computed from it, and what it is pickled as, are ordinary arrays."""

    __slots__ = ()

    def __dlpack__(self, **asked: Any) -> Any:
        """For frameworks that take arrays of others. A BufferError for one that could write into it, and would not be told that it must not."""
        if self.flags.writeable:
            return super().__dlpack__(**asked)
        if asked.get("copy"):
            # It is its taker's own, and may be written.
            return np.array(self).__dlpack__()
        if tuple(asked.get("max_version") or ()) < _FLAG_SINCE:
            raise BufferError(f"this array is read-only, which DLPack can't say before version 1.0; {_COPY}")
        asker = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        if asker in _DEAF:
            raise BufferError(
                f"this array is read-only, and {asker} ignores that where it takes arrays over DLPack: a write would change the stored value "
                f"for everybody; {_COPY}"
            )
        return super().__dlpack__(**asked)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """What numpy computes from it is no view."""
        return array[()] if return_scalar or array.ndim == 0 else array

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles as the ordinary array that a copy of it would be."""
        return np.asarray(self).__reduce_ex__(protocol)


_COPY = "take a copy of your own (array.copy(), or from_dlpack(array, copy=True)), or read the value with get() without view"
