"""Which modules this process has imported already: no value that is put makes this one import torch or numpy."""

import sys
from typing import Any


def imported(name: str) -> Any:
    """The module, or None where it is not there yet: no value can be of its types then.

    While another thread imports it, the module stands in ``sys.modules`` without most of its names.
    """
    module = sys.modules.get(name)
    if getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module
