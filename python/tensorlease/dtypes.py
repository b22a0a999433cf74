"""dtypes by name: torch's names, which numpy (with ml_dtypes) shares. And which of the two this process has imported."""

import sys
from typing import Any

from tensorlease._core import dtype_names
from tensorlease.errors import ConfigError, shown

_NAMES = frozenset(dtype_names())


def imported(name: str) -> Any:
    """The module, or None where it is not there yet: no value can be of its types then, and none that is put makes this process import it.

    While another thread imports it, the module stands in ``sys.modules`` without most of its names.
    """
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def resolve(dtype: Any, name: str) -> tuple[str, str]:
    """The name of `dtype` and whose it is ("torch", "numpy" or "any"); `name` says in errors what it is the dtype of."""
    if isinstance(dtype, str):
        return _known(dtype.removeprefix("torch.").removeprefix("numpy."), dtype, name), "any"
    torch = imported("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return _known(str(dtype).removeprefix("torch."), dtype, name), "torch"
    numpy = imported("numpy")
    kind = dtype if isinstance(dtype, type) else object
    # The types of ml_dtypes are no numpy.generic, but numpy knows them.
    is_scalar = kind.__module__ == "ml_dtypes" or (numpy is not None and issubclass(kind, numpy.generic))
    if numpy is not None and (is_scalar or isinstance(dtype, numpy.dtype)):
        try:
            as_dtype = numpy.dtype(dtype)
        except TypeError:
            # numpy.floating and its like stand for many.
            raise ConfigError(f"dtype of {name} is {shown(dtype)}, which is no one dtype; {_ALLOWED}") from None
        if not as_dtype.isnative:
            swapped = f"{as_dtype!r}, in the byte order of other machines"
            raise ConfigError(f"dtype of {name} is {swapped}; use {as_dtype.newbyteorder('=')!r}")
        return _known(as_dtype.name, dtype, name), "numpy"
    raise ConfigError(f"dtype of {name} is {shown(dtype)}; {_ALLOWED}")


def numpy_dtype(name: str) -> Any:
    """numpy's dtype object of this name."""
    import numpy as np

    if name in _NEEDS_ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise ConfigError(f"numpy alone has no dtype {name}; install ml_dtypes or torch") from None
        found = getattr(ml_dtypes, name, None)
        if found is not None:
            return np.dtype(found)
    elif name not in _NOT_IN_NUMPY:
        return np.dtype(name)
    raise ConfigError(f"numpy has no dtype {name}; install torch and ask for a torch tensor")


_NEEDS_ML_DTYPES = frozenset(name for name in _NAMES if name.startswith(("bfloat", "float8_", "float4_")))
_NOT_IN_NUMPY = frozenset({"complex32"})
_ALLOWED = (
    f"give a torch or numpy dtype, or its name, out of {', '.join(sorted(_NAMES))} (None: a value that is no tensor)"
)


def _known(text: str, dtype: Any, name: str) -> str:
    if text in _NAMES:
        return text
    raise ConfigError(f"dtype of {name} is {shown(dtype)}; {_ALLOWED}")
