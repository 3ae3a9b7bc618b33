"""How much noise the weights of a network bear, found out on synthetic inputs before planning.

A network is no linear model: noise of deviation s in all weights moves its scores by about s^D
where D layers amplify one another, and by less where pooling averages. What matters is the same as
for a linear model, though: what noise does to the scores of one input against another's. So the
network itself is asked. Copies with noise in their weights are run on synthetic inputs of the
data's shape, and s is the one at which their scores move by :data:`SPREAD`, what all inputs share
left out. Bounded units (tanh, sigmoid) lose their signal sooner: noise that reaches the ends of
their range erases what they carry. Their scores grow only in proportion where noise is large, by
which such networks are told apart; they bear :data:`BOUNDED_SPREAD`. The best spread differs from
data set to data set; both constants keep the worst of those that may be looked at nearest to its
best (experiments/defaults/network_paths.py).

Tables come in any units, and two layers bear half the noise where features are four times as large:
where a table's owner declared a norm, the synthetic inputs lie :data:`RADIUS` of it from their
mean. Nothing is read of the data but that and the shape of a record. Written without torch, as all
of planning is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from forethought.data import synthetic

SPREAD, BOUNDED_SPREAD = 1.8, 1.2
# How far a table's records lie from their mean, in units of the norm that their owner declared: 0.2
# to 1 on the sets that may be looked at, where paths for half of it are nearest to the best.
RADIUS = 0.5
# Larger models are not copied and tried.
MOST_PARAMETERS = 2_000_000
_INPUTS, _DRAWS = 32, 4
# In networks that were tried the norm is 2.5 to 5.5 times the fourth root of the weights, as in
# theory with two layers. Normalised layers hide noise from the scores: far beyond, nobody knows.
_USUAL = 6.0
# Deviations of noise that are looked at, in logarithms, and how finely.
_LEAST, _MOST, _STEP = math.log(1e-4), math.log(10.0), 0.02


def noise_borne(model: Any, shape: tuple[int, ...], radius: float | None = None) -> float | None:
    """The norm of noise that a network's weights bear, to two digits; None: it cannot be tried.

    Args:
        model: a torch module; it is copied, not changed.
        shape: of one record: (features,) or (channels, height, width) of floating-point numbers.
        radius: how far a table's records usually lie from their mean, see :func:`table_radius`;
            images are pixels in [0, 1], whatever it is. None: unknown, features are of order one.
    """
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if len(shape) not in (1, 3) or not 0 < trained <= MOST_PARAMETERS:
        return None
    try:
        records: NDArray[np.float32] = synthetic.like(shape, 10, _INPUTS, seed=0).train.inputs
        found = _solved(_spread_of(copy.deepcopy(model).eval(), records))
        if found is None or found > _USUAL * trained**-0.25:
            return None
        if radius is not None and len(shape) == 1:
            scaled = records * np.float32(radius / _radius(records))
            found = _solved(_spread_of(copy.deepcopy(model).eval(), scaled))
    except Exception:  # a model of one's own can do anything with inputs that it was not made for
        return None
    return None if found is None else float(f"{found * math.sqrt(trained):.2g}")


def table_radius(feature_norm: float | None) -> float | None:
    """How far records usually lie from their mean: :data:`RADIUS` of the norm that is declared.

    Args:
        feature_norm: usual norm of a record's features, declared; None: unknown.
    """
    return None if feature_norm is None else RADIUS * feature_norm


def _radius(records: NDArray[np.float32]) -> float:
    return math.sqrt(float(records.var(0, dtype=np.float64, ddof=1).sum()))


def _solved(spread: Callable[[float], float]) -> float | None:
    """The deviation at which the scores move as far as they may."""
    # Behind bounded units twice the noise is twice the scores; a power, where layers amplify.
    large, larger = spread(_MOST - math.log(2)), spread(_MOST)
    if not large > 0:
        return None  # one score for every input
    bounded = larger < 2**1.5 * large
    wanted = math.log(BOUNDED_SPREAD if bounded else SPREAD)

    def excess(size: float) -> float:
        moved = spread(size)
        return math.log(max(moved, 1e-30)) - wanted if moved < 1e30 else 70.0

    if excess(_LEAST) > 0 or excess(_MOST) < 0:
        return None
    return math.exp(float(brentq(excess, _LEAST, _MOST, xtol=_STEP)))


def _spread_of(model: Any, records: NDArray[np.float32]) -> Callable[[float], float]:
    """Log deviation of the noise → root mean square of what it does to scores, input by input."""
    weights = [p for p in model.parameters() if p.requires_grad]
    for p in model.parameters():
        p.requires_grad_(requires_grad=False)
    start = [p.clone() for p in weights]
    inputs = weights[0].new_tensor(records)
    before = model(inputs).flatten(1)

    def spread(size: float) -> float:
        total = 0.0
        for draw in range(_DRAWS):
            random = np.random.default_rng(draw)
            for p, first in zip(weights, start, strict=True):
                noise = random.standard_normal(tuple(p.shape), dtype=np.float32)
                p.copy_(first + math.exp(size) * p.new_tensor(noise))
            moved = model(inputs).flatten(1) - before
            total += float(moved.double().var(0).mean())
        return math.sqrt(total / _DRAWS) if math.isfinite(total) else math.inf

    return spread
