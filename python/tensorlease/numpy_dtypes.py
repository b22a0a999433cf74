"""dtypes of numpy arrays that are no tensors: written down as numpy's own file format does, and read again."""

import sys
from typing import Any

from tensorlease.errors import ConfigError

_APART = "put each field under a name of its own"


def refusal(dtype: Any) -> str | None:
    """Why arrays of this dtype can't be stored by value, and what to put instead. None: they can."""
    if dtype.hasobject:
        if dtype.names is not None:
            return f"has fields of Python objects; {_APART}, as a dict of arrays"
        return "keeps its elements elsewhere; put array.astype('U') for text, or array.tolist()"
    if dtype.names is None:
        return None
    try:
        same = bool(read(written(dtype)) == dtype)
    except ValueError:
        return f"has fields that overlap or lie out of order; {_APART}, as a dict of arrays"
    # Those of ml_dtypes would come back as raw bytes.
    return None if same else f"has fields of types that numpy can't write down; {_APART}"


def written(dtype: Any) -> Any:
    """What makes the dtype again: a name of ml_dtypes, or what numpy's own file format writes. A ValueError where that can't."""
    if dtype.names is None and dtype.type.__module__ == "ml_dtypes":
        return {"ml_dtypes": dtype.name}
    return sys.modules["numpy"].lib.format.dtype_to_descr(dtype)


def read(descr: Any) -> Any:
    """The dtype of what `written` returned. numpy must be imported."""
    numpy = sys.modules["numpy"]
    if isinstance(descr, dict):
        name = descr["ml_dtypes"]
        try:
            import ml_dtypes
        except ImportError:
            raise ConfigError(f"numpy alone has no dtype {name}; install ml_dtypes") from None
        return numpy.dtype(getattr(ml_dtypes, name))
    dtype = numpy.lib.format.descr_to_dtype(descr)
    if dtype.hasobject:
        # Raw bytes as pointers to objects would crash the process.
        raise ValueError("a dtype with objects")
    return dtype
