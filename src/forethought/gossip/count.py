"""The global count of updates, known to every worker without a server.

Every worker holds a number: an update adds :data:`UNIT` to its own, and numbers are averaged
together with the weights. Averaging keeps their sum, so a worker's number times the number of
workers is the global count, up to what the mixing has not brought round yet. Whole numbers, so that
nothing is lost to rounding.
"""

from __future__ import annotations

UNIT = 1 << 20


def moved(own: int, other: int, weight: float) -> int:
    """How far ``own`` moves towards ``other``; exactly the negative for the other side."""
    return round(weight * (other - own))
