"""From noised sums to the constants that inputs are prepared with: post-processing, hence free."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from forethought.preparation import LIKELY, REACH, WITHIN, Preparation

# The least deviation worth dividing by, in units of half the declared range.
LEAST_DEVIATION = 0.01
# Variance, from table to table, of the logarithm of a centred record's norm.
SPREAD = 0.2


@dataclass(frozen=True)
class Constants:
    """What inputs are prepared with: (x − shift)/scale, clipped to [low, high] where these are.

    Args:
        shift, scale: one number a feature; empty where features stay as they are.
        limits: of what comes out; None for none.
        shares: of each class, summing to 1; empty where classes were not counted.
    """

    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    limits: tuple[float, float] | None = None
    shares: tuple[float, ...] = ()

    def apply(self, inputs: Any) -> Tensor:
        """Prepared inputs, in their own precision; dimension 1 holds the features or channels."""
        tensor = torch.as_tensor(inputs)
        if not self.shift:
            return tensor
        shape = (1, -1, *(1,) * (tensor.dim() - 2))
        shift, scale = (
            torch.tensor(part, dtype=torch.float64).view(shape) for part in (self.shift, self.scale)
        )
        found = (tensor.double() - shift) / scale
        if self.limits is not None:
            found = found.clamp(*self.limits)
        return found.to(tensor.dtype if tensor.is_floating_point() else torch.float32)


def moments(asked: Preparation, means: Tensor) -> Constants:
    """Means and deviations from noised means of x and x², both within what the bounds allow."""
    first, second = means.view(2, -1)
    first = first.clamp(-1, 1)
    variance = (second.clamp(0, 1) - first.square()).clamp(min=LEAST_DEVIATION**2)
    assert asked.bounds is not None
    low, high = asked.bounds
    half = (high - low) / 2
    shift = low + half * (first + 1)
    return Constants(tuple(shift.tolist()), tuple((half * variance.sqrt()).tolist()))


def centre(asked: Preparation, means: Tensor, examples: int) -> Constants:
    """Means, as far as they are to be believed, and the scale at which records have a given norm.

    Before the data are seen a mean of norm up to that of a usual record, R = reach/:data:`REACH`,
    is as likely in one direction as in another; with noise of variance v in each of d features the
    best linear guess is R²/(R² + d v) of what was released. Where what was released is as long as
    noise alone would be, it says less: 1 − (d − 2) v/‖m‖² of it (James and Stein 1961).
    """
    assert asked.reach and asked.features and asked.becomes
    usual = asked.reach / REACH
    noise = asked.sigma("means") * asked.reach / examples
    trust = usual**2 / (usual**2 + asked.features * noise**2)
    length = float(means.square().sum())
    if length > 0:
        trust = max(0.0, min(trust, 1 - (asked.features - 2) * noise**2 / length))
    scale = usual / asked.becomes
    return Constants(tuple((trust * means).tolist()), (scale,) * asked.features)


def rescaled(asked: Preparation, centred: Constants, norm: float, examples: int) -> Constants:
    """Means as they are, and the scale at which records of the norm released have the given one.

    Before the data are seen the logarithm of a usual record's norm, against :data:`LIKELY` of what
    is declared, is as likely above 0 as below, with variance :data:`SPREAD`; the best linear guess
    from a release with noise of variance v is SPREAD/(SPREAD + v) of it.

    Args:
        norm: the noised mean of that logarithm, over so many ``examples``.
    """
    noise = asked.sigma("norms") * asked.norm("norms") / examples
    limit = math.log(WITHIN)
    believed = min(limit, max(-limit, SPREAD / (SPREAD + noise**2) * norm))
    factor = LIKELY * math.exp(believed)
    return replace(centred, scale=tuple(factor * scale for scale in centred.scale))


def quantiles(asked: Preparation, means: Tensor) -> Constants:
    """From noised histograms the ends between which all but the tails lie, mapped to 0 and 1."""
    assert asked.bounds is not None
    low, high = asked.bounds
    shares = means.view(asked.features or 0, asked.bins).clamp(min=0)
    below = shares.cumsum(1) / shares.sum(1, keepdim=True).clamp(min=1e-300)
    first = (below < asked.tails).sum(1).clamp(max=asked.bins - 1)
    last = (below < 1 - asked.tails).sum(1).clamp(max=asked.bins - 1)
    width = (high - low) / asked.bins
    start = low + width * first.double()
    scale = width * (last + 1 - first).clamp(min=1).double()
    return Constants(tuple(start.tolist()), tuple(scale.tolist()), (0.0, 1.0))


def shares(means: Tensor) -> tuple[float, ...]:
    """Shares of the classes, none of them negative, summing to 1."""
    counted = means.clamp(min=0)
    total = float(counted.sum())
    if not total > 0:
        return tuple([1 / len(counted)] * len(counted))
    return tuple((counted / total).tolist())
