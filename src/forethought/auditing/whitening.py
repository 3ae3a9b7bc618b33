"""Undo the correlation that a plan claims for its noise: what is left must be independent.

For noise y = C⁻¹z the numbers (Cy)_t are z again. They are tested like any run's numbers, so a
strategy other than the claimed one, or a lag that was left out, shows as dependence between rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from forethought.values.mechanism import Correlated, Mechanism, Rounds

Array = NDArray[np.float64]


def whitened(mechanism: Mechanism, numbers: Sequence[Array]) -> list[Array]:
    """One array a round, with the claimed correlation of each part undone; the rest unchanged."""
    found: list[Array] = []
    first = 0
    for part in mechanism:
        some = numbers[first : first + part.count]
        if isinstance(part, Correlated) and some:
            some = list(applied(part, np.stack(some)))
        found += some
        first += part.count
    return found


def applied(part: Correlated, rows: Array) -> Array:
    """C times ``rows``, one row a round of the part."""
    return np.asarray(lfilter(part.strategy.column(len(rows)), [1.0], rows, axis=0))


def correlated(part: Rounds, rows: Array) -> Array:
    """C⁻¹ times ``rows``, one row a round of the part; the rows where noise is independent."""
    if not isinstance(part, Correlated):
        return rows
    return np.asarray(lfilter([1.0], part.strategy.column(len(rows)), rows, axis=0))
