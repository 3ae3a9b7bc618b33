"""The price of keeping the best of a random number of trials, from one trial's privacy profile.

Let K trials be drawn, φ(z) = E z^K, and P, Q be the law of one trial's output, ordered by score
(ties by a fixed order, and by a number drawn for the purpose). The best has density
p(y) φ'(P(≤ y)). One trial is (x, δ(x))-indistinguishable, so with u = Q(> y) P(> y) is at least
e^-x (u - δ(x)), and φ' grows. Where φ'(1 - e^-x (u - δ(x))+) is at most c φ'(1 - u) for every u in
[0, 1],

H(ε) of the best ≤ ∫ φ'(1 - e^-x (u - δ(x))+) [p - (e^ε/c) q]+ ≤ E[K] δ(ε - log c),

as φ' is at most φ'(1) = E[K]. Any x holds. For a truncated negative binomial number φ' is
proportional to (1 - (1 - γ)z)^-(η + 1), so that c^(1/(η + 1)) is the larger of
1 + (1 - γ)δ(x)/γ, at u = δ(x), and 1/(γ + (1 - γ)e^-x (1 - δ(x))), at u = 1: between them the
quotient is monotone. For a Poisson one φ' is E[K] e^(E[K](z - 1)), and
log c = E[K](1 - e^-x (1 - δ(x))), at u = 1. Source of the approach: Koskela, Redberg and Wang 2024,
"Privacy profiles for private selection".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from forethought.accounting.pld.privacy_loss import Curve
from forethought.accounting.renyi.selection import NegativeBinomialTrials, Trials

_LEVELS = 400
_ROUNDING = 1e-9


def best_of_epsilon(curves: Sequence[Curve], trials: Trials, delta: float) -> float:
    """ε at ``delta`` of the best of ``trials`` runs; ∞ where no curve reaches so far.

    Args:
        curves: upper bounds on one trial's profile, every direction and every candidate.
        trials: how their number is drawn.
        delta: in (0, 1).
    """
    one = max(curve.epsilon(delta / trials.mean * (1 - _ROUNDING)) for curve in curves)
    if not one < math.inf:
        return math.inf
    most = max(curve.epsilon(1e-11) for curve in curves)
    levels = np.linspace(0.0, most if most < math.inf else one, _LEVELS)
    lost = np.max([curve.deltas(levels) for curve in curves], axis=0)
    kept = np.exp(-levels) * (1 - lost)
    if isinstance(trials, NegativeBinomialTrials):
        stop = trials.stopping
        near = np.log1p((1 - stop) * lost / stop)
        far = -np.log(stop + (1 - stop) * kept)
        grown = (trials.shape + 1) * np.maximum(near, far)
    else:
        grown = trials.mean * (1 - kept)
    return (one + float(grown.min())) * (1 + _ROUNDING)
