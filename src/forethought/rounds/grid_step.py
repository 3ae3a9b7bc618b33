"""The step of the grid on which noise is drawn in whole numbers (:mod:`forethought.rounds.grid`).

Apart from it because planning and statements need these two numbers, and no tensors.
"""

from __future__ import annotations

import math

# The scale of the noise in grid steps lies between 2 to this power and four times that.
STEPS = 25
# Slack for points 2 and 3 there, and for the rounding of the few numbers computed here.
SLACK = 1 + 2.0**-30


def grid(std: float, clip_norm: float, size: int) -> tuple[float, int]:
    """The step γ, a power of two, and the scale s of the noise in steps.

    Args:
        size: number d of coordinates.

    Raises:
        ValueError: so many coordinates that the rounding would be a tenth of the clipping norm.
    """
    step = math.ldexp(1.0, math.frexp(std)[1] - 1 - STEPS)
    charge = math.sqrt(size) * step
    if charge > clip_norm / 10:
        raise ValueError(
            f"rounding {size:,} coordinates to the grid could move the sum by {charge:.3g}, more "
            f"than a tenth of the clipping norm {clip_norm:g}: use noise='gaussian', or less noise"
        )
    sigma = std / clip_norm
    return step, math.ceil(sigma * (clip_norm + charge) / step * SLACK)
