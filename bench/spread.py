"""How far repeated measurements lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def stdev(values: Sequence[float]) -> float:
    """Sample deviation; 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Lower and upper quartile, interpolated between the values."""
    if len(values) == 1:
        return values[0], values[0]
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, upper
